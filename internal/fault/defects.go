package fault

// Defect is the classic way to break one promise.
type Defect string

// The defects of package relay.
const (
	// ConfirmEarly confirms what was read, before Kafka acknowledged it.
	ConfirmEarly Defect = "confirm-early"
	// Reorder hands neighbours over in the wrong order.
	Reorder Defect = "reorder"
	// Alter changes a payload on the way.
	Alter Defect = "alter"
	// SlotFirst confirms the slot before the checkpoint is durable.
	SlotFirst Defect = "slot-first"
	// NoEpoch writes checkpoints whoever owns the slot by now.
	NoEpoch Defect = "no-epoch"
	// Impatient takes a server that is mute for less than its own
	// wal_sender_timeout for a dead one.
	Impatient Defect = "impatient"
	// NoBarrier begins without waiting for transactions that were open when
	// the slot was made.
	NoBarrier Defect = "no-barrier"
	// ForgetGap takes what may have passed the relay by for published: a gap is
	// written down as repaired.
	ForgetGap Defect = "forget-gap"
	// GapFromNow measures a gap from where it ends, as if the snapshot that was
	// published last were void and a new one had its place.
	GapFromNow Defect = "gap-from-now"
	// ForgetBefore does so with what is older than a relay that begins with
	// outbox.start: now.
	ForgetBefore Defect = "forget-before"
	// ForgetWaiting forgets what waited for its route, when that can be used, in
	// the place of publishing it.
	ForgetWaiting Defect = "forget-waiting"
	// NoHistory takes every checkpoint for one of the history that the database
	// has now.
	NoHistory Defect = "no-history"
	// ConfirmIdle confirms the end of the log to the slot while nothing is
	// published, without a checkpoint that says so.
	ConfirmIdle Defect = "confirm-idle"
)

// The defects of package cdc.
const (
	// Mute sends no status updates while the queue is full.
	Mute Defect = "mute-when-full"
	// ByPlace looks for the columns where the table had them first.
	ByPlace Defect = "columns-by-place"
)

// The defects of package publisher.
const (
	// OneEpoch goes on with the producer after a commit.
	OneEpoch Defect = "one-epoch"
	// NoCheckpoint does not see the checkpoint in Kafka, so that the relay
	// must find out by other means how far it came.
	NoCheckpoint Defect = "no-checkpoint"
	// Resend gives a batch up after one retry, and hands what was given up
	// over again a moment later.
	Resend Defect = "resend"
)
