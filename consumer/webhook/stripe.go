package webhook

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// What a webhook's event has as Payload counts for its fingerprint: a copy with
// another one is a mismatch. So Payload may hold what the event says, and never
// what the delivery says of itself, its time, its number or its signature. Where
// that cannot be told, leave it empty.

// StripeEvent makes the event of Stripe's JSON, of a webhook or of the list of
// events. Verify the signature first. Its key is that of [StripeClass], Payload is
// `data.object` without white space, AggregateID and AggregateType are its `id` and
// `object`; of an object without id AggregateID is the account, or the namespace. Headers are
// stripe-event-id, stripe-livemode and, of a connected account, stripe-account.
//
// The rest of the body stays outside: `pending_webhooks` counts deliveries and
// changes from copy to copy. Endpoints of two API versions render one object in two
// ways: have one version, or set Payload to nil.
func StripeEvent(namespace string, body []byte) (consumer.Event, error) {
	var e struct {
		ID, Type, Account string
		Livemode          bool
		Created           int64
		Data              struct{ Object json.RawMessage }
	}
	var object struct{ ID, Object string }
	var payload bytes.Buffer
	err := json.Unmarshal(body, &e)
	if err == nil && e.Data.Object == nil {
		err = errors.New("data.object is missing")
	}
	if err == nil {
		err = errors.Join(json.Compact(&payload, e.Data.Object), json.Unmarshal(e.Data.Object, &object))
	}
	if err != nil {
		return consumer.Event{}, fmt.Errorf("%w: no event of Stripe: %w", consumer.ErrEvent, err)
	}
	ev := consumer.Event{Event: record.Event{
		Type: e.Type, AggregateType: object.Object, AggregateID: cmp.Or(object.ID, e.Account, namespace),
		Payload: payload.Bytes(), ContentType: "application/json", OccurredAt: time.Unix(e.Created, 0).UTC(),
		Headers: map[string]string{"stripe-event-id": e.ID, "stripe-livemode": strconv.FormatBool(e.Livemode)},
	}}
	if e.Account != "" {
		ev.Headers["stripe-account"] = e.Account
	}
	if ev.Key, err = outbox.ExternalKey(namespace, e.ID, ev.OccurredAt); err != nil {
		return consumer.Event{}, fmt.Errorf("%w: event %q of Stripe: %w", consumer.ErrEvent, e.ID, err)
	}
	if ev.Type == "" {
		return consumer.Event{}, fmt.Errorf("%w: event %q of Stripe has no type", consumer.ErrEvent, e.ID)
	}
	return ev, nil
}

// StripeClass is the class of Stripe's events, whose type matches pattern.
// Their key is outbox.ExternalKey(namespace, id, created): the id `evt_…` and the
// field `created` of the event; [StripeEvent] makes it. Stripe tries a delivery again for up to 3 days
// (docs.stripe.com, "Automatic retries"); the window is 4 days. Whoever lists and
// processes undelivered events by hand, up to 30 days old, wants 31 days.
func StripeClass(pattern string) consumer.Class {
	return consumer.Class{Pattern: pattern, Window: 4 * 24 * time.Hour}
}

// ShopifyClass is the class of Shopify's webhooks. Their key is [record.TimelessKey]
// of the header X-Shopify-Webhook-Id, their type X-Shopify-Topic, their Payload the
// body. Shopify tries a delivery again 8 times within 4 hours (shopify.dev, changelog
// of 2024-09-10), 48 hours before that date; the window is 3 days.
func ShopifyClass(pattern string) consumer.Class {
	return consumer.Class{Pattern: pattern, Window: 3 * 24 * time.Hour, Keyed: consumer.ByArrival}
}

// GitHubClass is the class of GitHub's webhooks. Their key is [record.TimelessKey] of
// the header X-GitHub-Delivery, which a redelivery keeps with the body, their
// type X-GitHub-Event, their Payload the body. Deliveries of the last 3
// days can be redelivered (docs.github.com, "Redelivering webhooks"), of the last
// 7 on GitHub Enterprise Server; the window is 8 days.
func GitHubClass(pattern string) consumer.Class {
	return consumer.Class{Pattern: pattern, Window: 8 * 24 * time.Hour, Keyed: consumer.ByArrival}
}
