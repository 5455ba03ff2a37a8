package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/internal/fence"
	"github.com/onceward/onceward/consumer/internal/transaction"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/outbox"
)

// Errors of [Fence].
var (
	// ErrInProgress: another delivery holds the claim or the fence's lease. Do
	// not acknowledge the message; deliver it again later.
	ErrInProgress = errors.New("another delivery of the event is in progress")
	// ErrLeaseLost: another attempt has taken the fence over, and will make or
	// has made the effect. Nothing of this attempt was committed.
	ErrLeaseLost = fence.ErrLeaseLost
	// ErrFenceStale: an earlier attempt may have made the effect, and the
	// provider may have forgotten its key since, so that to call it again could
	// make the effect twice. Nothing is called until somebody says what happened,
	// with `outboxctl fences reconcile`.
	ErrFenceStale = errors.New("the fence is older than the provider keeps its key")
)

// reconcile is the command that says what became of an effect.
const reconcile = "`outboxctl fences reconcile KEY --group GROUP --name NAME --made --reason \"…\"` (or --not-made)"

// defaultLease of an [Effect].
const defaultLease = 30 * time.Second

// defaultProviderKeyTTL of an [Effect]: a provider that says nothing of its keys
// keeps them for a day.
const defaultProviderKeyTTL = 24 * time.Hour

// Forever is the ProviderKeyTTL of a provider that never forgets a key.
const Forever time.Duration = math.MaxInt64

// minLease leaves room for heartbeats.
const minLease = 100 * time.Millisecond

// Call is one attempt at an effect.
type Call struct {
	// Key is the same at every attempt. Give it to the provider as its own
	// idempotency key; it is what protects the outside world. At most 255 bytes
	// of ASCII when the group's and the effect's names are ASCII.
	Key string
	// Epoch grows with every attempt: a fencing token for stores that take one.
	Epoch int64
}

// Effect is something that happens outside the consumer's database: a charge, an
// e-mail, a call of another service.
type Effect[R any] struct {
	// Name tells the effects of one event apart. Required; never change it.
	Name string
	// Lease is how long an attempt that has died keeps others waiting. It is
	// renewed at a third of it. Default 30 s, at least 100 ms.
	Lease time.Duration
	// ProviderKeyTTL is how long the provider remembers a key, less some margin.
	// A fence begun longer ago is not driven blindly. Counted from the first
	// attempt, or from the next one after an operator has said that the effect
	// did not happen. Default 24 h; [Forever] for a provider
	// that never forgets one.
	ProviderKeyTTL time.Duration
	// Do makes the effect. Required. Its context ends when the lease is lost.
	Do func(ctx context.Context, c Call) (R, error)
	// Reconcile asks the provider whether the effect happened. It is called in
	// place of Do when the provider may have forgotten the key; not found, it
	// is followed by Do. Without it such a fence is [ErrFenceStale].
	Reconcile func(ctx context.Context, c Call) (result R, found bool, err error)
	// Commit writes what follows from the effect, in the transaction that
	// completes the fence. It keeps the rules of a [TxHandler]. May be nil.
	Commit func(ctx context.Context, tx pgx.Tx, result R) error
}

// Fence makes an effect outside the database and remembers its result. The row
// of onceward.fences goes through these states, by the database's clock only:
//
//	none      → PENDING, epoch 1, a lease: this call makes the effect
//	PENDING   with a live lease: [ErrInProgress]
//	PENDING   with a lease that ran out: this call takes over, epoch + 1
//	PENDING   begun longer ago than ProviderKeyTTL: Reconcile, or [ErrFenceStale]
//	COMPLETE  the effect is there: Duplicate with the first result
//
// Within a handler of [Router.Func] or [Handle] it is one of the event's effects,
// known by its Name. Elsewhere the effect is the event: it is claimed when the
// effect completes, and one that was given up or lies outside its window is
// [ErrNotApplied].
//
// Do runs outside any transaction. Commit, the fence's COMPLETE and the result are
// one transaction, which fails with [ErrLeaseLost] when the epoch is no longer
// this call's: a process that wakes from a long pause changes nothing. The
// provider is protected by Call.Key alone.
//
// When Do fails its lease is given back and the error is returned; the next
// delivery tries again with the same key. A [*MismatchError] says that the key
// is taken by an event with other content. Fence blocks for as long as Do does,
// and returns after its heartbeat has ended. A fence whose process died is left
// PENDING; the next delivery takes it over, or [Router.RecoverFences].
func Fence[R any](ctx context.Context, p *Processor, ev Event, e Effect[R]) (Receipt[R], error) {
	run, err := p.within(ctx, ev, e.Name)
	var receipt Receipt[R]
	if err == nil && run == nil && p.windows.byContent(ev.Type) {
		err = fmt.Errorf("%w: %w", ErrRegistration, errContent)
	}
	if err == nil {
		receipt, err = runFence(ctx, p, ev, run, e)
		err = run.finish(e.Name, err)
	}
	if err != nil {
		return Receipt[R]{Outcome: receipt.Outcome, Late: receipt.Late}, fmt.Errorf("fence %q of %s %s: %w", e.Name, ev.Type, ev.Key, err)
	}
	if run == nil {
		p.marks.applied(ctx, &ev)
	}
	return receipt, nil
}

