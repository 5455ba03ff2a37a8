package relay

import (
	"time"

	"github.com/jackc/pglogrepl"
)

// With nothing published, the end of the log becomes a checkpoint only after
// this much foreign log or this long, so that checkpoints do not feed on the log
// that they write themselves.
const (
	idleBytes = 1 << 20
	idleTime  = time.Hour
)

// followUpTime is after how long one idle checkpoint follows one that had a
// cause. The server lets go of log only up to a point at which it knew all open
// transactions. It writes one down 15 s after the last activity, or 25 s when its
// background writer sleeps, so behind the last checkpoint of a burst; without a
// position beyond it, a quiet server would keep the burst's log for idleTime.
const followUpTime = 30 * time.Second

// idleRule decides when a position becomes a checkpoint. It is pure, and used by
// the one goroutine that writes checkpoints.
type idleRule struct {
	owed bool // the last checkpoint had a cause, and none has followed it
}

// due reports whether a position is to be checkpointed that is ahead bytes beyond
// the last checkpoint, which was written since ago. passed says that transactions
// with events lie between them.
func (r *idleRule) due(passed bool, ahead pglogrepl.LSN, since time.Duration) bool {
	switch {
	case ahead == 0:
		return false
	case r.caused(passed, ahead):
		return true
	case r.owed:
		return since >= followUpTime
	}
	return since >= idleTime
}

// saved records a checkpoint that was due. One that came by time alone owes no
// other, else each would follow the log of the one before.
func (r *idleRule) saved(passed bool, ahead pglogrepl.LSN) { r.owed = r.caused(passed, ahead) }

func (r *idleRule) caused(passed bool, ahead pglogrepl.LSN) bool { return passed || ahead >= idleBytes }
