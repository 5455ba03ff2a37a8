package consumer

import (
	"time"

	"github.com/onceward/onceward/outbox"
)

// StripeWebhooks is the class of Stripe's events, whose type matches pattern.
// Their key is outbox.ExternalKey(namespace, id, created): the id `evt_…` and the
// field `created` of the event. Stripe tries a delivery again for up to 3 days
// (docs.stripe.com, "Automatic retries"); the window is 4 days. Whoever lists and
// processes undelivered events by hand, up to 30 days old, wants 31 days.
func StripeWebhooks(pattern string) Class {
	return Class{Pattern: pattern, Window: 4 * 24 * time.Hour}
}

// ShopifyWebhooks is the class of Shopify's webhooks. Their key is [TimelessKey]
// of the header X-Shopify-Webhook-Id. Shopify tries a delivery again 8 times
// within 4 hours (shopify.dev, changelog of 2024-09-10), 48 hours before that
// date; the window is 3 days.
func ShopifyWebhooks(pattern string) Class {
	return Class{Pattern: pattern, Window: 3 * 24 * time.Hour, Keyed: ByArrival}
}

// GitHubWebhooks is the class of GitHub's webhooks. Their key is [TimelessKey] of
// the header X-GitHub-Delivery, which a redelivery keeps. Deliveries of the last 3
// days can be redelivered (docs.github.com, "Redelivering webhooks"), of the last
// 7 on GitHub Enterprise Server; the window is 8 days.
func GitHubWebhooks(pattern string) Class {
	return Class{Pattern: pattern, Window: 8 * 24 * time.Hour, Keyed: ByArrival}
}

// timeless is the event time of keys that carry none.
var timeless = time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC)

// TimelessKey returns the key of an event that another system has named by an id
// without a time, such as a delivery GUID or a UUIDv4. Its class must be keyed
// [ByArrival]: by event time it lies below every floor. The error is an
// *outbox.KeyError.
func TimelessKey(namespace, externalID string) (outbox.Key, error) {
	return outbox.ExternalKey(namespace, externalID, timeless)
}
