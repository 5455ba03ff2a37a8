// Package webhook receives the webhooks of two senders: Stripe's, which go into the
// outbox, and a partner's, who waits for the result.
package webhook
