package record

import (
	"fmt"

	"github.com/google/uuid"
)

// ReplayMode says what a replayed event is for.
type ReplayMode string

// The modes of a replay. An event that is no replay has the empty mode.
const (
	ReplayRedeliver ReplayMode = "redeliver" // for groups that have not applied it
	ReplayReprocess ReplayMode = "reprocess" // for one group, to apply it again
)

// Replay says why an event that was published already is published again.
type Replay struct {
	ID    uuid.UUID // of this replay of this event; required
	Mode  ReplayMode
	Group string // the consumer group of a reprocess, else empty
}

// flaw returns the header by which a replay breaks its rules, and how; empty when
// none does. The zero Replay is none, and keeps them. An unknown mode is an error and
// not ignored: to apply an event that was meant otherwise is worse than to keep it aside.
func (r Replay) flaw() (header, detail string) {
	switch {
	case r.Mode != "" && r.Mode != ReplayRedeliver && r.Mode != ReplayReprocess:
		return HeaderReplayMode, fmt.Sprintf("%.120q found, want redeliver or reprocess", string(r.Mode))
	case (r.ID == uuid.Nil) != (r.Mode == ""):
		return HeaderReplayID, "replay-id and replay-mode come together or not at all"
	case (r.Mode == ReplayReprocess) != (r.Group != ""):
		return HeaderReplayGroup, "goes with reprocess, and only with it"
	}
	return "", ""
}
