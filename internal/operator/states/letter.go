package states

// States of letters; those of a relay's.
const (
	LetterOpen      = "open"
	LetterRetrying  = "retrying"
	LetterReplayed  = "replayed"
	LetterDiscarded = "discarded"
)

// States of a group's letter that a relay's letter does not have.
const (
	LetterRequested = "requested" // a member of the group will handle it again
	LetterRedriven  = "redriven"
	LetterParked    = "parked" // it waits for another letter of its key
)

// Causes are the reasons for which a group keeps a letter.
var Causes = []string{
	CauseMalformed, CauseMismatch, CauseHandler, CauseCrash, CauseLate, CauseReplay, CauseFromFuture, CauseNoHandler,
	LetterParked, CauseUnreadable,
}

// The causes.
const (
	CauseMalformed  = "malformed"
	CauseHandler    = "handler"
	CauseCrash      = "crash"
	CauseLate       = "late"
	CauseReplay     = "replay"
	CauseFromFuture = "from-future"
	CauseNoHandler  = "no-handler"
	// CauseMismatch is that of an event with the key, and not the content, of one that was applied.
	CauseMismatch = "mismatch"
	// CauseUnreadable is that of a range of messages that no member could read.
	CauseUnreadable = "unreadable"
)

// Actions of a command about letters.
const (
	ActionRetry   = "retry"
	ActionDiscard = "discard"
	ActionEdit    = "edit"
)

// Outcomes of a command for one letter.
const (
	OutcomeDone    = "done"
	OutcomePending = "pending" // the relay has not acted yet, or not ended
	OutcomeFailed  = "failed"  // it acted, and the letter is not as was wanted
)
