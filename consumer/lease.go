package consumer

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onceward/onceward/internal/consumerdb"
)

// lease is one attempt's hold on a fence. The invariant: complete succeeds for
// at most one epoch, because a takeover raises the epoch in the row that
// complete has to find.
type lease struct {
	processor *Processor
	event     Event
	name      string
	length    time.Duration
	epoch     int64
	takenAt   time.Time // before the statement that began or renewed it
}

// fenceState is what take found.
type fenceState struct {
	complete    bool
	completedAt time.Time
	result      []byte
	stale       bool // the provider may have forgotten the key
	late        bool
	refused     Claim // DeadLettered, Replay or FromFuture: nothing may be done
}

func newLease(p *Processor, ev Event, name string, length time.Duration) *lease {
	return &lease{processor: p, event: ev, name: name, length: length}
}

// take begins the fence or takes it over, in a transaction of its own, which is
// committed before the provider is called.
func (l *lease) take(ctx context.Context, providerKeyTTL time.Duration) (state fenceState, err error) {
	p := l.processor
	tx, err := p.begin(ctx)
	if err != nil {
		return state, err
	}
	defer rollback(ctx, tx)
	defer func() { err = judge(ctx, tx, err) }()
	q := consumerdb.New(tx)
	if state.refused, state.late, err = l.probe(ctx, tx, q); err != nil || state.refused.Outcome != 0 {
		return state, err
	}
	event, err := encodeEvent(l.event)
	if err != nil {
		return state, err
	}
	given := FingerprintOf(l.event)
	l.takenAt = time.Now()
	row, err := q.ClaimFence(ctx, consumerdb.ClaimFenceParams{
		EventID: l.event.Key.UUID(), ConsumerGroup: p.group, Name: l.name, Owner: newOwner(), Lease: interval(l.length),
		RequestFingerprint: given[:], ProviderKeyTtl: ttl(providerKeyTTL), Event: event,
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return l.look(ctx, q, given)
	case hasCode(err, "55P03"):
		return state, ErrInProgress
	case err != nil:
		return state, fmt.Errorf("begin: %w", err)
	}
	l.epoch, state.stale = row.Epoch, row.Stale
	return state, commit(ctx, tx)
}

// probe finds out before the effect what would keep the claim from being written
// after it: no partition for the key's time, the key of another event, an event
// that was given up or lies outside its window. A fence that was begun shows
// that its event lay inside then, and goes on.
func (l *lease) probe(ctx context.Context, tx pgx.Tx, q *consumerdb.Queries) (refused Claim, late bool, err error) {
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		return Claim{}, false, fmt.Errorf("begin: %w", err)
	}
	claim, err := l.processor.claim(ctx, savepoint, l.event)
	switch {
	case err != nil:
		return Claim{}, false, err
	case claim.Outcome == Mismatch:
		return Claim{}, false, claim.Mismatch
	case claim.Outcome == InProgress:
		return Claim{}, false, ErrInProgress
	}
	if err := savepoint.Rollback(ctx); err != nil {
		return Claim{}, false, fmt.Errorf("begin: %w", err)
	}
	if claim.Outcome == DeadLettered {
		return claim, claim.Late, nil
	}
	if claim.Outcome == Replay || claim.Outcome == FromFuture {
		_, err := q.FindFence(ctx, consumerdb.FindFenceParams{EventID: l.event.Key.UUID(), ConsumerGroup: l.processor.group, Name: l.name})
		if errors.Is(err, pgx.ErrNoRows) {
			return claim, claim.Late, nil
		}
		if err != nil {
			return Claim{}, false, fmt.Errorf("look for the fence: %w", err)
		}
	}
	return Claim{}, claim.Late, nil
}

