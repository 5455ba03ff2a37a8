// Package stream moves events from the log to Kafka: one [Pump] of one session, which
// takes the items in commit order and says what becomes of each.
//
// # Guarantee
//
// Each item ends once, in one of the ways of package ledger: acknowledged by Kafka,
// kept as a dead letter, written down to wait, skipped by an order, or erased. Events
// of one aggregate end in their order. What is confirmed is behind nothing that has
// not ended.
//
// # Who owns what
//
// [Pump.Run] runs in one goroutine, which owns everything here but the progress: that
// is shared with the sink, which ends events, and with the session's checkpoints,
// which ask. The Pump itself is the loop and the verdict; what changes together is a
// noun with its fields: the reading, the letters, what is held, the releases, the
// repair, the output. Only a release, a retry and a repair know the Pump: they give it
// their items, by deliver and deal, and have it settle.
//
// What the pump writes (letters, what waits) goes over the session's second connection.
// It says what it does by [Hooks], and is counted by whom its [Config] names.
//
// # Failure
//
// A route that cannot be used holds its lane, and the others go on; an event that can
// never become a record is kept as its route's policy says. Everything else ends the
// session, which begins anew at the checkpoint.
//
// # Files
//
//   - pump.go: the loop; step.go: an item; verdict.go: what becomes of it (the facts, one
//     pure order of precedence, and one switch that acts); halt.go: what waits for an
//     operator, or for ever; config.go: what a session gives it, the operator's commands too
//   - reading.go: how far the pump has come; complete.go: rows that are read from the table
//   - output.go: the way to Kafka; mode.go, exactly_once.go: when what was handed over has
//     ended; progress.go: what has; sink_watch.go: since when Kafka owes an answer;
//     routing.go, pure: topics and policies
//   - lanes.go, pure: which lanes are held and when they are tried; held.go: what of them is
//     written down and shown; waiting.go: the table; releases.go: how what waits goes out
//     again, and drain.go: a release, which publishes it
//   - letters.go: what becomes a dead letter; letter_store.go: where it is kept;
//     control.go: controls, and the letters that they release
//   - repair.go: the gaps, before the stream
package stream
