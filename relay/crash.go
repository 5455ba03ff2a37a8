package relay

// The places at which a relay built with the tag onceward_defects kills itself
// (SIGKILL) when CRASH_AT names one, as name or name:n for the nth time that it
// comes by. They are the gaps between two writes that a crash could tear apart.
const (
	// crashAfterSlot: a slot was made, and nothing says yet from where it counts.
	crashAfterSlot = "after-slot"
	// crashAfterGap: a beginning was written down, nothing of it is published.
	crashAfterGap = "after-gap"
	// crashInRepair: a page of a repair was handed over.
	crashInRepair = "in-repair"
	// crashBeforeCursor: it is acknowledged, and no cursor says so.
	crashBeforeCursor = "before-cursor"
	// crashBeforeRepaired: all pages of a repair are durable, and the gap is not over.
	crashBeforeRepaired = "before-repaired"
	// crashBeforeLetter: an event is found to be poison; no letter is written.
	crashBeforeLetter = "before-letter"
	// crashAfterLetter: its letter is durable, nothing else.
	crashAfterLetter = "after-letter"
	// crashAfterRetrying: a control has acted in the database, and nothing of
	// what it released is published.
	crashAfterRetrying = "after-retrying"
	// crashMidRetry: some letters of a retry were handed over, some not.
	crashMidRetry = "mid-retry"
	// crashBeforeCommit: events are in an open Kafka transaction, the tick of its
	// checkpoint is durable.
	crashBeforeCommit = "before-txn-commit"
	// crashAfterCommit: the transaction is committed, PostgreSQL knows nothing.
	crashAfterCommit = "after-txn-commit"
	// crashBeforeConfirm: the checkpoint is durable, the slot not confirmed.
	crashBeforeConfirm = "before-confirm"
	// crashBeforeSettle: the checkpoint has passed a retry, whose letters are
	// still retrying.
	crashBeforeSettle = "before-settle"
	// crashBeforeMode: the checkpoint was taken to where the new mode keeps it,
	// and relay_state still has the old mode.
	crashBeforeMode = "before-mode"
	// crashAfterSkip: an event that an operator gave up has its letter; where it
	// waited, it still does.
	crashAfterSkip = "after-skip"
	// crashAfterDrop: it waits no more, and its lane is still held.
	crashAfterDrop = "after-drop"
	// crashBeforeWaiting: events of a held route are in memory only.
	crashBeforeWaiting = "before-waiting"
	// crashAfterWaiting: they are written down, and no checkpoint is beyond them.
	crashAfterWaiting = "after-waiting"
	// crashBeforeRelease: a route can be used again, and nothing says so yet.
	crashBeforeRelease = "before-release"
	// crashAfterRelease: the release has a number, and no checkpoint knows of it.
	crashAfterRelease = "after-release"
	// crashMidRelease: some of what waited was handed over, some not.
	crashMidRelease = "mid-release"
	// crashBeforeForget: a checkpoint is beyond what was released, which is still
	// in the table.
	crashBeforeForget = "before-forget"
	// crashBeforeReleased: a checkpoint is beyond the whole release.
	crashBeforeReleased = "before-released"
	// crashAfterReleased: the release is forgotten, and the checkpoint names it.
	crashAfterReleased = "after-released"
)