// look says why the fence could not be taken.
func (l *lease) look(ctx context.Context, q *consumerdb.Queries, given Fingerprint) (fenceState, error) {
	row, err := q.FindFence(ctx, consumerdb.FindFenceParams{EventID: l.event.Key.UUID(), ConsumerGroup: l.processor.group, Name: l.name})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fenceState{}, &infrastructureError{errors.New("the fence that was in the way is gone")}
	case err != nil:
		return fenceState{}, fmt.Errorf("read the fence that is there: %w", err)
	case !bytes.Equal(row.RequestFingerprint, given[:]):
		mismatch := &MismatchError{Key: l.event.Key, Given: given, AppliedAt: row.CreatedAt}
		copy(mismatch.Stored[:], row.RequestFingerprint)
		return fenceState{}, mismatch
	case row.CompletedAt == nil:
		return fenceState{}, fmt.Errorf("%w: %s holds the lease until %s", ErrInProgress, row.Owner, row.LeaseUntil.UTC().Format(time.RFC3339))
	}
	return fenceState{complete: true, completedAt: *row.CompletedAt, result: row.Result}, nil
}

// keep renews the lease at a third of its length until stop is called, which
// waits for the heartbeat to end. The context it returns ends with ErrLeaseLost
// as soon as another attempt may have taken over.
func (l *lease) keep(ctx context.Context) (attempt context.Context, stop func()) {
	attempt, lose := context.WithCancelCause(ctx)
	beats, end := context.WithCancel(attempt)
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(l.length / 3)
		defer tick.Stop()
		for {
			select {
			case <-beats.Done():
				return
			case <-tick.C:
				if !l.renew(beats) {
					lose(ErrLeaseLost)
					return
				}
			}
		}
	})
	return attempt, func() {
		end()
		group.Wait()
		lose(nil)
	}
}

// renew reports whether the lease is still surely ours. A heartbeat that fails
// for another reason is tried again until the lease has run out by our clock,
// counted from before the last statement that succeeded.
func (l *lease) renew(ctx context.Context) bool {
	began := time.Now()
	until := l.takenAt.Add(l.length)
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	n, err := consumerdb.New(l.processor.db).RenewFence(ctx, consumerdb.RenewFenceParams{
		Lease: interval(l.length), EventID: l.event.Key.UUID(), ConsumerGroup: l.processor.group, Name: l.name, Epoch: l.epoch,
	})
	if err == nil && n == 1 {
		l.takenAt = began
		return true
	}
	return err != nil && time.Now().Before(until)
}

// release gives the lease back after a failure, so that the next attempt need
// not wait. It is a courtesy: when it fails, the lease runs out by itself.
func (l *lease) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_, err := consumerdb.New(l.processor.db).ReleaseFence(ctx, consumerdb.ReleaseFenceParams{
		EventID: l.event.Key.UUID(), ConsumerGroup: l.processor.group, Name: l.name, Epoch: l.epoch,
	})
	if err != nil {
		return &infrastructureError{fmt.Errorf("give the lease back: %w", err)}
	}
	return nil
}

// complete marks the fence and claims the event, in the given transaction. The
// claim is there already when the event has more effects than one. The event was
// accepted when the fence began, and its effect is made: neither a floor that
// has passed it since nor an operator who has given it up changes that.
func (l *lease) complete(ctx context.Context, tx pgx.Tx, result []byte) error {
	p, q := l.processor, consumerdb.New(tx)
	n, err := q.CompleteFence(ctx, consumerdb.CompleteFenceParams{
		Result: result, EventID: l.event.Key.UUID(), ConsumerGroup: p.group, Name: l.name, Epoch: l.epoch,
		Keep: interval(2*p.windowOf(l.event.Type) + 24*time.Hour),
	})
	if err != nil {
		return fmt.Errorf("complete: %w", err)
	}
	if n == 0 {
		return ErrLeaseLost
	}
	accepted := l.event
	accepted.redriven = true
	claim, err := p.claim(ctx, tx, accepted)
	switch {
	case err != nil:
		return err
	case claim.Outcome == Mismatch:
		return claim.Mismatch
	case claim.Outcome == InProgress:
		return ErrInProgress
	case claim.Outcome == Processed:
		return p.complete(ctx, q, l.event, result, claim.ids)
	}
	return nil
}

// newOwner names an attempt for operators; the epoch is what counts.
func newOwner() string { return rand.Text() }

func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

// ttl is NULL for a provider that never forgets.
func ttl(d time.Duration) pgtype.Interval {
	if d == 0 {
		return pgtype.Interval{}
	}
	return interval(d)
}
