package consumer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/internal/aside"
	"github.com/onceward/onceward/consumer/internal/statement"
	"github.com/onceward/onceward/consumer/internal/transaction"
	"github.com/onceward/onceward/internal/consumerdb"
)

// Defect is a mistake that a test builds into a router's steps, to show that
// the test which guards the promise would notice it.
type Defect func(r *Router)

type claimOne = func(ctx context.Context, tx pgx.Tx, ev Event) (Claim, error)

// single is the claim of one event.
func (r *Router) single(inner func(ctx context.Context, tx pgx.Tx, items []*item) error) claimOne {
	return func(ctx context.Context, tx pgx.Tx, ev Event) (Claim, error) {
		it := r.processor.newItem(ev)
		err := inner(ctx, tx, []*item{it})
		if errors.Is(err, ErrInProgress) {
			return Claim{Outcome: InProgress}, nil
		}
		return it.claim, err
	}
}

// perItem claims events one by one.
func perItem(claim claimOne) func(ctx context.Context, tx pgx.Tx, items []*item) error {
	return func(ctx context.Context, tx pgx.Tx, items []*item) (err error) {
		for _, it := range items {
			if it.claim, err = claim(ctx, tx, it.ev); err != nil {
				return err
			}
			it.plan = plan{ids: it.claim.ids, late: it.claim.Late, again: it.claim.Unprotected}
			if it.claim.Outcome == InProgress {
				return ErrInProgress
			}
		}
		return nil
	}
}

// ClaimBeforehand commits the claim in a transaction of its own before the
// handler runs: the mistake of every "check, then act".
func ClaimBeforehand(r *Router) {
	inner := r.single(r.steps.claim)
	r.steps.claim = perItem(func(ctx context.Context, _ pgx.Tx, ev Event) (Claim, error) {
		tx, err := r.processor.windows.begin(ctx)
		if err != nil {
			return Claim{}, err
		}
		defer transaction.Rollback(ctx, tx)
		c, err := inner(ctx, tx, ev)
		if err != nil {
			return c, err
		}
		return c, tx.Commit(ctx)
	})
}

// NoClaim runs the handler without asking.
func NoClaim(r *Router) {
	r.steps.claim = perItem(func(context.Context, pgx.Tx, Event) (Claim, error) {
		return Claim{Outcome: Processed}, nil
	})
}

// ClaimLate runs the handler of every delivery and claims afterwards, in
// another transaction, as "record when done" does.
func ClaimLate(r *Router) {
	claim := r.single(r.steps.claim)
	r.steps.claim = perItem(func(context.Context, pgx.Tx, Event) (Claim, error) {
		return Claim{Outcome: Processed}, nil
	})
	commit := r.steps.commit
	apply := r.steps.apply
	r.steps.apply = func(ctx context.Context, turn *aside.Turn, h TxHandler, tx pgx.Tx, ev Event) error {
		if err := apply(ctx, turn, h, tx, ev); err != nil {
			return err
		}
		own, err := r.processor.windows.begin(ctx)
		if err != nil {
			return err
		}
		defer transaction.Rollback(ctx, own)
		if _, err := claim(ctx, own, ev); err != nil {
			return err
		}
		return commit(ctx, own)
	}
}

// TrustKeys takes an event with a known key for a copy, whatever it holds.
func TrustKeys(r *Router) {
	inner := r.single(r.steps.claim)
	r.steps.claim = perItem(func(ctx context.Context, tx pgx.Tx, ev Event) (Claim, error) {
		c, err := inner(ctx, tx, ev)
		if c.Outcome == Mismatch {
			c.Outcome = Duplicate
		}
		return c, err
	})
}

// TakeBusyForDone acknowledges a message whose claim another transaction holds.
func TakeBusyForDone(r *Router) {
	inner := r.single(r.steps.claim)
	r.steps.claim = perItem(func(ctx context.Context, tx pgx.Tx, ev Event) (Claim, error) {
		c, err := inner(ctx, tx, ev)
		if c.Outcome == InProgress {
			c.Outcome = Duplicate
		}
		return c, err
	})
}

// TrustHandlers believes a nil and commits whatever is there.
func TrustHandlers(r *Router) {
	r.steps.apply = func(ctx context.Context, _ *aside.Turn, h TxHandler, tx pgx.Tx, ev Event) error {
		return recovered(func() error { return h(ctx, tx, ev) })
	}
	r.steps.commit = func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "COMMIT")
		return err
	}
}

// ForgetPanics takes a handler that panicked for one that has finished.
func ForgetPanics(r *Router) {
	r.steps.apply = func(ctx context.Context, _ *aside.Turn, h TxHandler, tx pgx.Tx, ev Event) (err error) {
		defer func() { _ = recover() }()
		return h(ctx, tx, ev)
	}
}

// ForgetContext commits with a context of its own after the delivery's ended.
func ForgetContext(r *Router) {
	r.steps.apply = func(ctx context.Context, _ *aside.Turn, h TxHandler, tx pgx.Tx, ev Event) error {
		return h(ctx, tx, ev)
	}
	r.steps.commit = func(ctx context.Context, tx pgx.Tx) error {
		return tx.Commit(context.WithoutCancel(ctx))
	}
}

// IgnoreErrors commits although the handler failed.
func IgnoreErrors(r *Router) {
	inner := r.steps.apply
	r.steps.apply = func(ctx context.Context, turn *aside.Turn, h TxHandler, tx pgx.Tx, ev Event) error {
		_ = inner(ctx, turn, h, tx, ev)
		return nil
	}
}

