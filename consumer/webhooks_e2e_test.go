//go:build e2e

package consumer_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
)

// Stripe delivers an event again, and somebody lists what was not delivered: one
// effect, and the same answer each time.
func TestStripeCopiesAreDuplicates(t *testing.T) {
	e := newEnv(t, nil)
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: e.db, Classes: []consumer.Class{consumer.StripeWebhooks("*")}})
	require.NoError(t, err)
	created := strconv.FormatInt(time.Now().Unix(), 10)
	for i, body := range stripeCopies {
		ev, err := consumer.StripeEvent("stripe", []byte(strings.Replace(body, "1795514400", created, 1)))
		require.NoError(t, err)
		got, err := consumer.Do(t.Context(), p, ev, func(ctx context.Context, tx pgx.Tx) (string, error) {
			return "booked", effect("billing")(ctx, tx, ev)
		})
		require.NoError(t, err)
		require.Equal(t, "booked", got.Result)
		require.Equal(t, i > 0, got.Outcome == consumer.Duplicate)
	}
	require.NoError(t, e.expect(1, 1))
}
