//go:build e2e

package consumertest_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/consumertest"
)

// broken are handlers that are wrong in one way, and the promises that they break.
var broken = map[string]struct {
	shop   shop
	breaks []consumertest.Promise // at least these
	found  string                 // in one of the reports
	full   bool                   // of E2E_FULL=1: another breaks the same in the same way
}{
	"the effect on another connection": {
		shop: shop{handle: tx(func(ctx context.Context, p *process, _ pgx.Tx, ev consumer.Event) error {
			return ship(ctx, p.db, ev, "sent")
		})},
		full: true, breaks: []consumertest.Promise{consumertest.Crash, consumertest.Cut}, found: "+ o-",
	},
	"the effect before the transaction": {
		shop: shop{handle: fn(func(ctx context.Context, p *process, ev consumer.Event) error {
			if err := ship(ctx, p.db, ev, "sent"); err != nil {
				return err
			}
			_, err := consumer.Do(ctx, p.processor, ev, func(context.Context, pgx.Tx) (int, error) { return 0, nil })
			return err
		})},
		full: true, breaks: []consumertest.Promise{consumertest.Crash, consumertest.Cut}, found: "+ o-",
	},
	"its own commit": {
		shop: shop{handle: tx(func(ctx context.Context, _ *process, tx pgx.Tx, ev consumer.Event) error {
			if err := ship(ctx, tx, ev, "sent"); err != nil {
				return err
			}
			return tx.Commit(ctx)
		})},
		breaks: []consumertest.Promise{consumertest.Once}, found: "may not end its transaction",
	},
	"a commit that nobody sees": {
		shop: shop{handle: tx(func(ctx context.Context, _ *process, tx pgx.Tx, ev consumer.Event) error {
			if _, err := tx.Exec(ctx, "COMMIT AND CHAIN"); err != nil {
				return err
			}
			return ship(ctx, tx, ev, "sent")
		})},
		breaks: []consumertest.Promise{consumertest.Crash, consumertest.Cut}, found: "- o-",
	},
	"a deduplication by content": {
		shop: shop{handle: tx(func(ctx context.Context, _ *process, tx pgx.Tx, ev consumer.Event) error {
			tag, err := tx.Exec(ctx, "INSERT INTO seen VALUES ($1) ON CONFLICT DO NOTHING", ev.AggregateID+string(ev.Payload))
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
			return ship(ctx, tx, ev, "sent")
		})},
		breaks: []consumertest.Promise{consumertest.NewKey}, found: "no effect",
	},
	"a deduplication in memory": {
		shop: shop{handle: tx(func(ctx context.Context, p *process, tx pgx.Tx, ev consumer.Event) error {
			if !p.first(ev.Key.String()) {
				return nil
			}
			return ship(ctx, tx, ev, "sent")
		})},
		full: true, breaks: []consumertest.Promise{consumertest.Cut}, found: "- o-",
	},
	"a deduplication beside the transaction": {
		shop: shop{handle: tx(func(ctx context.Context, p *process, tx pgx.Tx, ev consumer.Event) error {
			tag, err := p.db.Exec(ctx, "INSERT INTO seen VALUES ($1) ON CONFLICT DO NOTHING", ev.Key.String())
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
			return ship(ctx, tx, ev, "sent")
		})},
		breaks: []consumertest.Promise{consumertest.Crash, consumertest.Cut}, found: "by a statement beside its tx",
	},
	"an error that is swallowed": {
		shop: shop{handle: tx(func(ctx context.Context, p *process, _ pgx.Tx, ev consumer.Event) error {
			_ = ship(ctx, p.db, ev, "sent")
			return nil
		})},
		breaks: []consumertest.Promise{consumertest.Cut}, found: "- o-",
	},
	"a random key for the provider": {
		shop: shop{handle: fn(func(ctx context.Context, p *process, ev consumer.Event) error {
			_, err := consumer.Fence(ctx, p.processor, ev, charge(p, ev, func(consumer.Call) string { return rand.Text() }))
			return err
		})},
		breaks: []consumertest.Promise{consumertest.Crash, consumertest.Cut}, found: "+ charge for o-",
	},
	"a key of the message's place for the provider": {
		shop: shop{handle: fn(func(ctx context.Context, p *process, ev consumer.Event) error {
			_, err := consumer.Fence(ctx, p.processor, ev, charge(p, ev, func(consumer.Call) string { return ev.Source.String() }))
			return err
		})},
		breaks: []consumertest.Promise{consumertest.Cut}, found: "out of a retry queue",
	},
	"a provider without a fence": {
		shop: shop{handle: tx(func(ctx context.Context, p *process, tx pgx.Tx, ev consumer.Event) error {
			return ship(ctx, tx, ev, p.bank.charge(rand.Text(), ev.AggregateID))
		})},
		full: true, breaks: []consumertest.Promise{consumertest.Crash, consumertest.Cut}, found: "+ charge for o-",
	},
	"a counter in memory": {
		shop: shop{handle: tx(func(ctx context.Context, p *process, tx pgx.Tx, ev consumer.Event) error {
			return ship(ctx, tx, ev, fmt.Sprint(p.count()))
		})},
		breaks: []consumertest.Promise{consumertest.Restart, consumertest.Crash, consumertest.Cut}, found: "depends on memory",
	},
	"the fence's result ignored": {
		shop: shop{handle: fn(func(ctx context.Context, p *process, ev consumer.Event) error {
			id := "" // which is set where the effect is made, and not where it was made before
			e := charge(p, ev, callKey)
			do := e.Do
			e.Do = func(ctx context.Context, c consumer.Call) (_ string, err error) {
				id, err = do(ctx, c)
				return id, err
			}
			if _, err := consumer.Fence(ctx, p.processor, ev, e); err != nil {
				return err
			}
			_, err := consumer.DoNamed(ctx, p.processor, ev, "ship", func(ctx context.Context, tx pgx.Tx) (string, error) { return "", ship(ctx, tx, ev, id) })
			return err
		})},
		breaks: []consumertest.Promise{consumertest.Crash, consumertest.Cut}, found: "Receipt.Result",
	},
	"dependent on the order of deliveries": {
		shop: shop{handle: tx(func(ctx context.Context, _ *process, tx pgx.Tx, ev consumer.Event) error {
			_, err := tx.Exec(ctx, "INSERT INTO shipments SELECT $1, 'number ' || count(*) FROM shipments", ev.AggregateID)
			return err
		})},
		breaks: []consumertest.Promise{consumertest.Order}, found: "which event came before",
	},
	"read, added and written": {
		shop: shop{handle: tx(func(ctx context.Context, _ *process, tx pgx.Tx, _ consumer.Event) error {
			var n int
			if err := tx.QueryRow(ctx, "SELECT n FROM total").Scan(&n); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "UPDATE total SET n = $1", n+1)
			return err
		})},
		breaks: []consumertest.Promise{consumertest.AtOnce}, found: "before its COMMIT number 1",
	},
	"the last of a batch": {
		shop: shop{handle: func(_ *process, r *consumer.Router) {
			r.BatchSet("Placed", consumer.BatchOptions{}, func(ctx context.Context, tx pgx.Tx, evs []consumer.Event) error {
				return ship(ctx, tx, evs[len(evs)-1], "sent")
			})
		}},
		breaks: []consumertest.Promise{consumertest.Together}, found: "3 events together, undisturbed",
	},
	"what stays in the session": {
		shop: shop{handle: tx(func(ctx context.Context, _ *process, tx pgx.Tx, ev consumer.Event) error {
			for _, sql := range []string{
				"SET statement_timeout = '50s'", "SELECT pg_advisory_lock(hashtext($1))", "CREATE TEMP TABLE IF NOT EXISTS work (id text)",
				"LISTEN shipped", "CLOSE ALL", "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
			} {
				if _, err := tx.Exec(ctx, sql, []any{ev.AggregateID}[:strings.Count(sql, "$")]...); err != nil {
					return err
				}
			}
			return ship(ctx, tx, ev, "sent")
		})},
		breaks: []consumertest.Promise{consumertest.Session},
		found:  "+ LISTEN shipped\n            + an advisory lock\n            + the cursor c\n            + the setting statement_timeout\n            + the temporary table work",
	},
	"the effect in a goroutine": {
		shop: shop{handle: tx(func(ctx context.Context, p *process, _ pgx.Tx, ev consumer.Event) error {
			go func() {
				<-ctx.Done() // the handler has returned
				_ = ship(context.WithoutCancel(ctx), p.db, ev, "sent")
			}()
			return nil
		})},
		breaks: nil, found: "goroutine", // which promise is first is a race
	},
	"a group for each process": {
		shop: shop{group: rand.Text, handle: tx(func(ctx context.Context, _ *process, tx pgx.Tx, ev consumer.Event) error {
			return ship(ctx, tx, ev, "sent")
		})},
		breaks: []consumertest.Promise{consumertest.Restart, consumertest.Copies}, found: "Config.Group",
	},
	"replays applied as if they were new": {
		shop: shop{
			classes: []consumer.Class{{Pattern: "*", Window: time.Hour, Replay: consumer.ReplayProcess}},
			handle: tx(func(ctx context.Context, _ *process, tx pgx.Tx, ev consumer.Event) error {
				return ship(ctx, tx, ev, "sent")
			}),
		},
		breaks: []consumertest.Promise{consumertest.AfterWindow}, found: "ev.Unprotected",
	},
	"refuses what it is to apply": {
		shop:   shop{handle: tx(func(context.Context, *process, pgx.Tx, consumer.Event) error { return errors.New("no such customer") })},
		breaks: []consumertest.Promise{consumertest.Once}, found: "no such customer",
	},
}

