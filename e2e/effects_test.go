//go:build e2e

package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

// effects runs a consumer group over the topic: one effect per event, also when
// one is delivered five times more; a new key is new; a handler that fails
// leaves no claim.
func effects(t *testing.T, o outcome) {
	ctx := t.Context()
	w := o.w
	_, err := w.as(billingLogin).Exec(ctx, `CREATE TABLE effects (key text NOT NULL)`)
	require.NoError(t, err)
	failing := o.records[len(o.records)/2]
	stop := consume(t, w, failingOnce(t, w, headerOf(failing, "idempotency-key")))
	defer stop()
	all := int64(len(o.truth))
	distinct := func() int64 { return scalar[int64](w, `SELECT count(DISTINCT key) FROM effects`) }
	eventually(t, "every event has its effect", 2*time.Minute, func() bool { return distinct() == all })
	redeliver(t, w, failing, 5)
	extra := writeOne(t, w)
	r := w.newRelay(w.config(`admin: {listen: "off"}`), "")
	r.start()
	defer r.stop()
	eventually(t, "the new event has its effect", time.Minute, func() bool { return distinct() == all+1 })
	end := w.records()
	stop()
	require.Equal(t, all+1, scalar[int64](w, `SELECT count(*) FROM effects`), "one effect each")
	require.Equal(t, all+1, scalar[int64](w, `SELECT count(*) FROM onceward.processed_events WHERE outcome = 'p'`), "one claim each")
	require.EqualValues(t, 1, scalar[int64](w, `SELECT count(*) FROM effects WHERE key = $1`, extra))
	require.Zero(t, scalar[int64](w, `SELECT count(*) FROM onceward.consumer_dead_letters`))
	require.Len(t, end, len(o.records)+5+1)
}

// failingOnce is a handler that writes its effect and then fails, the first time
// it meets the key; before it succeeds it makes sure that no claim was left.
func failingOnce(t *testing.T, w *environment, key string) consumer.TxHandler {
	failed := false
	return func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if _, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, ev.Key.String()); err != nil {
			return err
		}
		if ev.Key.String() != key {
			return nil
		}
		if !failed {
			failed = true
			return errors.New("fails on purpose, after its effect")
		}
		var claims, before int
		id := ev.Key.UUID()
		err := w.pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM onceward.processed_events WHERE event_id = $1), (SELECT count(*) FROM effects WHERE key = $2)`, id, key).Scan(&claims, &before)
		if err == nil && claims+before != 0 {
			t.Errorf("the failed try left %d claims and %d effects", claims, before)
		}
		return err
	}
}

// consume starts a consumer group with the handler; the function returned stops
// it and is safe to call twice.
func consume(t *testing.T, w *environment, handler consumer.TxHandler) (stop func()) {
	pool, err := pgxpool.New(t.Context(), w.dsn(billingLogin))
	require.NoError(t, err)
	processor, err := consumer.New(t.Context(), consumer.Config{Group: "g-" + w.name, DB: pool})
	require.NoError(t, err)
	router := consumer.NewRouter(processor)
	router.Tx("OrderChanged", handler)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- saramagroup.Run(ctx, w.brokers, router, saramagroup.Config{Topics: []string{w.topic()}, Insecure: true})
	}()
	stopped := false
	return func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		require.NoError(t, <-ended)
		pool.Close()
	}
}
