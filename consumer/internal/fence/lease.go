package fence

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/consumer/internal/transaction"
	"github.com/onceward/onceward/internal/consumerdb"
)

// ErrLeaseLost: another attempt has taken the fence over, and will make or
// has made the effect. Nothing of this attempt was committed.
var ErrLeaseLost = errors.New("the fence's lease was lost to another attempt")

// Lease is one attempt's hold on a fence.
type Lease struct {
	DB          *pgxpool.Pool
	Event       uuid.UUID
	Group, Name string // with Event, of the fence
	Length      time.Duration
	Epoch       int64
	TakenAt     time.Time // before the statement that began or renewed it
}

// Keep renews the lease at a third of its length until stop is called, which
// waits for the heartbeat to end. The context it returns ends with ErrLeaseLost
// as soon as another attempt may have taken over.
func (l *Lease) Keep(ctx context.Context) (attempt context.Context, stop func()) {
	attempt, lose := context.WithCancelCause(ctx)
	beats, end := context.WithCancel(attempt)
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(l.Length / 3)
		defer tick.Stop()
		for {
			select {
			case <-beats.Done():
				return
			case <-tick.C:
				if !l.Renew(beats) {
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

// Renew reports whether the lease is still surely ours. A heartbeat that fails
// for another reason is tried again until the lease has run out by our clock,
// counted from before the last statement that succeeded.
func (l *Lease) Renew(ctx context.Context) bool {
	began := time.Now()
	until := l.TakenAt.Add(l.Length)
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	n, err := consumerdb.New(l.DB).RenewFence(ctx, consumerdb.RenewFenceParams{
		Lease: consumerdb.Interval(l.Length), EventID: l.Event, ConsumerGroup: l.Group, Name: l.Name, Epoch: l.Epoch,
	})
	if err == nil && n == 1 {
		l.TakenAt = began
		return true
	}
	return err != nil && time.Now().Before(until)
}

// Release gives the lease back after a failure, so that the next attempt need
// not wait. It is a courtesy: when it fails, the lease runs out by itself.
func (l *Lease) Release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), transaction.RollbackTimeout)
	defer cancel()
	_, err := consumerdb.New(l.DB).ReleaseFence(ctx,
		consumerdb.ReleaseFenceParams{EventID: l.Event, ConsumerGroup: l.Group, Name: l.Name, Epoch: l.Epoch})
	if err != nil {
		return fmt.Errorf("give the lease back: %w", err)
	}
	return nil
}

// Complete marks the fence, in the transaction of the queries. Alone: the effect is the
// event.
func (l *Lease) Complete(ctx context.Context, q *consumerdb.Queries, result []byte, alone bool) error {
	row, err := q.CompleteFence(ctx, consumerdb.CompleteFenceParams{
		Result: string(result), EventID: l.Event, ConsumerGroup: l.Group, Name: l.Name, Epoch: l.Epoch, Alone: alone,
	})
	switch {
	case err != nil:
		return fmt.Errorf("complete: %w", err)
	case row.Done == 0:
		return ErrLeaseLost
	}
	return nil
}
