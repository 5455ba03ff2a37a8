//go:build e2e

package payments_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
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
