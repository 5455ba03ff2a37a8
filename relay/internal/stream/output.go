package stream

import (
	"context"
	"math"
	"strconv"

	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/record"
)

// output is the way to Kafka: the sink, the mode in which what it was handed has
// ended, and what an operator paused of it.
type output struct {
	*commands
	watch   *sinkWatch
	sink    Sink
	mode    mode
	routing *Routing

	commit   pglogrepl.LSN // start of the commit whose text is position
	position string        // most transactions have many rows
}

// HasEnded tells how far everything has ended, durably. Safe for concurrent use.
func (o *output) HasEnded() (Status, error) { return o.mode.status() }

// Leaves is what the next session of this process begins with; zero when that is to
// be read elsewhere.
func (o *output) Leaves() (ledger.Checkpoint, error) { return o.mode.ended() }

// Owed is what Kafka owes an answer about. Safe for concurrent use.
func (o *output) Owed() Owed { return o.watch.look() }

// FlushSink ends what was handed over, without what is to be written: for
// [fault.NoEpoch].
func (o *output) FlushSink(ctx context.Context) error { return o.mode.flush(ctx) }

// pausedRoute returns why an event waits for the operator who paused its route; nil
// when it does not.
func (o *output) pausedRoute(ev publisher.Event) *publisher.RouteError {
	if paused := o.Commands().Routes; len(paused) > 0 {
		return o.routing.pausedBy(ev, paused)
	}
	return nil
}

// usable asks by one event. Where nobody knows what the first one is, the
// release finds out.
func (o *output) usable(ctx context.Context, ev publisher.Event) error {
	if ev.Row == nil {
		return nil
	}
	if paused := o.pausedRoute(ev); paused != nil {
		return paused
	}
	return o.sink.Usable(ctx, ev)
}

// event is what the sink is handed of a step.
func (o *output) event(s *step) publisher.Event {
	if s.at.Commit != o.commit || o.position == "" {
		o.commit, o.position = s.at.Commit, positionText(s.at.Commit)
	}
	ev := publisher.Event{
		Row: s.it.Row, Tag: s.tag, Position: o.position, RepairID: s.repair, More: s.more, Late: s.late,
	}
	if r := s.it.Replay; r != nil {
		ev.Topic = r.Topic
		ev.Replay = &record.Replay{ID: r.ID, Mode: record.ReplayMode(r.Mode), Group: r.Group}
	}
	return ev
}

// positionText is the position as PostgreSQL writes it, with one allocation.
func positionText(at pglogrepl.LSN) string {
	var buf [17]byte
	text := strconv.AppendUint(buf[:0], uint64(at>>32), 16)
	text = append(text, '/')
	text = strconv.AppendUint(text, uint64(at&math.MaxUint32), 16)
	for i, c := range text {
		if c >= 'a' {
			text[i] = c - 'a' + 'A'
		}
	}
	return string(text)
}
