package webhook_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/webhook"
)

// Stripe's events go into the outbox, and a relay publishes them.
func Example() {
	var db *pgxpool.Pool // with both sides of Onceward
	receiver, err := webhook.New(context.Background(), webhook.Config{
		Sender:   webhook.Stripe("stripe"),
		Secrets:  []string{"whsec_new", "whsec_old"}, // while it is changed
		Consumer: consumer.Config{Group: "stripe-hooks", DB: db},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/hooks/stripe", receiver)
}

// The work is done before the answer, which says what came of it.
func ExampleHandler() {
	reserve := func(ctx context.Context, tx pgx.Tx, ev consumer.Event) (a webhook.Answer, err error) {
		if _, err = tx.Exec(ctx, "INSERT INTO reservations VALUES ($1)", ev.AggregateID); err != nil {
			return a, err
		}
		a.Body, err = json.Marshal(map[string]string{"reserved": ev.AggregateID})
		return a, err
	}
	_ = webhook.Config{Do: reserve}
}

// A sender of your own signs the body, which holds an id and a type.
func ExampleHMAC() {
	sender := webhook.HMAC{
		Namespace: "partner", Header: "X-Partner-Signature", Prefix: "sha256=", Window: 3 * 24 * time.Hour,
		Read: func(_ http.Header, body []byte) (id, eventType string, err error) {
			var of struct{ ID, Type string }
			err = json.Unmarshal(body, &of)
			return of.ID, of.Type, err
		},
	}.Sender()
	ev, err := sender.Event(nil, []byte(`{"id":"p-7","type":"parcel.lost"}`))
	fmt.Println(ev.Type, ev.AggregateType, ev.AggregateID, err)
	// Output: parcel.lost partner p-7 <nil>
}

// The example of GitHub's documentation.
func ExampleSignedBody() {
	verify := webhook.SignedBody("X-Hub-Signature-256", "sha256=", hex.DecodeString)
	h := http.Header{}
	h.Set("X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17")
	fmt.Println(verify(h, []byte("Hello, World!"), "It's a Secret to Everybody", time.Now()))
	fmt.Println(verify(h, []byte("Hello, World?"), "It's a Secret to Everybody", time.Now()))
	// Output:
	// <nil>
	// the signature is wrong; look at the endpoint's secret
}

// The classes follow their senders: how long they try again, and whether their ids
// carry a time.
func ExampleGitHubClass() {
	for _, class := range []consumer.Class{webhook.StripeClass("stripe.*"), webhook.ShopifyClass("shopify.*"), webhook.GitHubClass("github.*")} {
		fmt.Println(class.Pattern, class.Window, class.Keyed == consumer.ByArrival)
	}
	// Output:
	// stripe.* 96h0m0s false
	// shopify.* 72h0m0s true
	// github.* 192h0m0s true
}
