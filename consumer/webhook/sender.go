package webhook

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/record"
)

// Sender is what is known of those who send: [Stripe], [Shopify] and [GitHub] return
// one, [HMAC] has one for anybody who signs the body; fill it in for all others. Its functions are
// pure and safe for concurrent use.
type Sender struct {
	// Verify says why a request is not signed with a secret. Required.
	Verify Verify
	// Event makes the event of a request that is signed. Its Key and Payload are the same
	// at every delivery of it. For Enqueue it has AggregateType and AggregateID. Required.
	Event func(h http.Header, body []byte) (consumer.Event, error)
	// Class is the deduplication window. One whose keys are those of [record.TimelessKey]
	// is keyed by arrival. Required.
	Class consumer.Class
	// Tries is how many failures of the handler make a dead letter: fewer than the
	// sender tries. Default 1, for one that does not come again.
	Tries int
	// Unsigned is the status of a request whose signature is not right, 400 to 499.
	// Default 401.
	Unsigned int
}

// Stripe is the sender of Stripe's events, as [StripeEvent] makes them. The secret is the
// endpoint's, `whsec_…`, whole.
func Stripe(namespace string) Sender {
	return Sender{
		Verify:   verifyStripe,
		Event:    func(_ http.Header, body []byte) (consumer.Event, error) { return StripeEvent(namespace, body) },
		Class:    StripeClass("*"),
		Tries:    3, // of four within hours in a sandbox, of more within three days in live mode
		Unsigned: http.StatusBadRequest,
	}
}

// Shopify is the sender of Shopify's webhooks. The type of an event is its topic, such
// as orders/create, its aggregate (orders, the body's id). The headers that say the shop,
// the webhook's id, the API's version and the time are kept, in lower case. The secret is
// the app's client secret.
func Shopify(namespace string) Sender {
	return Sender{
		Verify: SignedBody("X-Shopify-Hmac-Sha256", "", base64.StdEncoding.DecodeString),
		Event: func(h http.Header, body []byte) (consumer.Event, error) {
			var of struct{ ID json.RawMessage }
			if err := json.Unmarshal(body, &of); err != nil {
				return consumer.Event{}, fmt.Errorf("%w: no webhook of Shopify: %w", consumer.ErrEvent, err)
			}
			ev := consumer.Event{Event: record.Event{Type: h.Get("X-Shopify-Topic"), Payload: body}}
			ev.AggregateType, _, _ = strings.Cut(ev.Type, "/")
			ev.AggregateID = cmp.Or(idOf(of.ID), h.Get("X-Shopify-Shop-Domain"))
			ev.Headers = kept(h, "X-Shopify-Shop-Domain", "X-Shopify-Webhook-Id", "X-Shopify-Api-Version", "X-Shopify-Triggered-At")
			return timeless(ev, namespace, "X-Shopify-Webhook-Id", h)
		},
		Class: ShopifyClass("*"),
		Tries: 5, // of nine, within four hours
	}
}

// GitHub is the sender of GitHub's webhooks, of the content type application/json. The type of an
// event is that of X-GitHub-Event, its aggregate the repository, else the organization, else the hook. GitHub does
// not try again: the first failure of a handler makes a dead letter, and what does not arrive,
// or finds the database away, has to be delivered again by hand, or by its API.
func GitHub(namespace string) Sender {
	return Sender{
		Verify: SignedBody("X-Hub-Signature-256", "sha256=", hex.DecodeString),
		Event: func(h http.Header, body []byte) (consumer.Event, error) {
			var of struct{ Repository, Organization struct{ ID json.RawMessage } }
			if err := json.Unmarshal(body, &of); err != nil {
				return consumer.Event{}, fmt.Errorf("%w: no webhook of GitHub; set the content type application/json at the hook: %w", consumer.ErrEvent, err)
			}
			ev := consumer.Event{Event: record.Event{Type: h.Get("X-GitHub-Event"), Payload: body,
				AggregateType: "hook", AggregateID: cmp.Or(h.Get("X-GitHub-Hook-ID"), h.Get("X-GitHub-Delivery"))}}
			if id := idOf(of.Repository.ID); id != "" {
				ev.AggregateType, ev.AggregateID = "repository", id
			} else if id := idOf(of.Organization.ID); id != "" {
				ev.AggregateType, ev.AggregateID = "organization", id
			}
			ev.Headers = kept(h, "X-GitHub-Delivery", "X-GitHub-Hook-ID")
			return timeless(ev, namespace, "X-GitHub-Delivery", h)
		},
		Class: GitHubClass("*"),
	}
}

