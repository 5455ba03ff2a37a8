// Package letters is the dead letters of both sides: events that a relay could not
// publish, and messages that a consumer group could not apply.
//
// A side's letters are listed and shown; an order about them is planned, which finds what
// is meant and changes nothing, then given, then awaited. A plan for which there is
// nothing to do is none: a report says why. What was ordered stands, also where the wait
// for it ends before.
//
//	side      what a letter is named by       orders
//	relay     key                             retry, edit, discard: [PlanRetry], [PlanEdit], [PlanDiscard]
//	group     [Place] or key, and its group   redrive, discard: [PlanDecision]
//
// The relay is the only writer of its letters: an order is a row that it reads from the
// stream, in commit order. A group's letter is decided by its row, guarded by a
// generation: what somebody else has decided meanwhile is left alone.
package letters
