package stream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
)

// Source delivers the committed stream. [cdc.Reader] is the one.
type Source interface {
	// Next waits for items and returns all there are, in commit order. The
	// slice is valid until the next call, which is given it for reuse.
	Next(ctx context.Context, used []cdc.Item) ([]cdc.Item, error)
}

// pulse is the longest that the pump waits for the stream before it looks at
// everything else.
const pulse = time.Second

// Pump moves events from the source to the sink. Run is called by one goroutine,
// which owns everything here but the progress. What is embedded has the methods that a
// session calls it by.
type Pump struct {
	*progress
	output
	writing
	repair
	Hooks
	reading  reading
	letters  deadLetters
	held     held
	releases releases
	alarm    alarm
	log      *slog.Logger
}

func newPump(began ledger.Checkpoint, b *progress, log *slog.Logger) *Pump {
	p := &Pump{progress: b, log: log}
	p.reading = reading{progress: b, began: began, release: began.Release, cursor: began.Cursor,
		counted: func() int64 { return 0 }}
	p.output = output{commands: newCommands(), watch: newSinkWatch()}
	p.letters = deadLetters{progress: b, log: log}
	p.held = held{progress: b, out: &p.output, lanes: newLanes(), hooks: &p.Hooks, log: log,
		named: make(map[string]bool)}
	p.releases = releases{held: &p.held, reading: &p.reading, letters: &p.letters, p: p}
	p.repair = repair{p: p}
	p.Hooks = Hooks{Tell: func(Phase, error) {}, Holding: func(map[string]HeldRoute) {}, Lend: func(int) {}}
	return p
}

// Run hands over what the source delivers until either fails or ctx ends.
func (p *Pump) Run(ctx context.Context, source Source) error {
	defer p.alarm.stop()
	var batch []cdc.Item
	for {
		taken, err := p.await(ctx, source, batch)
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil // the source was told to stop
			}
			return err
		}
		if taken != nil {
			batch = taken
		}
		began := time.Now()
		if err := p.take(ctx, taken); err != nil {
			return err
		}
		p.releases.spent = time.Since(began) / drainShare
		if err := p.turn(ctx, len(taken) == 0); err != nil {
			return err
		}
	}
}

// await waits for items, but not beyond the time when something else is due;
// then it returns none.
func (p *Pump) await(ctx context.Context, source Source, used []cdc.Item) ([]cdc.Item, error) {
	limited := p.alarm.set(ctx, p.wake(time.Now()))
	batch, err := source.Next(limited, used)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && limited.Err() != nil:
		return nil, nil //nolint:nilerr // no items: the time was up
	}
	return batch, err
}

// wake returns when the pump has something to do though nothing is read.
func (p *Pump) wake(now time.Time) time.Time {
	at := now.Add(pulse)
	for _, other := range []time.Time{p.held.lanes.wake(), p.mode.wake(now), p.releases.wake(now)} {
		if !other.IsZero() && other.Before(at) {
			at = other
		}
	}
	return at
}

// take deals with a batch.
func (p *Pump) take(ctx context.Context, batch []cdc.Item) error {
	r := &p.reading
	if err := p.whilePaused(ctx); err != nil {
		return err
	}
	if err := r.complete(ctx, batch); err != nil {
		return err
	}
	if err := r.read(batch); err != nil {
		return err
	}
	if fault.Is(fault.Reorder) {
		reorder(batch)
	}
	if fault.Is(fault.Alter) {
		alter(batch)
	}
	now := time.Now()
	for i := range r.steps {
		r.steps[i].more, r.steps[i].late = i+1 < len(r.steps), now.Sub(r.steps[i].it.CommitTime)
		if err := p.deal(ctx, &r.steps[i]); err != nil {
			return err
		}
		r.next = r.steps[i].at.After()
		r.left = r.steps[i+1:]
		if err := p.settleAmid(ctx, i); err != nil {
			return err
		}
	}
	r.next = r.at
	r.mark()
	return nil
}

