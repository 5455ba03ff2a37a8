package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/onceward/publisher"
)

// Sink publishes. [publisher.Publisher] and [publisher.Transactional] are the
// ones.
type Sink interface {
	// Publish hands one event over, and blocks while the sink is full. After a
	// [publisher.RouteError] or a [publisher.RecordError] nothing was handed
	// over, and others can be.
	Publish(ctx context.Context, ev publisher.Event) error
	// Failed is closed when the sink can go on no more; Err says why.
	Failed() <-chan struct{}
	Err() error
	// Close ends the sink. What was handed over and has not ended may or may
	// not have been written.
	Close() error
}

// mode is a way of publishing: when what was handed over has ended, and what
// may then be confirmed. The pump's goroutine calls it, but for status.
type mode interface {
	// handed: the sink took the step's event.
	handed(s *step) error
	// released: the sink took every letter that the step's control released.
	released(ctx context.Context, s *step) error
	// settle ends what is due at this time; paused says that the stream has
	// nothing more for now.
	settle(ctx context.Context, now time.Time, paused bool) error
	// wake returns when settle wants to be called again; zero: when there is
	// something.
	wake(now time.Time) time.Time
	// flush ends everything that was handed over.
	flush(ctx context.Context) error
	// ended is what a session that is over has ended, for the next one of this
	// process; zero when that is to be read elsewhere.
	ended(p *pipeline) (horizon, error)
	// status tells how far everything has ended, durably. Safe for concurrent
	// use.
	status() (status, error)
}

// idempotent is the mode in which Kafka acknowledges every event, and the
// checkpoint is kept in PostgreSQL only.
type idempotent struct {
	*books
	sink flusher
}

// flusher waits until everything handed over was acknowledged.
type flusher interface {
	Flush(ctx context.Context) error
}

func (*idempotent) handed(*step) error                            { return nil }
func (*idempotent) settle(context.Context, time.Time, bool) error { return nil }
func (*idempotent) wake(time.Time) time.Time                      { return time.Time{} }
func (m *idempotent) flush(ctx context.Context) error             { return m.sink.Flush(ctx) }

func (m *idempotent) released(ctx context.Context, s *step) error {
	if err := m.sink.Flush(ctx); err != nil {
		return fmt.Errorf("publish what control %s released: %w", s.it.Control.ID, err)
	}
	return m.end(s.tag)
}

// ended is whole transactions that were acknowledged, but for what is held. Of
// a retry that is held in the middle nobody knows which letters were.
func (m *idempotent) ended(p *pipeline) (horizon, error) {
	now, err := m.status()
	if err != nil {
		return horizon{}, err
	}
	passed, err := m.passed(p.lanes.tags())
	if err != nil {
		return horizon{}, err
	}
	heads := p.lanes.heads()
	for of, at := range heads {
		at.letter = 0
		heads[of] = at
	}
	return p.began.move(now.position, place{commit: passed}, heads), nil
}
