package consumer

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
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

// effectOf is the item of an effect. Within a delivery that is about its event,
// whatever the handler made of its copy.
func (p *Processor) effectOf(ev Event, run *running) *item {
	if run != nil {
		ev = run.event
	}
	return p.newItem(ev)
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
	q := statement.On(tx)
	if l.run != nil {
		it.accept(l.run.event)
	} else if err := p.look(ctx, q, it); err != nil {
		return false, err
	} else if !it.fresh() {
		return false, l.refuse(ctx, tx)
	}
	event, err := encodeEvent(it.ev)
	if err != nil {
		return false, err
	}
	l.TakenAt = time.Now()
	row, err := q.ClaimFence(ctx, consumerdb.ClaimFenceParams{
		EventID: it.ev.Key.UUID(), ConsumerGroup: p.group, Name: l.Name, Owner: newOwner(), Lease: consumerdb.Interval(l.Length),
		RequestFingerprint: it.fingerprint[:], ProviderKeyTtl: ttl(providerKeyTTL), Alone: l.run == nil, Event: string(event),
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		if err := p.effectThere(ctx, q, it, l.Name, false); err != nil || l.run != nil {
			return false, err
		}
		return false, l.endAlone(ctx, tx) // begun within a delivery that did not end
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
	q := statement.On(tx)
	if err := l.firstResult(ctx, q); err != nil {
		return err
	}
	if err := l.processor.remember(ctx, q, []*item{l.item}); err != nil {
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
	row, err := q.FindFence(ctx, consumerdb.FindFenceParams{EventID: l.item.ev.Key.UUID(), ConsumerGroup: l.processor.group, Name: l.Name})
	if err == nil {
		l.item.claim.Result = row.Result
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// accept makes the event one that its delivery has judged.
func (it *item) accept(judged Event) {
	it.plan.late, it.plan.again = judged.Late, judged.Unprotected
	it.claim = Claim{Outcome: Processed, Late: judged.Late, Unprotected: judged.Unprotected}
}

// makeEffect begins an effect that is a transaction of this database. What the
// item's claim says is what became of the effect.
func (p *Processor) makeEffect(ctx context.Context, q statement.Queries, it *item, run *running, name string) error {
	if name == "" || !isText(name) {
		return fmt.Errorf("%w: name %q of an effect: want text", ErrEvent, name)
	}
	event, err := encodeEvent(it.ev)
	if err != nil {
		return err
	}
	it.accept(run.event)
	row, err := q.MakeEffect(ctx, consumerdb.MakeEffectParams{
		EventID: it.ev.Key.UUID(), ConsumerGroup: p.group, Name: name, Owner: newOwner(), RequestFingerprint: it.fingerprint[:], Event: string(event),
	})
	switch {
	case sqlstate.Is(err, "55P03"):
		return ErrInProgress
	case err != nil:
		return fmt.Errorf("begin: %w", err)
	case row.Made == 0:
		return p.effectThere(ctx, q, it, name, true)
	}
	return nil
}

// effectThere says why an effect could not be begun: it is complete, or another
// attempt has it, or the request is another one. A transaction takes nothing over:
// a lease that has run out says that Fence had begun the effect, by this name.
func (p *Processor) effectThere(ctx context.Context, q statement.Queries, it *item, name string, inTx bool) error {
	row, err := q.FindFence(ctx, consumerdb.FindFenceParams{EventID: it.ev.Key.UUID(), ConsumerGroup: p.group, Name: name})
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
	p, q, ev := l.processor, statement.On(tx), l.item.ev
	ev.redriven = true
	it := p.newItem(ev)
	if err := p.claimOne(ctx, q, it); err != nil {
		return err
	}
	if it.claim.Outcome == Mismatch {
		return it.claim.Mismatch
	}
	if it.fresh() && len(result) > 0 {
		if err := p.complete(ctx, q, ev, result, it.claim.ids); err != nil {
			return err
		}
	}
	_, err := p.endEffects(ctx, q, it)
	return err
}

// endAlone ends the event of an effect that is complete already.
func (l *lease) endAlone(ctx context.Context, tx pgx.Tx) error {
	if err := l.claimAlone(ctx, tx, l.item.claim.Result); err != nil {
		return err
	}
	return commit(ctx, tx)
}

// newOwner names an attempt for operators; the epoch is what counts.
func newOwner() string { return rand.Text() }

// ttl is NULL for a provider that never forgets.
func ttl(d time.Duration) pgtype.Interval {
	if d == Forever {
		return pgtype.Interval{}
	}
	return consumerdb.Interval(d)
}