// reorder is [fault.Reorder] on a batch.
func reorder(batch []cdc.Item) {
	for i := 1; i < len(batch); i += 2 {
		if batch[i-1].Row != nil && batch[i].Row != nil {
			batch[i-1].Row, batch[i].Row = batch[i].Row, batch[i-1].Row
		}
	}
}

// alter is [fault.Alter] on a batch.
func alter(batch []cdc.Item) {
	for i := range batch {
		if batch[i].Row != nil && batch[i].Row.Seq%100 == 0 {
			batch[i].Row.Payload = []byte(`{}`)
		}
	}
}

// turn does what is due beside the stream: what waits is tried again, oldest
// first, and what was handed over is settled. paused says that the stream has
// nothing more for now.
func (p *Pump) turn(ctx context.Context, paused bool) error {
	if p.held.lanes.any() || p.releases.current != nil {
		if err := p.releases.turn(ctx); err != nil {
			return err
		}
	}
	p.held.show(time.Now())
	return p.settle(ctx, paused)
}

// settle ends what is due, letters first: the next place is behind them. While
// an operator has the relay paused, it is paused behind that.
func (p *Pump) settle(ctx context.Context, paused bool) error {
	if err := p.letters.write(ctx); err != nil {
		return err
	}
	if p.held.lanes.toWrite(time.Now()) {
		if err := p.held.write(ctx); err != nil {
			return err
		}
	}
	if err := p.mode.settle(ctx, time.Now(), paused); err != nil {
		return err
	}
	if err := p.letters.store.Settle(ctx, p.mode.durable().Order); err != nil {
		return err
	}
	p.counts.ParkedNow(p.letters.store.ParkedCount())
	return p.whilePaused(ctx)
}

// settleAmid settles behind each 64th of many, and behind one that makes it due: a long
// batch or page is no reason to be late.
func (p *Pump) settleAmid(ctx context.Context, i int) error {
	if i%64 != 63 && !p.mode.full() {
		return nil
	}
	return p.settle(ctx, false)
}

// whilePaused returns when no operator has the relay paused. A session that begins so
// publishes nothing before.
func (p *Pump) whilePaused(ctx context.Context) error {
	if !p.Commands().Paused {
		return nil
	}
	p.log.WarnContext(ctx, "paused by an operator")
	p.Tell(phasePaused, nil)
	for p.Commands().Paused {
		if err := p.pause(ctx); err != nil {
			return err
		}
	}
	p.log.InfoContext(ctx, "resumed by an operator")
	p.Tell(phaseStreams, nil)
	return nil
}

// Flush ends everything that was handed over, and knows it then: the pump may have
// returned in the middle of a batch. The pump has returned.
func (p *Pump) Flush(ctx context.Context) error {
	if err := p.letters.write(ctx); err != nil {
		return err
	}
	if err := p.held.write(ctx); err != nil {
		return err
	}
	if err := p.mode.flush(ctx); err != nil {
		return err
	}
	p.reading.mark()
	return nil
}

// Conclude writes down everywhere what the last checkpoint of a graceful stop has ended:
// it would be said to wait, or to be retried, until the next start. It comes after
// [Pump.Flush] and that checkpoint.
func (p *Pump) Conclude(ctx context.Context) error {
	if p.releases.current != nil {
		if err := p.releases.current.settled(ctx); err != nil {
			return err
		}
	}
	if err := p.letters.store.Settle(ctx, p.mode.durable().Order); err != nil {
		return err
	}
	return p.keepPlace(ctx)
}

// alarm is a context that ends at a time, kept for as long as that time is not
// too late: most waits for the stream end before.
type alarm struct {
	ctx    context.Context //nolint:containedctx // it is the alarm
	cancel context.CancelFunc
	at     time.Time
}

// set returns a context that ends at the time or before.
func (a *alarm) set(ctx context.Context, at time.Time) context.Context {
	if a.ctx != nil && a.ctx.Err() == nil && !at.Before(a.at) {
		return a.ctx
	}
	a.stop()
	a.ctx, a.cancel = context.WithDeadline(ctx, at)
	a.at = at
	return a.ctx
}

func (a *alarm) stop() {
	if a.cancel != nil {
		a.cancel()
	}
}
