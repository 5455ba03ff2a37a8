package webhook_test

import (
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/webhook"
)

// captured is a request with its secret, whose signature other programs have made: of GitHub that
// of its documentation, of Shopify one of another library's tests, of Stripe openssl's.
type captured struct {
	sender webhook.Sender
	header string
	given  string
	body   string
	secret string
	at     time.Time
}

var vectors = map[string]captured{
	"github": {webhook.GitHub("github"), "X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
		"Hello, World!", "It's a Secret to Everybody", time.Now()},
	"shopify": {webhook.Shopify("shopify"), "X-Shopify-Hmac-Sha256", "QNyObTlKbMx2qDlPF/ZOZcBqg5OgPg+2oky3zldc0Gw=",
		`{"id":1234567890,"email":"customer@example.com","total_price":"123.45"}`, "test-webhook-secret", time.Now()},
	"stripe": {webhook.Stripe("stripe"), "Stripe-Signature", "t=1795514400,v1=46dfa6c8f1e280e3846aabbda93615125dfe67e3a940365dd79b76b05add87e3",
		`{"id":"evt_1NV"}`, "whsec_test_secret", time.Unix(1795514400, 0)},
}

func (c captured) verify() error {
	h := http.Header{}
	if c.given != "" {
		h.Set(c.header, c.given)
	}
	return c.sender.Verify(h, []byte(c.body), c.secret, c.at)
}

func TestSignatures(t *testing.T) {
	const stripe = "46dfa6c8f1e280e3846aabbda93615125dfe67e3a940365dd79b76b05add87e3"
	for name, good := range vectors {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, good.verify())
			for what, change := range map[string]func(*captured){
				"another body":   func(c *captured) { c.body += " " },
				"another secret": func(c *captured) { c.secret += " " },
				"no secret":      func(c *captured) { c.secret = "" },
				"cut":            func(c *captured) { c.given = c.given[:len(c.given)-2] },
				"no digest":      func(c *captured) { c.given = "sha256=" },
				"no text":        func(c *captured) { c.given = "äöü" },
			} {
				bad := good
				change(&bad)
				require.ErrorContains(t, bad.verify(), "wrong", what)
			}
			bad := good
			bad.given = ""
			require.ErrorContains(t, bad.verify(), "missing")
		})
	}
	for given, want := range map[string]string{
		"t=1795514400,v1=00,v1=" + stripe + ",v0=00": "", // while a secret is rolled
		"v1=" + stripe + ", t=1795514400":            "",
		"t=1795514400,v0=" + stripe:                  "wrong", // another scheme
		"t=1795514401,v1=" + stripe:                  "wrong", // another time
		"v1=" + stripe:                               "wrong",
		"t=now,v1=" + stripe:                         "wrong",
		"t=1795514400":                               "wrong",
		"t=1795514400,t=1795514401,v1=" + stripe:     "wrong",
	} {
		c := vectors["stripe"]
		c.given = given
		if want == "" {
			require.NoError(t, c.verify(), given)
		} else {
			require.ErrorContains(t, c.verify(), want, given)
		}
	}
	for _, c := range []struct {
		age time.Duration
		old bool
	}{{5 * time.Minute, false}, {5*time.Minute + time.Second, true}, {-5 * time.Minute, false}, {-6 * time.Minute, true}} {
		v := vectors["stripe"]
		v.at = v.at.Add(c.age)
		if !c.old {
			require.NoError(t, v.verify(), c.age)
			continue
		}
		require.ErrorContains(t, v.verify(), "too old", c.age)
		v.given = "t=1795514400,v1=00"
		require.ErrorContains(t, v.verify(), "wrong", "who has no secret learns nothing of the clock")
	}
}

