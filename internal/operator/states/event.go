package states

// States of an event.
const (
	Pending   = "pending"   // committed, not yet published
	Published = "published" // in Kafka
	Waiting   = "waiting"   // its route cannot be used for now
	Dead      = "dead"      // in the dead letters, with its reason
	Discarded = "discarded" // dead, and an operator decided that it stays so
	Gap       = "gap"       // a relay cannot prove that it published it
	GivenUp   = "given-up"  // of a gap that an operator accepted
	Before    = "before"    // older than a relay that leaves such out
	Unknown   = "unknown"   // nothing says yet whether it was published
	NotFound  = "not found"
)

// CauseFirstStart is the cause of what is older than a relay.
const CauseFirstStart = "FIRST_START"

// States of a gap.
const (
	GapOpen      = "open"
	GapRepairing = "repairing"
	GapRepaired  = "repaired"
	GapAccepted  = "accepted"
	GapBefore    = "before"
)

// Modes of a replay.
const (
	ModeRedeliver = "redeliver" // for whoever has not applied the event
	ModeReprocess = "reprocess" // to be applied once more, by one group
)
