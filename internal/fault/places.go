package fault

// Place is a gap between two writes that a crash could tear apart.
type Place string

// The places, all of package relay.
const (
	// AfterSlot: a slot was made, and nothing says yet from where it counts.
	AfterSlot Place = "after-slot"
	// AfterGap: a beginning was written down, nothing of it is published.
	AfterGap Place = "after-gap"
	// InRepair: a page of a repair was handed over.
	InRepair Place = "in-repair"
	// BeforeCursor: it is acknowledged, and no cursor says so.
	BeforeCursor Place = "before-cursor"
	// BeforeRepaired: all pages of a repair are durable, and the gap is not over.
	BeforeRepaired Place = "before-repaired"
	// BeforeLetter: an event is found to be poison; no letter is written.
	BeforeLetter Place = "before-letter"
	// AfterLetter: its letter is durable, nothing else.
	AfterLetter Place = "after-letter"
	// AfterRetrying: a control has acted in the database, and nothing of
	// what it released is published.
	AfterRetrying Place = "after-retrying"
	// MidRetry: some letters of a retry were handed over, some not.
	MidRetry Place = "mid-retry"
	// BeforeCommit: events are in an open Kafka transaction, the tick of its
	// checkpoint is durable.
	BeforeCommit Place = "before-txn-commit"
	// AfterCommit: the transaction is committed, PostgreSQL knows nothing.
	AfterCommit Place = "after-txn-commit"
	// BeforeConfirm: the checkpoint is durable, the slot not confirmed.
	BeforeConfirm Place = "before-confirm"
	// BeforeSettle: the checkpoint has passed a retry, whose letters are
	// still retrying.
	BeforeSettle Place = "before-settle"
	// BeforeMode: the checkpoint was taken to where the new mode keeps it,
	// and relay_state still has the old mode.
	BeforeMode Place = "before-mode"
	// AfterSkip: an event that an operator gave up has its letter; where it
	// waited, it still does.
	AfterSkip Place = "after-skip"
	// AfterDrop: it waits no more, and its lane is still held.
	AfterDrop Place = "after-drop"
	// BeforeWaiting: events of a held route are in memory only.
	BeforeWaiting Place = "before-waiting"
	// AfterWaiting: they are written down, and no checkpoint is beyond them.
	AfterWaiting Place = "after-waiting"
	// BeforeRelease: a route can be used again, and nothing says so yet.
	BeforeRelease Place = "before-release"
	// AfterRelease: the release has a number, and no checkpoint knows of it.
	AfterRelease Place = "after-release"
	// MidRelease: some of what waited was handed over, some not.
	MidRelease Place = "mid-release"
	// BeforeForget: a checkpoint is beyond what was released, which is still
	// in the table.
	BeforeForget Place = "before-forget"
	// BeforeReleased: a checkpoint is beyond the whole release.
	BeforeReleased Place = "before-released"
	// AfterReleased: the release is forgotten, and the checkpoint names it.
	AfterReleased Place = "after-released"
)
