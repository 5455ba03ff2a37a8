//go:build e2e

package webhook_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/examples/webhook"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

func digest(secret, text string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

// Each event is delivered three times: one row in the outbox, one reservation and its
// number each time.
func TestReceive(t *testing.T) {
	db := testdb.New(t, "15")
	for _, side := range []migrations.Side{migrations.Outbox, migrations.Consumer} {
		m, err := migrations.New(migrations.Config{Pool: db, Side: side})
		require.NoError(t, err)
		_, err = m.Up(t.Context())
		require.NoError(t, err)
	}
	_, err := db.Exec(t.Context(), webhook.Schema)
	require.NoError(t, err)
	receivers, err := webhook.NewReceivers(t.Context(), db, []string{"whsec_new", "whsec_old"}, "shared")
	require.NoError(t, err)
	server := httptest.NewServer(receivers.Mux())
	t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(t.Context())
	redriving := make(chan error, 1)
	go func() { redriving <- receivers.Redrive(ctx, time.Minute) }()

	post := func(path, header, signature, body string) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, bytes.NewReader([]byte(body)))
		require.NoError(t, err)
		req.Header.Set(header, signature)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer func() { require.NoError(t, resp.Body.Close()) }()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode, string(text))
		return string(text)
	}
	now := strconv.FormatInt(time.Now().Unix(), 10)
	charge := fmt.Sprintf(`{"id":"evt_1","type":"charge.succeeded","created":%s,"data":{"object":{"id":"ch_1","object":"charge"}}}`, now)
	order := `{"id":"p-1","type":"order","article":"lamp"}`
	for _, secret := range []string{"whsec_new", "whsec_old", "whsec_new"} {
		require.Contains(t, post("/hooks/stripe", "Stripe-Signature", "t="+now+",v1="+digest(secret, now+"."+charge), charge), "enqueued")
		require.JSONEq(t, `{"reservation":1}`, post("/hooks/partner", "X-Partner-Signature", digest("shared", order), order))
	}
	for sql, want := range map[string]int{
		"SELECT count(*) FROM onceward.outbox WHERE event_type = 'charge.succeeded' AND aggregate_id = 'ch_1'": 1,
		"SELECT count(*) FROM onceward.outbox": 1,
		"SELECT count(*) FROM reservations":    1,
	} {
		var got int
		require.NoError(t, db.QueryRow(t.Context(), sql).Scan(&got))
		require.Equal(t, want, got, sql)
	}
	cancel()
	require.NoError(t, <-redriving)
}