// HMAC is anybody who signs the body with HMAC-SHA256, and no time.
type HMAC struct {
	// Namespace of the keys. Required.
	Namespace string
	// Header has the signature: Prefix and the digest. Header is required.
	Header, Prefix string
	// Decode reads the digest. Default [hex.DecodeString]; base64.StdEncoding.DecodeString
	// is another one.
	Decode func(string) ([]byte, error)
	// Read returns the id of the event and its type. An id in the body is signed with it,
	// one in a header is not. Required.
	Read func(h http.Header, body []byte) (id, eventType string, err error)
	// Window is for how long ids are remembered: longer than the sender tries. Default 7 days, at most 31.
	Window time.Duration
}

// Sender returns the sender. The aggregate of an event is (Namespace, its id).
func (s HMAC) Sender() Sender {
	if s.Decode == nil {
		s.Decode = hex.DecodeString
	}
	sender := Sender{
		Class: consumer.Class{Pattern: "*", Window: cmp.Or(s.Window, consumer.DefaultWindow), Keyed: consumer.ByArrival},
	}
	if s.Header != "" {
		sender.Verify = SignedBody(s.Header, s.Prefix, s.Decode)
	}
	if s.Read != nil {
		sender.Event = func(h http.Header, body []byte) (consumer.Event, error) {
			id, eventType, err := s.Read(h, body)
			if err != nil {
				return consumer.Event{}, fmt.Errorf("%w: %w", consumer.ErrEvent, err)
			}
			ev := consumer.Event{Event: record.Event{Type: eventType, AggregateType: s.Namespace, AggregateID: id,
				Payload: body, ContentType: h.Get("Content-Type")}}
			if ev.Key, err = record.TimelessKey(s.Namespace, id); err != nil {
				return ev, fmt.Errorf("%w: id %q: %w", consumer.ErrEvent, id, err)
			}
			return ev, nil
		}
	}
	return sender
}

// timeless gives the event the key of an id in a header.
func timeless(ev consumer.Event, namespace, header string, h http.Header) (consumer.Event, error) {
	var err error
	switch ev.Key, err = record.TimelessKey(namespace, h.Get(header)); {
	case err != nil:
		return ev, fmt.Errorf("%w: header %s: %w", consumer.ErrEvent, header, err)
	case ev.Type == "":
		return ev, fmt.Errorf("%w: the header of its type is missing", consumer.ErrEvent)
	}
	ev.ContentType = "application/json"
	return ev, nil
}

// kept returns headers of a request as those of an event.
func kept(h http.Header, names ...string) map[string]string {
	headers := make(map[string]string, len(names))
	for _, name := range names {
		if v := h.Get(name); v != "" {
			headers[strings.ToLower(name)] = strings.ToValidUTF8(v, "\uFFFD")
		}
	}
	return headers
}

// idOf is an id that is a number or a string; empty for none.
func idOf(id json.RawMessage) string {
	if id = bytes.Trim(id, `"`); string(id) == "null" {
		return ""
	}
	return string(id)
}

// validate checks what New is given.
func (s Sender) validate() error {
	switch {
	case s.Verify == nil, s.Event == nil:
		return errors.New("Sender: Verify or Event is nil; take webhook.Stripe, Shopify, GitHub or HMAC, or set both")
	case s.Class.Pattern == "":
		return errors.New("Sender: Class is not set; give it a Pattern and a Window")
	case s.Tries < 0:
		return fmt.Errorf("Sender: Tries %d: want 1 or more", s.Tries)
	case s.Unsigned != 0 && (s.Unsigned < 400 || s.Unsigned > 499):
		return fmt.Errorf("Sender: Unsigned %d: want 400 to 499", s.Unsigned)
	}
	return nil
}
