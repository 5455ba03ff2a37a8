package ledger

import (
	"time"

	"github.com/jackc/pglogrepl"
)

// With nothing published, the end of the log becomes a checkpoint only after
// this much foreign log or this long, so that checkpoints do not feed on the log
// that they write themselves. Under archive_timeout a server makes a whole segment
// of whatever was written, however little. So a position at a segment's beginning
// says nothing of how much was written; it counts where the log passes a multiple of
// several segments, which is for all relays of a server the same place: what they
// write there shares a segment, and does not lead to the next such place.
const (
	IdleBytes    = 1 << 20
	IdleTime     = time.Hour
	beginBytes   = 64 << 10 // of a segment: more than the server itself writes behind a switch
	idleSegments = 4
)

// FollowUpTime is after how long one idle checkpoint follows one that had a
// cause. The server lets go of log only up to a point at which it knew all open
// transactions. It writes one down 15 s after the last activity, or 25 s when its
// background writer sleeps, so behind the last checkpoint of a burst; without a
// position beyond it, a quiet server would keep the burst's log for idleTime.
const FollowUpTime = 30 * time.Second

// Idle decides when a position becomes a checkpoint. It is pure, and used by
// the one goroutine that writes checkpoints.
type Idle struct {
	Segment pglogrepl.LSN // bytes of a segment of the server's log
	Owed    bool          // the last checkpoint had a cause, and none has followed it
}

// Due reports whether position now is to be checkpointed; the last checkpoint is
// at position last, and was written since ago. passed says that transactions with
// events lie between them.
func (r *Idle) Due(passed bool, last, now pglogrepl.LSN, since time.Duration) bool {
	switch {
	case now == last:
		return false
	case r.caused(passed, last, now), last/(idleSegments*r.Segment) != now/(idleSegments*r.Segment):
		return true
	case r.Owed:
		return since >= FollowUpTime
	}
	return since >= IdleTime
}

// Saved records a checkpoint, since after the one before. One without a cause owes no
// other, else each would follow the log of the one before; one that came before what
// is owed leaves that.
func (r *Idle) Saved(passed bool, last, now pglogrepl.LSN, since time.Duration) {
	r.Owed = r.caused(passed, last, now) || r.Owed && since < FollowUpTime
}

// caused reports whether what lies between two positions is a cause by itself.
func (r *Idle) caused(passed bool, last, now pglogrepl.LSN) bool {
	return passed || now >= last+IdleBytes && now%r.Segment >= beginBytes
}
