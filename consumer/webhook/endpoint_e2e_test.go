//go:build e2e

package webhook_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/webhook"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

// Bodies as they were captured.
var (
	//go:embed testdata/stripe.json
	stripeBody string
	//go:embed testdata/github.json
	githubBody []byte
	//go:embed testdata/shopify.json
	shopifyBody []byte
)

const secret = "whsec_the_new_one"

// provider makes the deliveries of a sender.
type provider struct {
	name     string
	sender   webhook.Sender
	unsigned int // the status that it expects for a signature that is not right
	// request is one delivery of the event of this id, which was made at a time.
	request func(id string, at time.Time) (http.Header, []byte)
	sign    func(h http.Header, body []byte, secret string, now time.Time)
	// other changes what the event says.
	other func(body []byte) []byte
}

func digest(secret string, text []byte) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write(text)
	return mac.Sum(nil)
}

// providers are all, and one of its own kind.
var providers = []provider{
	{
		name: "stripe", sender: webhook.Stripe("stripe"), unsigned: 400,
		request: func(id string, at time.Time) (http.Header, []byte) {
			return header(), []byte(strings.NewReplacer("EVENT", "evt_"+id, "1795514400", strconv.FormatInt(at.Unix(), 10)).Replace(stripeBody))
		},
		sign: func(h http.Header, body []byte, secret string, now time.Time) {
			stamp := strconv.FormatInt(now.Unix(), 10)
			h.Set("Stripe-Signature", "t="+stamp+",v1="+hex.EncodeToString(digest(secret, []byte(stamp+"."+string(body))))+",v0=00")
		},
		other: func(body []byte) []byte { return bytes.Replace(body, []byte("1099"), []byte("2099"), 1) },
	},
	{
		name: "shopify", sender: webhook.Shopify("shopify"), unsigned: 401,
		request: func(id string, _ time.Time) (http.Header, []byte) {
			return header("X-Shopify-Topic", "orders/create", "X-Shopify-Webhook-Id", id, "X-Shopify-Shop-Domain", "a.myshopify.com"), shopifyBody
		},
		sign: func(h http.Header, body []byte, secret string, _ time.Time) {
			h.Set("X-Shopify-Hmac-Sha256", base64.StdEncoding.EncodeToString(digest(secret, body)))
		},
		other: func(body []byte) []byte { return bytes.Replace(body, []byte("388.00"), []byte("488.00"), 1) },
	},
	{
		name: "github", sender: webhook.GitHub("github"), unsigned: 401,
		request: func(id string, _ time.Time) (http.Header, []byte) {
			return header("X-GitHub-Event", "push", "X-GitHub-Delivery", id, "X-GitHub-Hook-ID", "292430182"), githubBody
		},
		sign: func(h http.Header, body []byte, secret string, _ time.Time) {
			h.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(digest(secret, body)))
		},
		other: func(body []byte) []byte { return bytes.Replace(body, []byte("simple-tag"), []byte("other-tag"), 1) },
	},
	{
		name: "hmac", unsigned: 401,
		sender: webhook.HMAC{Namespace: "partner", Header: "X-Signature", Read: func(_ http.Header, body []byte) (id, eventType string, err error) {
			var of struct{ ID, Type string }
			err = json.Unmarshal(body, &of)
			return of.ID, of.Type, err
		}}.Sender(),
		request: func(id string, _ time.Time) (http.Header, []byte) {
			return header(), fmt.Appendf(nil, `{"id":%q,"type":"parcel.lost","parcel":7}`, id)
		},
		sign: func(h http.Header, body []byte, secret string, _ time.Time) {
			h.Set("X-Signature", hex.EncodeToString(digest(secret, body)))
		},
		other: func(body []byte) []byte { return bytes.Replace(body, []byte("7"), []byte("8"), 1) },
	},
}

// eachProvider runs a test for each on a database of its own.
func eachProvider(t *testing.T, test func(t *testing.T, e *endpoint)) {
	for _, p := range providers {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			test(t, newEndpoint(t, p))
		})
	}
}

// endpoint is one on a real server, with a database that has both sides of Onceward.
type endpoint struct {
	provider

	t    *testing.T
	db   *pgxpool.Pool
	url  string
	rc   *webhook.Receiver
	cfg  webhook.Config
	made time.Time // all events
}

func newEndpoint(t *testing.T, p provider) *endpoint {
	t.Helper()
	e := &endpoint{provider: p, t: t, db: testdb.New(t, "15"), made: time.Now()}
	for _, side := range []migrations.Side{migrations.Outbox, migrations.Consumer} {
		m, err := migrations.New(migrations.Config{Pool: e.db, Side: side})
		require.NoError(t, err)
		_, err = m.Up(t.Context())
		require.NoError(t, err)
	}
	e.exec(`CREATE TABLE effects (event text NOT NULL)`)
	e.cfg = webhook.Config{Sender: p.sender, Secrets: []string{secret, "the old one"}, Consumer: consumer.Config{
		Group: p.name + "-hooks", DB: e.db, LockTimeout: time.Minute, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
	return e
}

// serve begins to receive, with the handler of the mode Do, nil for Enqueue.
func (e *endpoint) serve(do webhook.Handler) {
	e.t.Helper()
	e.cfg.Do = do
	var err error
	e.rc, err = webhook.New(e.t.Context(), e.cfg)
	require.NoError(e.t, err)
	mux := http.NewServeMux()
	mux.Handle("/hooks/", e.rc)
	server := httptest.NewServer(mux)
	e.t.Cleanup(server.Close)
	e.url = server.URL + "/hooks/" + e.name
}

func (e *endpoint) exec(sql string, args ...any) {
	e.t.Helper()
	_, err := e.db.Exec(e.t.Context(), sql, args...)
	require.NoError(e.t, err)
}

func (e *endpoint) count(sql string, args ...any) (n int) {
	e.t.Helper()
	require.NoError(e.t, e.db.QueryRow(e.t.Context(), sql, args...).Scan(&n))
	return n
}

func (e *endpoint) effects() int { return e.count("SELECT count(*) FROM effects") }

// got is what a delivery was answered.
type got struct {
	status      int
	body        string
	contentType string
	retryAfter  string
	err         error
}

// send posts what was made, as it is.
func (e *endpoint) send(ctx context.Context, h http.Header, body []byte) got {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return got{err: err}
	}
	req.Header = h
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return got{err: err}
	}
	text, err := io.ReadAll(resp.Body)
	return got{resp.StatusCode, string(text), resp.Header.Get("Content-Type"), resp.Header.Get("Retry-After"), errors.Join(err, resp.Body.Close())}
}

// post delivers the event of an id, signed now.
func (e *endpoint) post(id string) got {
	h, body := e.request(id, e.made)
	e.sign(h, body, secret, time.Now())
	return e.send(e.t.Context(), h, body)
}

// posted delivers an event five times at once and five times more, and returns the
// answer, which is the same each time.
func (e *endpoint) posted(id string, status int) got {
	e.t.Helper()
	deliver := func() got {
		h, body := e.request(id, e.made)
		e.sign(h, body, secret, time.Now())
		return e.send(e.t.Context(), h, body)
	}
	all := make(chan got)
	for range 5 {
		go func() { all <- deliver() }()
	}
	first := <-all
	require.NoError(e.t, first.err)
	require.Equal(e.t, status, first.status, first.body)
	for range 4 {
		require.Equal(e.t, first, <-all)
	}
	for range 5 {
		require.Equal(e.t, first, deliver())
	}
	return first
}
