package consumer_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
)

// Every outcome but one lets the message's offset be committed.
func ExampleOutcome_Acknowledges() {
	for _, outcome := range []consumer.Outcome{consumer.Processed, consumer.Duplicate, consumer.InProgress, consumer.DeadLettered} {
		fmt.Println(outcome, outcome.Acknowledges())
	}
	// Output:
	// processed true
	// duplicate true
	// in progress false
	// dead-lettered true
}

// Whose failure it is decides whether an attempt is counted.
func ExampleIsInfrastructure() {
	for _, err := range []error{
		&pgconn.PgError{Code: "40P01"}, // deadlock
		&pgconn.PgError{Code: "23505"}, // unique violation
		context.DeadlineExceeded,
		errors.New("no such account"),
		consumer.DeadLetter(errors.New("the payload is no JSON")), // for good, at the first attempt
	} {
		fmt.Println(consumer.IsInfrastructure(err))
	}
	// Output:
	// true
	// false
	// false
	// false
	// false
}

// A provider knows an effect by a key that is the same at every attempt.
func ExampleProviderKey() {
	event, _ := outbox.ParseKey("shop:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a")
	fmt.Println(consumer.ProviderKey(event, "billing", "charge"))
	// Output: shop:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a/billing/charge
}

// The classes for webhooks follow their senders: how long they try again, and whether
// their ids carry a time.
func ExampleGitHubWebhooks() {
	for _, class := range []consumer.Class{consumer.StripeWebhooks("stripe.*"), consumer.ShopifyWebhooks("shopify.*"), consumer.GitHubWebhooks("github.*")} {
		fmt.Println(class.Pattern, class.Window, class.Keyed == consumer.ByArrival)
	}
	// Output:
	// stripe.* 96h0m0s false
	// shopify.* 72h0m0s true
	// github.* 192h0m0s true
}
