package webhook_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/webhook"
)

// One event as a webhook brings it, as its second delivery does, and as the list of
// events shows it.
const stripeWebhook = `{
  "id": "evt_1NV", "object": "event", "api_version": "2026-10-28", "created": 1795514400,
  "data": {
    "object": {
      "id": "ch_3MM", "object": "charge", "amount": 1000, "note": "a  b"
    }
  },
  "livemode": false, "pending_webhooks": 2, "request": {"id": "req_1"}, "type": "charge.succeeded"
}`

var stripeCopies = []string{
	stripeWebhook,
	strings.Replace(stripeWebhook, `"pending_webhooks": 2`, `"pending_webhooks": 1`, 1),
	`{"id":"evt_1NV","created":1795514400,"data":{"object":{"id":"ch_3MM","object":"charge","amount":1000,"note":"a  b"}},"pending_webhooks":0,"type":"charge.succeeded"}`,
}

func TestStripeEvent(t *testing.T) {
	first, err := webhook.StripeEvent("stripe", []byte(stripeWebhook))
	require.NoError(t, err)
	for _, body := range stripeCopies[1:] {
		ev, err := webhook.StripeEvent("stripe", []byte(body))
		require.NoError(t, err)
		require.Equal(t, first, ev)
	}
	other, err := webhook.StripeEvent("stripe", []byte(strings.Replace(stripeWebhook, "1000", "2000", 1)))
	require.NoError(t, err)
	require.NotEqual(t, first.Fingerprint(), other.Fingerprint())

	for body, want := range map[string]string{
		"": "no event of Stripe", "[]": "no event of Stripe", `{"id":"evt_1","type":"t","created":1795514400}`: "no event of Stripe: data.object is missing",
		`{"id":"evt"}`: "no event of Stripe: data.object is missing",
		`{"type":"t","created":1795514400,"data":{"object":{}}}`:   "part 0 is empty",
		`{"id":"evt_1","type":"t","data":{"object":{}}}`:           "before 2015",
		`{"id":"evt_1","created":1795514400,"data":{"object":{}}}`: "has no type",
	} {
		_, err := webhook.StripeEvent("stripe", []byte(body))
		require.ErrorIs(t, err, consumer.ErrEvent, body)
		require.ErrorContains(t, err, want, body)
	}
}

func ExampleStripeEvent() {
	ev, err := webhook.StripeEvent("stripe", []byte(stripeWebhook)) // its signature was verified
	if err != nil {
		fmt.Println(err) // answer 400
		return
	}
	fmt.Println(ev.Type, ev.Key.Time())
	fmt.Printf("%s %s: %s\n", ev.AggregateType, ev.AggregateID, ev.Payload)
	// Output:
	// charge.succeeded 2026-11-24 10:00:00 +0000 UTC
	// charge ch_3MM: {"id":"ch_3MM","object":"charge","amount":1000,"note":"a  b"}
}
