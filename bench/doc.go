// Command bench measures what the relay, the producer's side and the consumer's side cost, beside
// what else does the same work on the same servers. docs/performance.md says how, and what came
// out; `make bench` runs it.
//
// # How
//
// It starts a PostgreSQL and a Kafka of its own. A workload is measured in rounds; in each round
// every side does the same work, one after the other, in an order that turns from round to round.
// Every side has a slot of its own, made before the backlog, so that all decode the same log.
// Rates are read from the topic afterwards, after its records were checked; CPU and memory are
// those of the real processes, from /proc. Only ratios of one round are compared.
//
// # Failures
//
// A record of ours that is missing, doubled or out of order ends the run: no figure of it counts.
// A side of others that fails, or does so, is left out from there on, and that is said. So is what
// cannot be measured here (Debezium without its jars, CPU on another system than Linux). It is a
// dash in the last line.
//
// # Where things are
//
//	main.go        flags, and the order of things
//	plan.go        how much of what
//	servers.go     PostgreSQL, Kafka, and a stage: a database with topics of its own
//	backlog.go     what is drained
//	side.go        what all sides have in common
//	readers.go     ceiling and reader, which publish nothing; task.go runs them as processes
//	relay.go       the relay
//	polling.go     a publisher that asks the table
//	connect.go     Debezium
//	drain.go       single, bulk, hogs
//	growth.go      the curves, whose points are drains, and rounds of consumer.go
//	pace.go        trickle, steady
//	calls.go       the rounds of the next two
//	producer.go    Enqueue
//	consumer.go    Tx and Batch
//	busy.go        whether the machine has other work
package main
