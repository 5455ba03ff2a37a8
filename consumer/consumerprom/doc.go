// Package consumerprom shows Prometheus what consumers do.
//
//	c := consumerprom.New()
//	prometheus.MustRegister(c)
//	go serveMetrics()
//	err := saramagroup.Run(ctx, brokers, router, saramagroup.Config{Topics: …, Observe: c.Observe})
//
// A program that runs retention.Maintain hands its report on as well:
//
//	report, err := retention.Maintain(ctx, conn, retention.Config{})
//	c.Maintained(report)
//
// Backlog and retention are shown from the database, whoever maintains it, and the
// time that handlers take from the consumer's Config:
//
//	c.FromDatabase(pool)
//	in, err := consumer.New(ctx, consumer.Config{Handled: c.Handled, …})
//
// What a memory of applied events (package redisfast) was asked is shown by
//
//	c.Completed(fast.Stats)
//
// # What it shows
//
// The names begin with onceward_consumer_. Those of a group have the label
// group; those of a partition, topic and partition as well. They are what the
// last Snapshot said: up to saramagroup.Config.CommitInterval old. Lag counts
// offsets, and so the markers of transactions, until the partition was read to
// its end. What FromDatabase and Maintained show is of the database, whichever
// group: let one program of those that share a database show it. docs/metrics.md
// has them all.
//
// # Ownership
//
// It starts nothing, asks nobody but the database that it was given, at a scrape,
// and keeps one Snapshot for each group and one report. Two members of one group in one process need a
// Collector each, under registerers that tell them apart: prometheus.WrapRegistererWith.
package consumerprom
