package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/webhook"
)

// Schema makes the table of this service. Its database has both sides of Onceward:
// `outboxctl migrate up --side consumer` and `--side outbox`.
const Schema = `CREATE TABLE IF NOT EXISTS reservations (number bigserial, article text NOT NULL)`

// Receivers are the endpoints of this service.
type Receivers struct{ Stripe, Partner *webhook.Receiver }

// NewReceivers makes them. Each has a group of its own.
func NewReceivers(ctx context.Context, db *pgxpool.Pool, stripeSecrets []string, partnerSecret string) (r Receivers,
	err error) {
	r.Stripe, err = webhook.New(ctx, webhook.Config{
		Sender:   webhook.Stripe("stripe"),
		Secrets:  stripeSecrets, // the new one and the old one, while it is changed
		Consumer: consumer.Config{Group: "stripe-hooks", DB: db},
	})
	if err != nil {
		return r, err
	}
	r.Partner, err = webhook.New(ctx, webhook.Config{
		Sender:  webhook.HMAC{Namespace: "partner", Header: "X-Partner-Signature", Read: readPartner}.Sender(),
		Secrets: []string{partnerSecret}, Consumer: consumer.Config{Group: "partner-hooks", DB: db},
		Do: reserve,
	})
	return r, err
}

// Mux leads requests to them.
func (r Receivers) Mux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("/hooks/stripe", r.Stripe)
	mux.Handle("/hooks/partner", r.Partner)
	return mux
}

// Redrive handles dead letters again that an operator has asked for, until ctx ends.
func (r Receivers) Redrive(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		for _, receiver := range []*webhook.Receiver{r.Stripe, r.Partner} {
			if _, err := receiver.Redrive(ctx, 100); err != nil && !consumer.IsInfrastructure(err) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// order is what a partner asks for. Its id is signed with the body.
type order struct {
	ID, Type, Article string
}

func readPartner(_ http.Header, body []byte) (id, eventType string, err error) {
	var o order
	err = json.Unmarshal(body, &o)
	return o.ID, o.Type, err
}

// reserve runs in the transaction that claims the event. Whoever delivers it again gets
// the number of the first time.
func reserve(ctx context.Context, tx pgx.Tx, ev consumer.Event) (a webhook.Answer, err error) {
	var o order
	if err = json.Unmarshal(ev.Payload, &o); err != nil {
		return a, consumer.DeadLetter(fmt.Errorf("decode order: %w", err))
	}
	var number int64
	if err = tx.QueryRow(ctx, `INSERT INTO reservations (article) VALUES ($1) RETURNING number`, o.Article).Scan(&number); err != nil {
		return a, fmt.Errorf("reserve: %w", err)
	}
	a.Body, err = json.Marshal(map[string]int64{"reservation": number})
	return a, err
}
