// Package e2e holds the end-to-end tests: real PostgreSQL, real Apache Kafka,
// the relay as a process of its own. One file per scenario, behind the build tag
// e2e; run them with `make e2e [RUN=regexp]`.
//
// Servers are started once per run, on free loopback ports and in temporary
// folders. Every test has a database, a slot and topics of its own; what a test
// leaves behind is a failure.
//
// The tests under faults (TestIdempotentUnderFaults, TestExactlyOnceUnderFaults,
// TestConsumerUnderFaults) draw their faults from a seed, which they print:
// FOR=60s SEED=7 make e2e RUN='TestExactlyOnceUnderFaults$' runs a plan again.
// Relays reach Kafka and PostgreSQL through proxies there (internal/kafkaproxy).
package e2e
