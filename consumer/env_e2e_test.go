//go:build e2e

package consumer_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// env is one database with routers on it, which may have a defect.
type env struct {
	t      *testing.T
	db     *pgxpool.Pool
	defect consumer.Defect
}

func newEnv(t *testing.T, defect consumer.Defect) *env {
	t.Helper()
	return &env{t: t, db: newDatabase(t), defect: defect}
}

// router returns a router of the group whose handler of "Paid" is h.
func (e *env) router(group string, h consumer.TxHandler) *consumer.Router {
	e.t.Helper()
	p, err := consumer.New(e.t.Context(), consumer.Config{Group: group, DB: e.db, LockTimeout: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(e.t.Output(), nil))})
	require.NoError(e.t, err)
	r := consumer.NewRouter(p).With(e.defect)
	r.Tx("Paid", h)
	return r
}

// effect inserts the effect of an event.
func effect(group string) consumer.TxHandler {
	return func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		_, err := tx.Exec(ctx, "INSERT INTO effects (event, consumer_group) VALUES ($1, $2)", ev.Key.String(), group)
		return err
	}
}

func (e *env) effects() int { return count(e.t, e.db, "SELECT count(*) FROM effects") }
func (e *env) claims() int {
	return count(e.t, e.db, "SELECT count(*) FROM onceward.processed_events")
}
func (e *env) letters() int {
	return count(e.t, e.db, "SELECT count(*) FROM onceward.consumer_dead_letters")
}

// expect returns an error unless effects and claims are as many as told.
func (e *env) expect(effects, claims int) error {
	if n := e.effects(); n != effects {
		return fmt.Errorf("%d effects, want %d", n, effects)
	}
	if n := e.claims(); n != claims {
		return fmt.Errorf("%d claims, want %d", n, claims)
	}
	return nil
}

// deliver handles the event and returns an error unless the outcome is want.
func deliver(ctx context.Context, r *consumer.Router, ev consumer.Event, want consumer.Outcome) error {
	got, err := r.Handle(ctx, ev)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("outcome %s, want %s", got, want)
	}
	return nil
}

// waitBlocked waits until a session of this database waits for a lock, or
// until other is closed.
func (e *env) waitBlocked(ctx context.Context, other <-chan struct{}) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-other:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var waiting int
		err := e.db.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
		if err != nil || waiting > 0 {
			return
		}
	}
}

func newEvent(t *testing.T) consumer.Event {
	t.Helper()
	k, err := outbox.NewKey("shop")
	require.NoError(t, err)
	return consumer.Event{Event: record.Event{Key: k, Type: "Paid", AggregateType: "order", AggregateID: "o-1", Payload: []byte(`{"amount":10}`)}}
}

// keyAt makes a random key with the given event time.
func keyAt(t *testing.T, at time.Time) outbox.Key {
	t.Helper()
	id := uuid.New()
	first := outbox.FirstID(at)
	copy(id[:6], first[:6])
	id[6] = 0x70 | id[6]&0x0f
	k, err := outbox.KeyFrom("shop", id, at, outbox.NoSkewLimit)
	require.NoError(t, err)
	return k
}

func exec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := db.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

func count(t *testing.T, db *pgxpool.Pool, sql string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, db.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}