// OpenPartitions makes a partition where there is none, and so takes for new
// what nobody can judge.
func OpenPartitions(r *Router) {
	inner := r.single(r.steps.claim)
	r.steps.claim = perItem(func(ctx context.Context, tx pgx.Tx, ev Event) (Claim, error) {
		_, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS onceward.processed_events_rest PARTITION OF onceward.processed_events DEFAULT`)
		if err != nil {
			return Claim{}, err
		}
		return inner(ctx, tx, ev)
	})
}

// IgnoreGroups claims for all groups together.
func IgnoreGroups(r *Router) {
	p := r.processor
	shared := newProcessor(Config{Group: "all", DB: p.db, LockTimeout: p.lockTimeout, Logger: p.log}, p.windows.classes)
	shared.bounds = p.bounds
	shared.windows.known.Store(p.windows.known.Load())
	r.steps.claim = func(ctx context.Context, tx pgx.Tx, items []*item) error {
		return claimant{shared, statement.On(tx)}.claim(ctx, items)
	}
}

// FirstKeyForAll claims every event under the key of the first one.
func FirstKeyForAll(r *Router) {
	inner := r.single(r.steps.claim)
	var first *Event
	r.steps.claim = perItem(func(ctx context.Context, tx pgx.Tx, ev Event) (Claim, error) {
		if first == nil {
			first = &ev
		}
		return inner(ctx, tx, *first)
	})
}

// Unbounded begins transactions without their settings.
func Unbounded(r *Router) {
	r.steps.begin = func(ctx context.Context) (pgx.Tx, error) { return r.processor.db.Begin(ctx) }
}

// With builds a defect into the router and returns it.
func (r *Router) With(d Defect) *Router {
	if d != nil {
		d(r)
	}
	return r
}

// Disconnected returns a processor of the default class without a database.
func Disconnected() *Processor {
	classes, _ := CheckClasses(nil)
	p := newProcessor(Config{Logger: slog.New(slog.DiscardHandler)}, classes)
	p.windows.known.Store(&floors{of: make([]registered, 1)})
	return p
}

// NoFloor claims every event whatever its time.
func NoFloor(r *Router) {
	inner := r.single(r.steps.claim)
	r.steps.claim = perItem(func(ctx context.Context, tx pgx.Tx, ev Event) (Claim, error) {
		w := &r.processor.windows
		w.known.Store(&floors{of: make([]registered, len(w.classes)), readAt: time.Now()})
		return inner(ctx, tx, ev)
	})
}

// NoEvidence takes every event below the floor for late.
func NoEvidence(r *Router) {
	inner := r.single(r.steps.claim)
	r.steps.claim = perItem(func(ctx context.Context, tx pgx.Tx, ev Event) (Claim, error) {
		ev.Source, ev.RepairID, ev.ReplayID, ev.ReplayMode = Source{Topic: "any", Offset: 1 << 60}, uuid.Nil, uuid.Nil, ""
		return inner(ctx, tx, ev)
	})
}

// LateUnclaimed applies late events without a claim by arrival.
func LateUnclaimed(r *Router) {
	inner := r.single(r.steps.claim)
	r.steps.claim = perItem(func(ctx context.Context, tx pgx.Tx, ev Event) (Claim, error) {
		c, err := inner(ctx, tx, ev)
		if c.Late {
			_, err = tx.Exec(ctx, "DELETE FROM onceward.processed_events WHERE event_id = ANY($1)", c.ids)
		}
		return c, err
	})
}

// OneBucket claims by arrival in one bucket only.
func OneBucket(r *Router) {
	inner := r.single(r.steps.claim)
	r.steps.claim = perItem(func(ctx context.Context, tx pgx.Tx, ev Event) (Claim, error) {
		c, err := inner(ctx, tx, ev)
		if len(c.ids) > 1 {
			_, err = tx.Exec(ctx, "DELETE FROM onceward.processed_events WHERE event_id = $1", c.ids[len(c.ids)-1])
		}
		return c, err
	})
}

// AgeFloors lets what the processor knows of floors be older.
func AgeFloors(p *Processor, by time.Duration) {
	f := *p.windows.known.Load()
	f.readAt = f.readAt.Add(-by)
	p.windows.known.Store(&f)
}

// DatabaseNow is the database's clock, as far as the process knows.
func DatabaseNow(p *Processor) time.Time { return p.windows.now() }

// StatementsByID are those that find claims by their ids.
func StatementsByID(p *Processor) map[string]func(ctx context.Context, tx pgx.Tx, ids []string) error {
	type run = func(ctx context.Context, tx pgx.Tx, ids []string) error
	return map[string]run{
		"find": func(ctx context.Context, tx pgx.Tx, ids []string) error {
			_, err := statement.On(tx).ByID.FindClaims(ctx, consumerdb.FindClaimsParams{ConsumerGroup: p.group, EventIds: ids})
			return err
		},
		"delete": func(ctx context.Context, tx pgx.Tx, ids []string) error {
			return statement.On(tx).ByID.DeleteClaims(ctx, consumerdb.DeleteClaimsParams{ConsumerGroup: p.group, EventIds: ids})
		},
		"revive": func(ctx context.Context, tx pgx.Tx, ids []string) error {
			return statement.On(tx).ByID.ReviveClaims(ctx, consumerdb.ReviveClaimsParams{ConsumerGroup: p.group, EventIds: ids})
		},
		"mark dead": func(ctx context.Context, tx pgx.Tx, ids []string) error {
			_, err := statement.On(tx).ByID.MarkDead(ctx, consumerdb.MarkDeadParams{ConsumerGroup: p.group, EventIds: ids})
			return err
		},
		"complete": func(ctx context.Context, tx pgx.Tx, ids []string) error {
			_, err := statement.On(tx).ByID.CompleteClaims(ctx, consumerdb.CompleteClaimsParams{Result: "1", ConsumerGroup: p.group, EventIds: ids})
			return err
		},
	}
}
