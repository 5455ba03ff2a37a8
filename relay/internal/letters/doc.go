// Package letters keeps what cannot be published: the dead letters of a relay, what
// operators order about them, and which aggregates wait behind one.
//
// # Guarantee
//
// What has a letter has ended, for this session and every later one. While a letter
// that holds its aggregate is open, later events of the aggregate follow it into
// letters, in their order. A control acts once. Each write is one transaction of
// the slot's owner ([state.State.Write]).
//
// # States
//
//	open ──> retrying ──> replayed    a control released it, a checkpoint passed that
//	  │          │
//	  │          └──> open             it failed again, or the session ended before
//	  └──> discarded                   an operator gave it up
//
// store.go has the [Store], which the pump's goroutine owns; letter.go what is written
// ([Dead]) and what is read back to be published ([Letter]); control.go what a
// control does; release.go the letters that it released; parked.go, pure, who is
// parked; and ended.go answers for rows that are read again.
package letters