// requests are what senders send, but for the signature.
func header(pairs ...string) http.Header {
	h := http.Header{"Content-Type": {"application/json"}}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

func TestEventsOfSenders(t *testing.T) {
	github := func(pairs ...string) http.Header {
		return header(append([]string{"X-GitHub-Event", "push", "X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958", "X-GitHub-Hook-ID", "292430182"}, pairs...)...)
	}
	shopify := header("X-Shopify-Topic", "orders/create", "X-Shopify-Webhook-Id", "b54557e4", "X-Shopify-Shop-Domain", "a.myshopify.com")
	for name, c := range map[string]struct {
		sender webhook.Sender
		header http.Header
		body   string
		want   string // type, aggregate; or the error
	}{
		"a repository":   {webhook.GitHub("github"), github(), `{"repository":{"id":186853002},"organization":{"id":1}}`, "push repository/186853002"},
		"organization":   {webhook.GitHub("github"), github(), `{"organization":{"id":1}}`, "push organization/1"},
		"a ping":         {webhook.GitHub("github"), github("X-GitHub-Event", "ping"), `{"zen":"Non-blocking is better than blocking."}`, "ping hook/292430182"},
		"a form":         {webhook.GitHub("github"), github(), `payload=%7B%7D`, "set the content type application/json"},
		"no delivery":    {webhook.GitHub("github"), github("X-GitHub-Delivery", ""), `{}`, "X-GitHub-Delivery"},
		"no event":       {webhook.GitHub("github"), github("X-GitHub-Event", ""), `{}`, "type is missing"},
		"an order":       {webhook.Shopify("shopify"), shopify, `{"id":820982911946154508}`, "orders/create orders/820982911946154508"},
		"an id as text":  {webhook.Shopify("shopify"), shopify, `{"id":"gid"}`, "orders/create orders/gid"},
		"of the shop":    {webhook.Shopify("shopify"), shopify, `{"id":null}`, "orders/create orders/a.myshopify.com"},
		"no json":        {webhook.Shopify("shopify"), shopify, `id=1`, "no webhook of Shopify"},
		"a charge":       {webhook.Stripe("stripe"), nil, stripeWebhook, "charge.succeeded charge/ch_3MM"},
		"without an id":  {webhook.Stripe("stripe"), nil, `{"id":"evt_1","type":"balance.available","created":1795514400,"data":{"object":{"object":"balance"}}}`, "balance.available balance/stripe"},
		"of an account":  {webhook.Stripe("stripe"), nil, `{"id":"evt_1","account":"acct_1","type":"balance.available","created":1795514400,"data":{"object":{"object":"balance"}}}`, "balance.available balance/acct_1"},
		"an empty event": {webhook.Stripe("stripe"), nil, `{}`, "no event of Stripe"},
	} {
		t.Run(name, func(t *testing.T) {
			ev, err := c.sender.Event(c.header, []byte(c.body))
			if err != nil {
				require.ErrorIs(t, err, consumer.ErrEvent)
				require.ErrorContains(t, err, c.want)
				return
			}
			require.Equal(t, c.want, ev.Type+" "+ev.AggregateType+"/"+ev.AggregateID)
			require.False(t, ev.Key.IsZero())
			again, err := c.sender.Event(c.header, []byte(c.body))
			require.NoError(t, err)
			require.Equal(t, ev, again)
		})
	}
	ev, err := webhook.Shopify("shopify").Event(shopify, []byte(`{"id":1}`))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"x-shopify-shop-domain": "a.myshopify.com", "x-shopify-webhook-id": "b54557e4"}, maps.Clone(ev.Headers))
}

func TestConfigIsChecked(t *testing.T) {
	good := webhook.Config{Sender: webhook.GitHub("github"), Secrets: []string{"s"}}
	for want, change := range map[string]func(*webhook.Config){
		"Sender: Verify or Event is nil": func(c *webhook.Config) { c.Sender = webhook.Sender{} },
		"Sender: Class is not set":       func(c *webhook.Config) { c.Sender.Class = consumer.Class{} },
		"Sender: Tries -1":               func(c *webhook.Config) { c.Sender.Tries = -1 },
		"Sender: Unsigned 200":           func(c *webhook.Config) { c.Sender.Unsigned = 200 },
		"Verify or Event":                func(c *webhook.Config) { c.Sender = webhook.HMAC{Namespace: "n", Header: "H"}.Sender() },
		"Secrets: none":                  func(c *webhook.Config) { c.Secrets = nil },
		"an empty one":                   func(c *webhook.Config) { c.Secrets = []string{"s", ""} },
		"MaxBody -1":                     func(c *webhook.Config) { c.MaxBody = -1 },
		"Group":                          func(*webhook.Config) {},
	} {
		cfg := good
		change(&cfg)
		_, err := webhook.New(t.Context(), cfg)
		require.ErrorContains(t, err, want)
	}
}
