// Package consumer makes the effect of each event happen once in PostgreSQL.
//
// # Guarantee
//
// For one idempotency key and one consumer group, the transaction of a handler
// commits at most once, however often and by however many processes the event
// is delivered, within the window of its [Class]. An event from before is never
// taken for new in silence: it is late, a replay, or fails with [ErrNoPartition]. Only
// [Router.AtLeastOnce] promises less, by its name.
//
// # How
//
// [Router.Handle] runs one transaction: claim, handler, commit. The claim is
// an INSERT … ON CONFLICT DO NOTHING of (key, group). A second delivery waits
// for the first transaction to end; when that commits the second is a
// [Duplicate], when it rolls back the second goes on as if it were the first.
// A claim therefore exists if and only if the effect does.
//
// A replay in the mode reprocess is claimed under its replay id by the group it
// names, so that the group applies the event once more; see [Processor.Claim].
//
// # Windows
//
// Claims live in daily partitions by event time, which is a function of the key
// alone, so that all copies of an event meet in one. Each class of event types has
// a floor in onceward.dedup_windows, persisted and only ever raised, in stream
// time: the event times that the group has finished, never the clock alone. A
// partition goes only when the floors of all groups and the clock have passed it
// (package retention). The row counts, not what a program's configuration says.
// So at or above the floor every claim that there ever was is there. Below it
// the group's marks tell an event that it sees for the first time (late) from one
// that it may have applied (a replay); see [Class] for what becomes of either,
// and docs/consuming.md.
//
// [Do] is the same for a receiver that answers: the first result is stored with
// the claim, and every duplicate gets it.
//
// # Effects outside the database
//
// No transaction reaches them. [Fence], called from a handler that was
// registered with [Router.Func], guards each by a row of onceward.fences with an
// epoch and a lease, gives the provider the same key at every attempt, and
// completes in one transaction with what follows from the effect. The states are
// in its comment. An event is open from its first effect to the transaction that
// ends it: its handler has returned nil, or has failed for good. What is complete
// by then answers later attempts with its first result.
//
// # One path
//
// Whatever comes, one event or many, from a topic, a letter or the recovery job,
// is an item that steps.deliver takes through the same path: claim, apply,
// write, commit. What becomes of an item is a value (ending); one function
// writes it.
//
// # States of one delivery
//
//	Processed     this delivery committed the effect
//	Duplicate     another one did, before
//	InProgress    another transaction holds the claim; try again later
//	Mismatch      the key is taken by an event with other content
//	DeadLettered  kept in onceward.consumer_dead_letters with its reason
//	Ignored       its type was given to [Router.Ignore]
//	Replay        from below the floor, and from no topic: nothing was done
//	FromFuture    its time has not come yet, and from no topic: nothing was done
//
// All but InProgress acknowledge the message, see [Outcome.Acknowledges].
//
// # Failures
//
//   - A handler that returns an error, panics, outlives its context or
//     Config.HandlerTimeout, swallows an SQL error or calls Commit or Rollback:
//     everything is rolled back, the claim too. The error is a [*HandlerError].
//   - PostgreSQL or the connection fails, a deadlock or serialization failure,
//     a commit of unknown outcome: [IsInfrastructure] is true. Deliver again;
//     the claim tells whether the effect is there.
//   - Same key, other content: a dead letter with both fingerprints.
//   - A record that breaks the wire contract, and that none of Config.Readers takes
//     for its own: [Router.HandleRecord] keeps it as a dead letter with the reason
//     "malformed".
//   - An event outside its window that its class does not apply: a dead letter
//     with the reason "late", "replay" or "from-future"; [ErrClock] while clocks
//     differ so that most events seem to come from the future.
//   - An event type without a handler: [ErrNoHandler], or a dead letter with the
//     reason "no-handler", see [Router.Unknown]. Without a class: [ErrNoClass].
//     See [Permanent].
//
// After a dead letter the aggregate goes on without it, or waits: see [LetterPark].
//
// # Ownership
//
// The caller owns the pool and closes it. The package starts no goroutine but one for the
// handlers of a transaction, and the heartbeat of a lease, and waits for both to come back, except for a handler
// that does not ([Processor.StuckHandlers]). It keeps no state between deliveries but
// the floors and registrations that it has read, for ten seconds, and what package memory
// counts. It knows no Kafka client: the package saramagroup feeds it from a sarama consumer
// group, and any other receiver calls [Router.HandleRecord] or builds an [Event] itself.
//
// # Where things are
//
// The methods that a user calls stand in two files, router.go and processor.go. Behind them
// each noun has its state, and the methods that change it:
//
//	what goes in  event.go, foreign.go; config.go, class.go of the group
//	handlers      handlers.go: which of them an event type has
//	steps         deliver.go, isolate.go, func.go, retry.go: the path of an item (item.go) to its outcome.go
//	calls         tx.go: users' code, and whose failure it was (errors.go)
//	claimant      claims.go, ahead.go, recall.go: a member that claims, in one transaction
//	windows       window.go, register.go; look, in window.go and arrival.go, is one transaction's
//	marks         progress.go: what the group has read and finished
//	attempts      retry.go: how often an event failed, crashed or broke its transaction
//	letters       deadletter.go, park.go, unreadable.go, deadletter_send.go
//	redriver      redrive.go, and park.go: letters that are handled again
//	memorized     completed.go: what need not go to the database, by Config.Completed
//	fences        lease.go, fence.go, do.go, fence_event.go, recover.go: effects outside
//
// A member is what the configuration says; it does not change, and all of them read it.
// steps, look, lease and claimant hold the whole Processor, because each needs most of its
// parts: anything narrower would be a list of them.
//
// What knows neither events nor handlers is not among them. In internal/ stand verdict (how
// an event may be claimed), fence (leases), memory (what a process remembers), progress
// (marks in the database), completed (what a memory of applied events is bound to),
// transaction and statement (how the database is spoken to), aside (where handlers run) and
// sqlstate (whose failure a code is); beside this package retention and audit, which look after the claims, and
// ../internal/claims, which all of them know.
//
// There are more than 25 files all the same. To cut further was measured, by the names that
// would cross a wall in either direction: letters 60 and 101, effects outside 16 and 113,
// windows 53 and 59, marks 17 and 18, the isolation of one event 4 and 30. All are the same
// item under one transaction: a wall through it would be made of exported fields.
package consumer
