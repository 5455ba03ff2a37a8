package stream

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/publisher"
)

// Sink publishes. [publisher.Publisher] and [publisher.Transactional] are the
// ones.
type Sink interface {
	// Publish hands one event over, and blocks while the sink is full. After a
	// [publisher.RouteError] or a [record.RowError] nothing was handed
	// over, and others can be.
	Publish(ctx context.Context, ev publisher.Event) error
	// Usable reports by a [publisher.RouteError] that an event like this one could
	// not be handed over. Of its row only the names count.
	Usable(ctx context.Context, ev publisher.Event) error
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
	// lettersEnded returns when the progress may say that the letters handed over have
	// ended: they have no tags, and hold up their control until then.
	lettersEnded(ctx context.Context) error
	// settle ends what is due at this time; paused says that the stream has
	// nothing more for now.
	settle(ctx context.Context, now time.Time, paused bool) error
	// full reports whether settle is due whatever the time.
	full() bool
	// wake returns when settle wants to be called again; zero: when there is
	// something.
	wake(now time.Time) time.Time
	// flush ends everything that was handed over.
	flush(ctx context.Context) error
	// ended is what a session that is over has ended, for the next one of this
	// process; zero when that is to be read elsewhere.
	ended() (ledger.Checkpoint, error)
	// durable is the last checkpoint, where it counts.
	durable() ledger.Checkpoint
	// status tells how far everything has ended, durably. Safe for concurrent
	// use.
	status() (Status, error)
}

// idempotent is the mode in which Kafka acknowledges every event, and the
// checkpoint is kept in PostgreSQL only.
type idempotent struct {
	*progress
	sink  Flusher
	watch *sinkWatch
	saved *atomic.Pointer[ledger.Checkpoint] // as the checkpoint's goroutine wrote it
}

// Flusher is a sink that can wait until everything handed over was acknowledged.
type Flusher interface {
	Sink
	Flush(ctx context.Context) error
}

func (*idempotent) full() bool { return false }

func (m *idempotent) handed(s *step) error {
	if s.tag == noTag {
		m.owe(1)
	}
	return nil
}

func (*idempotent) settle(context.Context, time.Time, bool) error { return nil }
func (*idempotent) wake(time.Time) time.Time                      { return time.Time{} }
func (m *idempotent) flush(ctx context.Context) error             { return m.sink.Flush(ctx) }

// lettersEnded waits for nothing but the letters: another partition may take nothing.
func (m *idempotent) lettersEnded(ctx context.Context) error {
	m.watch.enter("released letters are to be acknowledged")
	defer m.watch.leave()
	for m.owe(0) > 0 {
		select {
		case <-m.answered:
		case <-m.sink.Failed():
			return m.sink.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (m *idempotent) durable() ledger.Checkpoint { return *m.saved.Load() }

// ended is what was acknowledged, as far as there is no hole in it.
func (m *idempotent) ended() (ledger.Checkpoint, error) {
	now, err := m.status()
	return ledger.Checkpoint{Order: now.Position, Reach: now.Reach}, err
}