func runFence[R any](ctx context.Context, p *Processor, ev Event, run *running, e Effect[R]) (r Receipt[R], err error) {
	if err := errors.Join(ev.validate(), e.validate()); err != nil {
		return r, err
	}
	if e.Lease == 0 {
		e.Lease = defaultLease
	}
	if e.ProviderKeyTTL == 0 {
		e.ProviderKeyTTL = defaultProviderKeyTTL
	}
	l := newLease(p, ev, run, e.Name, e.Lease)
	stale, err := l.take(ctx, e.ProviderKeyTTL)
	c := l.item.claim
	r = Receipt[R]{Outcome: c.Outcome, AppliedAt: c.AppliedAt, Late: c.Late, Unprotected: c.Unprotected}
	if err != nil {
		return r, err
	}
	if !l.item.fresh() {
		return r, errors.Join(notApplied(c), consumerdb.Decode(c.Result, &r.Result))
	}
	attempt, stop := l.Keep(ctx)
	defer stop() // also when Do ends its goroutine
	r.Result, err = e.drive(attempt, Call{Key: ProviderKey(ev.Key, p.group, e.Name), Epoch: l.Epoch}, stale)
	stop()
	if err == nil {
		err = complete(ctx, l, e.Commit, r.Result)
	}
	if err != nil {
		return r, errors.Join(causeOf(attempt, err), l.release(ctx))
	}
	return r, nil
}

func (e *Effect[R]) validate() error {
	switch {
	case e.Name == "" || !consumerdb.IsText(e.Name):
		return fmt.Errorf("%w: Effect.Name %q: want text", ErrEvent, e.Name)
	case e.Lease != 0 && (e.Lease < minLease || e.Lease > maxTimeout):
		return fmt.Errorf("%w: Effect.Lease %s: want %s to %s", ErrEvent, e.Lease, minLease, maxTimeout)
	case e.ProviderKeyTTL < 0:
		return fmt.Errorf("%w: Effect.ProviderKeyTTL %s: want 0 (24h), more, or consumer.Forever", ErrEvent, e.ProviderKeyTTL)
	case e.Do == nil:
		return fmt.Errorf("%w: Effect.Do is nil", ErrEvent)
	}
	return nil
}

// drive calls the provider. A panic becomes an error, as in handlers.
func (e *Effect[R]) drive(ctx context.Context, c Call, stale bool) (result R, err error) {
	err = recovered(func() (err error) {
		if stale && e.Reconcile == nil {
			return fmt.Errorf("%w (%s); ask the provider by its key %s what happened; then say so with "+reconcile+", or give the effect a Reconcile", ErrFenceStale, e.ProviderKeyTTL, c.Key)
		}
		if stale {
			var found bool
			if result, found, err = e.Reconcile(ctx, c); err != nil || found {
				return err
			}
		}
		result, err = e.Do(ctx, c)
		return err
	})
	if marked, _ := mark(err); !marked && IsInfrastructure(err) {
		err = &HandlerError{Err: err} // of the provider's database, or of whatever it called
	}
	return result, err
}

// causeOf says that the lease was lost when that is what ended the attempt.
func causeOf(attempt context.Context, err error) error {
	if errors.Is(context.Cause(attempt), ErrLeaseLost) {
		return errors.Join(ErrLeaseLost, err)
	}
	return err
}

// complete is the transaction that ends the effect.
func complete[R any](ctx context.Context, l *lease, userCommit func(context.Context, pgx.Tx, R) error,
	result R) (err error) {
	stored, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("encode the result for duplicates: %w", err)
	}
	tx, err := l.processor.windows.begin(ctx)
	if err != nil {
		return err
	}
	defer transaction.Rollback(ctx, tx)
	defer func() { err = judge(ctx, tx, err) }()
	if err := l.complete(ctx, tx, stored); err != nil {
		return err
	}
	if userCommit != nil {
		handler := func(ctx context.Context, tx pgx.Tx, _ Event) error { return userCommit(ctx, tx, result) }
		if err := l.processor.calls.apply(ctx, nil, handler, tx, l.item.event()); err != nil {
			return err
		}
	}
	return commit(ctx, tx)
}

// ProviderKey returns the [Call.Key] of an effect, by which one can ask the
// provider what became of it. It is a function of event, group and effect alone.
func ProviderKey(event outbox.Key, group, effect string) string {
	return fence.ProviderKey(event, group, effect)
}
