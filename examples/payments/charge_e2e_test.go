//go:build e2e

package payments_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/consumertest"
	"github.com/onceward/onceward/examples/payments"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

// provider remembers the charge of each key. Its first answer is lost on the way.
type provider struct {
	sync.Mutex
	calls   int
	charges map[string]payments.Charge
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.Lock()
	defer p.Unlock()
	p.calls++
	key := r.Header.Get("Idempotency-Key")
	if _, ok := p.charges[key]; !ok {
		p.charges[key] = payments.Charge{ID: "ch_" + key}
	}
	if p.calls == 1 {
		panic(http.ErrAbortHandler) // charged, and the connection is cut
	}
	_ = json.NewEncoder(w).Encode(p.charges[key])
}

// The provider charges, its answer is lost, the event is delivered again and again:
// one charge, one row.
func TestOneCharge(t *testing.T) {
	db := testdb.New(t, "15")
	m, err := migrations.New(migrations.Config{Pool: db, Side: migrations.Consumer})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	_, err = db.Exec(t.Context(), payments.Schema)
	require.NoError(t, err)
	bank := &provider{charges: map[string]payments.Charge{}}
	server := httptest.NewServer(bank)
	defer server.Close()

	processor, err := consumer.New(t.Context(), consumer.Config{Group: "payments", DB: db})
	require.NoError(t, err)
	router := consumer.NewRouter(processor)
	payments.Register(router, processor, payments.Provider{URL: server.URL, Client: server.Client()})
	key, err := outbox.NewKey("shop")
	require.NoError(t, err)
	ev := consumer.Event{Event: record.Event{Key: key, Type: payments.TypePlaced, Payload: []byte(`{"id":"o-1","cents":4200}`)}}

	_, err = router.Handle(t.Context(), ev)
	require.ErrorContains(t, err, "ask the provider", "the answer was lost")
	for _, want := range []consumer.Outcome{consumer.Processed, consumer.Duplicate} {
		outcome, err := router.Handle(t.Context(), ev)
		require.NoError(t, err)
		require.Equal(t, want, outcome)
	}
	require.Equal(t, 2, bank.calls, "a duplicate does not ask the provider")
	require.Len(t, bank.charges, 1, "both attempts had one key")
	var rows int
	require.NoError(t, db.QueryRow(t.Context(), `SELECT count(*) FROM charges WHERE order_id = 'o-1'`).Scan(&rows))
	require.Equal(t, 1, rows)
}

// However the event comes, and wherever the process dies: one charge at the provider, and
// one row with its id.
func TestChargeOnce(t *testing.T) {
	bank := &provider{}
	server := httptest.NewServer(bank)
	defer server.Close()
	rows := consumertest.Rows("SELECT 'row of', order_id FROM charges")
	consumertest.Exercise(t, consumertest.Service{
		DSN: testdb.New(t, "15").Config().ConnString(),
		Prepare: func(ctx context.Context, db *pgxpool.Pool) error {
			_, err := db.Exec(ctx, payments.Schema)
			return err
		},
		Start: func(ctx context.Context, db *pgxpool.Pool) (*consumer.Router, error) {
			p, err := consumer.New(ctx, consumer.Config{Group: "payments", DB: db})
			if err != nil {
				return nil, err
			}
			r := consumer.NewRouter(p)
			payments.Register(r, p, payments.Provider{URL: server.URL, Client: server.Client()})
			return r, nil
		},
		Event: func(n int) outbox.Event {
			id := fmt.Sprintf("o-%d", n)
			return outbox.Event{AggregateType: "order", AggregateID: id, Type: payments.TypePlaced, Payload: fmt.Appendf(nil, `{"id":%q,"cents":4200}`, id)}
		},
		Effects: func(ctx context.Context, db *pgxpool.Pool) ([]string, error) {
			lines, err := rows(ctx, db)
			bank.Lock()
			defer bank.Unlock()
			for key := range bank.charges {
				lines = append(lines, "charge of "+key)
			}
			return lines, err
		},
		Reset: func() {
			bank.Lock()
			defer bank.Unlock()
			bank.calls, bank.charges = 0, map[string]payments.Charge{}
		},
	})
}
