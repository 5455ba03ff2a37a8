//go:build e2e

package cdc_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/pgserver"
)

// TLS gives out one of the server's messages at a time: the reader rests when the
// connection has no more, and not after each.
func TestReaderOverTLS(t *testing.T) {
	d := newDatabase(t, "15")
	const transactions = 3000
	took := func() time.Duration {
		for range transactions {
			d.insert(d.writer, cdc.KindEvent, "INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, 'shop', 'order', 'a', 'Paid', '{}')")
		}
		began := time.Now()
		require.Len(t, d.read(transactions), transactions)
		return time.Since(began)
	}
	plain := took()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, pgserver.ServeTLS(ctx, d.cfg.DSN, true))
	d.cfg.DSN = strings.Replace(d.cfg.DSN, "sslmode=disable", "sslmode=require", 1)
	require.Less(t, took(), 20*plain)
}