// TestExercise: handlers that were broken on purpose are caught, each with the promise
// that it breaks.
func TestExercise(t *testing.T) {
	for name, tc := range broken {
		t.Run(name, func(t *testing.T) {
			if tc.full && !full {
				t.Skip("E2E_FULL=1 runs it")
			}
			t.Parallel()
			report, err := consumertest.Check(t.Context(), tc.shop.service(t))
			require.NoError(t, err)
			promises, text := map[consumertest.Promise]bool{}, ""
			for _, b := range report.Broken {
				promises[b.Promise] = true
				text += b.Error() + "\n"
			}
			t.Log(text)
			for _, want := range tc.breaks {
				require.True(t, promises[want], "%s", want)
			}
			require.NotEmpty(t, report.Broken)
			require.Contains(t, text, tc.found)
		})
	}
}

// TestEffectsThatReadNothing: what cannot be seen cannot be compared.
func TestEffectsThatReadNothing(t *testing.T) {
	s := shop{handle: tx(func(ctx context.Context, _ *process, tx pgx.Tx, ev consumer.Event) error {
		return ship(ctx, tx, ev, "sent")
	})}.service(t)
	s.Effects = consumertest.Rows("SELECT what FROM seen")
	report, err := consumertest.Check(t.Context(), s)
	require.NoError(t, err)
	require.Len(t, report.Broken, 1)
	require.Equal(t, consumertest.Once, report.Broken[0].Promise)
	require.Contains(t, report.Broken[0].Found, "the same lines as before")
}
