// Package relayprom shows a relay's numbers to Prometheus. Which metrics there
// are, with their labels and units, is in docs/metrics.md.
//
//	metrics := relayprom.New(r)
//	prometheus.MustRegister(metrics)
//
// The [Collector] counts nothing itself but lost lines of the log: a scrape asks
// [relay.Relay.Stats], which needs no database, and touches nothing of the path
// of an event. A program that embeds a relay without this package builds without
// Prometheus.
package relayprom
