package consumer

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onceward/onceward/consumer/internal/fence"
	"github.com/onceward/onceward/consumer/internal/sqlstate"
	"github.com/onceward/onceward/consumer/internal/statement"
	"github.com/onceward/onceward/consumer/internal/transaction"
	"github.com/onceward/onceward/internal/consumerdb"
)

// lease is one attempt at a fence, with the event that it is about.
type lease struct {
	fence.Lease

	processor *Processor
	item      *item
	run       *running // nil: the effect is the event
}

func newLease(p *Processor, ev Event, run *running, name string, length time.Duration) *lease {
	it := p.effectOf(ev, run)
	hold := fence.Lease{DB: p.db, Event: it.ev.Key.UUID(), Group: p.group, Name: name, Length: length}
	return &lease{Lease: hold, processor: p, item: it, run: run}
}

// take begins the fence or takes it over, in a transaction of its own, which is
// committed before the provider is called. What the item's claim says by then is
// what became of the event, or of this effect of it. Stale: the provider may have
// forgotten the key.
func (l *lease) take(ctx context.Context, providerKeyTTL time.Duration) (stale bool, err error) {
	p, it := l.processor, l.item
	tx, err := p.windows.begin(ctx)
	if err != nil {
		return false, err
	}
	defer transaction.Rollback(ctx, tx)
	defer func() { err = judge(ctx, tx, err) }()
	f := fences{claimant{p, statement.On(tx)}}
	if l.run != nil {
		it.accept(l.run.event)
	} else if err := f.look(ctx, it); err != nil {
		return false, err
	} else if !it.fresh() {
		return false, l.refuse(ctx, tx)
	}
	event, err := encodeEvent(it.ev)
	if err != nil {
		return false, err
	}
	l.TakenAt = time.Now()
	row, err := f.q.ClaimFence(ctx, consumerdb.ClaimFenceParams{
		// Owner names an attempt for operators; the epoch is what counts.
		EventID: it.ev.Key.UUID(), ConsumerGroup: p.group, Name: l.Name, Owner: rand.Text(),
		Lease:              consumerdb.Interval(l.Length),
		RequestFingerprint: it.fingerprint[:], ProviderKeyTtl: ttl(providerKeyTTL), Alone: l.run == nil,
		Event: string(event),
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		if err := f.effectThere(ctx, it, l.Name, false); err != nil || l.run != nil {
			return false, err
		}
		if err := l.claimAlone(ctx, tx, it.claim.Result); err != nil { // begun within a delivery that did not end
			return false, err
		}
		return false, commit(ctx, tx)
	case sqlstate.Is(err, "55P03"):
		return false, ErrInProgress
	case err != nil:
		return false, fmt.Errorf("begin: %w", err)
	}
	l.Epoch = row.Epoch
	return row.Stale, commit(ctx, tx)
}

// refuse ends the transaction of an event that is not to be applied.
func (l *lease) refuse(ctx context.Context, tx pgx.Tx) error {
	c := claimant{l.processor, statement.On(tx)}
	if err := l.firstResult(ctx, c.q); err != nil {
		return err
	}
	if err := c.remember(ctx, []*item{l.item}); err != nil {
		return err
	}
	return commit(ctx, tx)
}

// firstResult finds the result of an effect whose event was ended by a delivery,
// which stores none in the claim.
func (l *lease) firstResult(ctx context.Context, q statement.Queries) error {
	if l.item.claim.Outcome != Duplicate || l.item.claim.Result != nil {
		return nil
	}
	row, err := q.FindFence(ctx, consumerdb.FindFenceParams{EventID: l.item.ev.Key.UUID(),
		ConsumerGroup: l.processor.group, Name: l.Name})
	if err == nil {
		l.item.claim.Result = row.Result
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// fences are those of an event, in one transaction of a member that may claim it.
type fences struct{ claimant }

// look finds out, without a claim, what the claim of an event would find. An
// event that is open was accepted, and goes on.
func (f fences) look(ctx context.Context, it *item) error {
	effects, err := f.effects(ctx, it)
	if err != nil {
		return err
	}
	var ended *consumerdb.EffectsOfEventRow
	for i, e := range effects {
		if !e.Open {
			if e.CompletedAt != nil {
				ended = &effects[i]
			}
			continue
		}
		if !bytes.Equal(e.RequestFingerprint, it.fingerprint[:]) {
			it.claim = otherContent(it, e)
			return nil
		}
		it.open = it.open || !e.Stuck
		it.ev.accepted, it.begun = true, true
	}
	first, err := f.plans(ctx, []*item{it})
	if err != nil {
		return err
	}
	it.passed = it.plan.passed
	stored, err := f.stored(ctx, first)
	if err != nil {
		return err
	}
	switch claimed := len(stored) > 0; {
	case !claimed && len(it.plan.ids) == 0 && ended != nil && it.plan.outcome != DeadLettered:
		// Its effects outlive its claim.
		it.claim = Claim{Outcome: Duplicate, AppliedAt: *ended.CompletedAt}
		if !bytes.Equal(ended.RequestFingerprint, it.fingerprint[:]) {
			it.claim = otherContent(it, *ended)
		}
		return nil
	case !claimed && len(it.plan.ids) == 0 && !it.plan.bare():
		it.claim = it.plan.refusal()
		return nil
	case claimed:
		f.found(it, stored)
		goOn := it.claim.Outcome == DeadLettered && it.ev.redriven || it.claim.Outcome == Duplicate && it.open
		if !goOn {
			return nil
		}
	default:
		if err := f.processor.windows.covered(ctx, f.q, it); err != nil {
			return err
		}
	}
	it.claim = Claim{Outcome: Processed, Late: it.plan.late, Unprotected: it.plan.again}
	it.ev.Late, it.ev.Unprotected, it.ev.accepted = it.plan.late, it.plan.again, true
	return nil
}

// otherContent is the claim of an event whose key has effects of another one.
func otherContent(it *item, e consumerdb.EffectsOfEventRow) Claim {
	c := Claim{Outcome: Mismatch, Mismatch: &MismatchError{Key: it.ev.Key, Given: it.fingerprint,
		AppliedAt: e.CreatedAt}}
	copy(c.Mismatch.Stored[:], e.RequestFingerprint)
	return c
}

func (f fences) effects(ctx context.Context, it *item) ([]consumerdb.EffectsOfEventRow, error) {
	effects, err := f.q.EffectsOfEvent(ctx, consumerdb.EffectsOfEventParams{EventID: it.ev.Key.UUID(),
		ConsumerGroup: f.processor.group})
	if err != nil {
		return nil, fmt.Errorf("look for effects of the event: %w", err)
	}
	return effects, nil
}

// isOpen reports whether an effect of the event was begun, and nothing has ended
// it.
func (f fences) isOpen(ctx context.Context, it *item) (bool, error) {
	effects, err := f.effects(ctx, it)
	return slices.ContainsFunc(effects, func(e consumerdb.EffectsOfEventRow) bool { return e.Open && !e.Stuck }), err
}

// notCalled is why an effect of an event that has ended waits.
const notCalled = "the handler did not call this fence; if the program does not know it any more, say with " + reconcile + " whether the effect happened"

// endEffects ends the effects of an event, and returns how many are PENDING still.
func (f fences) endEffects(ctx context.Context, it *item) (left int64, err error) {
	at := it.ev.Source
	if it.redrive != nil {
		at = it.redrive.source() // which may be aside
	}
	left, err = f.q.EndEffects(ctx, consumerdb.EndEffectsParams{
		EventID: it.ev.Key.UUID(), ConsumerGroup: f.processor.group, Keep: f.processor.windows.effectsKept(it.ev.Type),
		Why:   notCalled,
		Again: it.id != it.ev.Key.UUID(), Topic: at.Topic, KafkaPartition: at.Partition, KafkaOffset: at.Offset,
	})
	if err != nil {
		return 0, fmt.Errorf("end the effects: %w", err)
	}
	return left, nil
}

// makeEffect begins an effect that is a transaction of this database. What the
// item's claim says is what became of the effect.
func (f fences) makeEffect(ctx context.Context, it *item, run *running, name string) error {
	if name == "" || !consumerdb.IsText(name) {
		return fmt.Errorf("%w: name %q of an effect: want text", ErrEvent, name)
	}
	event, err := encodeEvent(it.ev)
	if err != nil {
		return err
	}
	it.accept(run.event)
	row, err := f.q.MakeEffect(ctx, consumerdb.MakeEffectParams{
		EventID: it.ev.Key.UUID(), ConsumerGroup: f.processor.group, Name: name, Owner: rand.Text(),
		RequestFingerprint: it.fingerprint[:], Event: string(event),
	})
	switch {
	case sqlstate.Is(err, "55P03"):
		return ErrInProgress
	case err != nil:
		return fmt.Errorf("begin: %w", err)
	case row.Made == 0:
		return f.effectThere(ctx, it, name, true)
	}
	return nil
}

// effectThere says why an effect could not be begun: it is complete, or another
// attempt has it, or the request is another one. A transaction takes nothing over:
// a lease that has run out says that Fence had begun the effect, by this name.
func (f fences) effectThere(ctx context.Context, it *item, name string, inTx bool) error {
	row, err := f.q.FindFence(ctx, consumerdb.FindFenceParams{EventID: it.ev.Key.UUID(),
		ConsumerGroup: f.processor.group, Name: name})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return &infrastructureError{errors.New("the fence that was in the way is gone")}
	case err != nil:
		return fmt.Errorf("read the fence that is there: %w", err)
	case !bytes.Equal(row.RequestFingerprint, it.fingerprint[:]):
		mismatch := &MismatchError{Key: it.ev.Key, Given: it.fingerprint, AppliedAt: row.CreatedAt}
		copy(mismatch.Stored[:], row.RequestFingerprint)
		return mismatch
	case row.CompletedAt == nil && row.Expired && inTx:
		return &HandlerError{Err: fmt.Errorf("a Fence of the name %q was begun, and nobody knows whether its effect was made; say so with "+reconcile+", or give Do another name", name)}
	case row.CompletedAt == nil:
		return fmt.Errorf("%w: %s holds the lease until %s", ErrInProgress, row.Owner, row.LeaseUntil.UTC().Format(time.RFC3339))
	}
	it.claim = Claim{Outcome: Duplicate, AppliedAt: *row.CompletedAt, Result: row.Result}
	return nil
}

// release gives the lease back.
func (l *lease) release(ctx context.Context) error {
	if err := l.Release(ctx); err != nil {
		return &infrastructureError{err}
	}
	return nil
}

// complete marks the fence, in the given transaction. The effect that is the event
// ends it: the event was accepted when the fence began, and its effect is made;
// neither a floor that has passed it since nor an operator who has given it up
// changes that.
func (l *lease) complete(ctx context.Context, tx pgx.Tx, result []byte) error {
	err := l.Complete(ctx, statement.On(tx).Queries, result, l.run == nil)
	if err == nil && l.run == nil {
		err = l.claimAlone(ctx, tx, result)
	}
	return err
}

// claimAlone ends the event that the effect is.
func (l *lease) claimAlone(ctx context.Context, tx pgx.Tx, result []byte) error {
	f, ev := fences{claimant{l.processor, statement.On(tx)}}, l.item.ev
	ev.redriven = true
	it := l.processor.newItem(ev)
	if err := f.claimOne(ctx, it); err != nil {
		return err
	}
	if it.claim.Outcome == Mismatch {
		return it.claim.Mismatch
	}
	if it.fresh() && len(result) > 0 {
		if err := f.complete(ctx, ev, result, it.claim.ids); err != nil {
			return err
		}
	}
	_, err := f.endEffects(ctx, it)
	return err
}

// ttl is NULL for a provider that never forgets.
func ttl(d time.Duration) pgtype.Interval {
	if d == Forever {
		return pgtype.Interval{}
	}
	return consumerdb.Interval(d)
}
