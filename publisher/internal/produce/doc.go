// Package produce is the way from a record to the leader of its partition: a paced
// produce loop with sequence numbers of its own, over [sarama.Broker], whose are the
// connections and the encoding.
//
// # Guarantee
//
// Of each partition, the records that its leader has are a prefix of those that were
// put, in that order and each once, as long as the broker knows the producer. The one
// batch of a partition that is on its way is sent again as it was, byte by byte under
// the same producer and sequence, to whoever leads the partition by then, until a
// broker has said what became of it; nothing behind it is numbered before.
//
// # States of a partition
//
//	idle ──Put──> joining ──the transaction has it──> seeking ──leader known──> ready ──taken──> flying
//	  ^           (without transactions: skipped)        ^                        (due after its pause)  │
//	  ├──────────────────────── acknowledged, nothing waits ────────────────────────────────────────────┤
//	  │                                                  └── refused for now, lost: after a pause ───────┤
//	failed <───── refused for good, given up ───────────────────────────────────────────────────────────┘
//
// A failed partition sends nothing more, and whoever owns the loop ends it.
//
// # Pace
//
// What comes after a silence leaves at once, and with it what comes together with it
// ([Record].More). Else what has come is looked at every 2 ms, every 8 ms where it is a flow, up to
// every 32 ms while it is late ([Record].Late), so that a broker gets about one request in that time,
// with all that waits for its partitions; 512 KiB do not wait, nor does what somebody waits for. Each
// broker has one request at a time: what comes meanwhile grows into the next one.
//
// # Who owns what
//
// The goroutine of [Loop.Run] has the window: all partitions, what waits for them and
// where. It waits for no network. A courier for each broker has the connection to it,
// encodes and compresses, and ends with that; one goroutine looks leaders up. Records that were put are the
// loop's, until it gives them back.
//
// # Files
//
// window.go, lane.go, pace.go and verdict.go are pure; intake.go is where records are
// left, loop.go, courier.go and leaders.go are the goroutines, link.go a connection and
// any.go one to whichever broker answers.
package produce
