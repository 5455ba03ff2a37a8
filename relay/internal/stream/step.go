package stream

import (
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/ledger"
)

// step is one item that has to be dealt with, and where it stands.
type step struct {
	it  *cdc.Item
	at  ledger.Place // letter counts those of a retry that are out
	tag uint64       // in the ledger

	more     bool          // another step comes at once
	late     time.Duration // since its commit
	again    bool          // a control that had acted when the session began
	released bool          // it waited, and is read back from the table

	release   *retry      // of a control that has acted
	letter    ledger.Lane // of a retry of one letter: what that letter waits behind
	repairing bool        // by the repair of a gap, from the table
	repair    uuid.UUID   // the gap as its record names it; else zero
}

// lane returns the step's. An edit or a discard of one letter has none: it acts
// at once, whatever is held.
func (s *step) lane() ledger.Lane {
	switch it := s.it; {
	case it.Kind == cdc.KindControl && it.Control.LetterID != uuid.Nil:
		return s.letter
	case it.Kind == cdc.KindControl:
		return ledger.Lane{Namespace: it.Control.Namespace, AggregateType: it.Control.AggregateType}
	case it.Kind == cdc.KindReplay && it.Replay.Topic != "":
		return ledger.Lane{Topic: it.Replay.Topic}
	default:
		return ledger.Lane{Namespace: it.Row.Namespace, AggregateType: it.Row.AggregateType}
	}
}

// first is the event type of what the step publishes first, if that is known yet.
func (s *step) first() (eventType string, known bool) {
	switch {
	case s.release != nil && len(s.release.page) > 0:
		return s.release.page[0].Row.Type, true
	case s.it.Row != nil:
		return s.it.Row.Type, true
	}
	return "", false
}

// name is the key of the step's event, or says which control it is.
func (s *step) name() string {
	if s.it.Kind == cdc.KindControl {
		return "control " + s.it.Control.ID.String()
	}
	return label.Key(s.it.Row)
}

// id is what a letter of the step would have.
func (s *step) id() uuid.UUID {
	if s.it.Replay != nil {
		return s.it.Replay.ID
	}
	return s.it.Row.ID
}
