//go:build e2e

package webhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/audit"
	"github.com/onceward/onceward/consumer/webhook"
	"github.com/onceward/onceward/outbox"
)

// work is a handler whose answer nobody can make twice.
func work(ctx context.Context, tx pgx.Tx, ev consumer.Event) (webhook.Answer, error) {
	if _, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", ev.Key.String()); err != nil {
		return webhook.Answer{}, err
	}
	return webhook.Answer{Status: http.StatusCreated, ContentType: "text/plain", Body: []byte("made by " + uuid.NewString())}, nil
}

// TestWebhook: an event that is delivered ten times, five of them at once, has one set of
// effects, and each delivery the same answer; another id is another event.
func TestWebhook(t *testing.T) {
	t.Parallel()
	eachProvider(t, func(t *testing.T, e *endpoint) {
		e.serve(work)
		first := e.posted("1", http.StatusCreated)
		require.Contains(t, first.body, "made by ")
		require.Equal(t, "text/plain", first.contentType)
		require.Equal(t, 1, e.effects())
		require.NotEqual(t, first.body, e.posted("2", http.StatusCreated).body)
		require.Equal(t, 2, e.effects())
		require.Zero(t, e.count("SELECT count(*) FROM onceward.outbox"))
	})
}

// TestWebhookEnqueue: the same of events that go into the outbox.
func TestWebhookEnqueue(t *testing.T) {
	t.Parallel()
	eachProvider(t, func(t *testing.T, e *endpoint) {
		e.serve(nil)
		first := e.posted("1", http.StatusOK)
		require.Equal(t, "application/json", first.contentType)
		h, body := e.request("1", e.made)
		ev, err := e.sender.Event(h, body)
		require.NoError(t, err)
		var said struct{ Event, Outcome string }
		require.NoError(t, json.Unmarshal([]byte(first.body), &said))
		require.Equal(t, "enqueued", said.Outcome)
		require.Equal(t, 1, e.count(`SELECT count(*) FROM onceward.outbox WHERE namespace || ':' || id = $1 AND event_type = $2
			AND aggregate_type = $3 AND aggregate_id = $4 AND payload = $5 AND headers IS NOT DISTINCT FROM CAST($6 AS jsonb)`,
			said.Event, ev.Type, ev.AggregateType, ev.AggregateID, ev.Payload, headersOf(t, ev)))
		require.NotEqual(t, first.body, e.posted("2", http.StatusOK).body)
		require.Equal(t, 2, e.count("SELECT count(*) FROM onceward.outbox"))
	})
}

func headersOf(t *testing.T, ev consumer.Event) any {
	t.Helper()
	if len(ev.Headers) == 0 {
		return nil
	}
	text, err := json.Marshal(ev.Headers)
	require.NoError(t, err)
	return string(text)
}

// TestWebhookRefusals: each refusal has the status that its sender expects, and nothing
// is done.
func TestWebhookRefusals(t *testing.T) {
	t.Parallel()
	eachProvider(t, func(t *testing.T, e *endpoint) {
		e.cfg.MaxBody = 4096
		e.serve(work)
		refused := func(what string, status int, change func(h http.Header, body []byte) []byte) {
			t.Helper()
			h, body := e.request(what, e.made)
			e.sign(h, body, secret, time.Now())
			got := e.send(t.Context(), h, change(h, body))
			require.NoError(t, got.err)
			require.Equal(t, status, got.status, what)
			require.Empty(t, got.retryAfter)
			require.NotContains(t, got.body, secret)
		}
		unsigned := func(h http.Header) {
			for _, name := range []string{"Stripe-Signature", "X-Hub-Signature-256", "X-Shopify-Hmac-Sha256", "X-Signature"} {
				h.Del(name)
			}
		}
		refused("missing", e.unsigned, func(h http.Header, body []byte) []byte { unsigned(h); return body })
		refused("of a stranger", e.unsigned, func(h http.Header, body []byte) []byte { e.sign(h, body, "guessed", time.Now()); return body })
		refused("of another body", e.unsigned, func(_ http.Header, body []byte) []byte { return e.other(body) })
		refused("huge", http.StatusRequestEntityTooLarge, func(h http.Header, _ []byte) []byte {
			body := bytes.Repeat([]byte("x"), 4097)
			e.sign(h, body, secret, time.Now())
			return body
		})
		refused("no event", http.StatusBadRequest, func(h http.Header, _ []byte) []byte {
			e.sign(h, []byte("zen"), secret, time.Now())
			return []byte("zen")
		})
		resp, err := http.Get(e.url)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
		require.Equal(t, http.MethodPost, resp.Header.Get("Allow"))
		if e.name == "stripe" {
			refused("an old signature", e.unsigned, func(h http.Header, body []byte) []byte {
				e.sign(h, body, secret, time.Now().Add(-6*time.Minute))
				return body
			})
			refused("out of the window", http.StatusConflict, func(h http.Header, _ []byte) []byte {
				_, body := e.request("old", time.Now().Add(-20*24*time.Hour))
				e.sign(h, body, secret, time.Now())
				return body
			})
			h, body := e.request("early", time.Now().Add(20*time.Minute))
			e.sign(h, body, secret, time.Now())
			early := e.send(t.Context(), h, body)
			require.Equal(t, http.StatusServiceUnavailable, early.status, "its time comes")
			require.Equal(t, "5", early.retryAfter)
		}
		require.Zero(t, e.effects())
		require.Zero(t, e.count("SELECT count(*) FROM onceward.processed_events"))

		h, body := e.request("rotated", e.made)
		e.sign(h, body, "the old one", time.Now())
		require.Equal(t, http.StatusCreated, e.send(t.Context(), h, body).status)
		body = e.other(body)
		e.sign(h, body, secret, time.Now())
		require.Equal(t, http.StatusConflict, e.send(t.Context(), h, body).status, "one id, other content")
		require.Equal(t, 1, e.effects())
	})
}

// TestWebhookInProgress: a second delivery waits for the first, and only then is to come
// again. A first one whose sender has hung up is done all the same.
func TestWebhookInProgress(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, providers[2])
	e.cfg.Consumer.LockTimeout = 100 * time.Millisecond
	begun, finish := make(chan struct{}), make(chan struct{})
	e.serve(func(ctx context.Context, tx pgx.Tx, ev consumer.Event) (webhook.Answer, error) {
		close(begun)
		<-finish
		return work(ctx, tx, ev)
	})
	ctx, hangUp := context.WithCancel(t.Context())
	h, body := e.request("1", e.made)
	e.sign(h, body, secret, time.Now())
	first := make(chan got)
	go func() { first <- e.send(ctx, h, body) }()
	<-begun
	second := e.post("1")
	require.Equal(t, http.StatusServiceUnavailable, second.status)
	require.Equal(t, "5", second.retryAfter)
	hangUp()
	require.ErrorIs(t, (<-first).err, context.Canceled)
	close(finish)
	require.Eventually(t, func() bool { return e.post("1").status == http.StatusCreated }, time.Minute, 10*time.Millisecond)
	require.Equal(t, 1, e.effects())
}

// TestWebhookGivesUp: a handler that fails for good leaves one dead letter of the group, in either mode,
// and every delivery from then on the same answer. A redrive makes the effect once, and
// gives later deliveries its answer.
func TestWebhookGivesUp(t *testing.T) {
	t.Parallel()
	eachProvider(t, func(t *testing.T, e *endpoint) {
		var mended atomic.Bool
		e.cfg.Consumer.Retry.OnLetter = consumer.LetterPark
		e.serve(func(ctx context.Context, tx pgx.Tx, ev consumer.Event) (webhook.Answer, error) {
			if !mended.Load() {
				_, _ = work(ctx, tx, ev)
				return webhook.Answer{}, fmt.Errorf("no such account: hidden: %w", consumer.ErrNotApplied) // of another group
			}
			return work(ctx, tx, ev)
		})
		for range max(e.sender.Tries, 1) - 1 {
			early := e.post("1")
			require.Equal(t, http.StatusInternalServerError, early.status)
			require.NotContains(t, early.body, "hidden")
			require.Zero(t, e.count("SELECT count(*) FROM onceward.consumer_dead_letters"))
		}
		last := e.posted("1", http.StatusAccepted)
		require.Contains(t, last.body, "dead-lettered")
		require.Zero(t, e.effects())
		h, body := e.request("1", e.made)
		ev, err := e.sender.Event(h, body)
		require.NoError(t, err)
		require.Equal(t, 1, e.count(`SELECT count(*) FROM onceward.consumer_dead_letters WHERE topic = $1 AND state = 'open' AND reason = 'handler'
			AND event_type = $2 AND record_value = $3 AND error LIKE '%no such account%' AND consumer_group = $4`,
			"from:"+ev.Key.Namespace(), ev.Type, ev.Payload, e.name+"-hooks"))
		require.Equal(t, 1, e.count("SELECT count(*) FROM onceward.consumer_dead_letters"))
		for range max(e.sender.Tries, 1) {
			e.post("2")
		}
		require.Equal(t, 2, e.count("SELECT count(*) FROM onceward.consumer_dead_letters WHERE topic = $1", "from:"+ev.Key.Namespace()), "each has a place")
		require.Zero(t, e.count("SELECT count(*) FROM onceward.parked"), "nothing waits behind it")
		e.exec("UPDATE onceward.consumer_dead_letters SET state = 'discarded' WHERE event_id <> $1", ev.Key.UUID())

		redrive := func() {
			e.exec("UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1 WHERE state = 'open'")
			done, err := e.rc.Redrive(t.Context(), 10)
			require.NoError(t, err)
			require.Equal(t, 1, done)
		}
		redrive()
		require.Equal(t, 1, e.count("SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'open'"))
		require.Equal(t, last, e.post("1"))
		mended.Store(true)
		redrive()
		require.Equal(t, 1, e.effects())
		require.Contains(t, e.posted("1", http.StatusCreated).body, "made by ")
		require.Equal(t, 1, e.effects())
		require.Equal(t, 1, e.count("SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'redriven'"))
		require.Zero(t, e.count("SELECT count(*) FROM onceward.ahead"))
		report, err := audit.Check(t.Context(), e.db, audit.Config{})
		require.NoError(t, err)
		require.Empty(t, report.Findings)
	})
}

// lines are those of a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// TestWebhookAfterAnotherReceiver: what a receiver by hand has applied in the same group is done,
// whatever it has left with the claim: the sender is told so, and the log.
func TestWebhookAfterAnotherReceiver(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, providers[2])
	var log lines
	e.cfg.Consumer.Logger = slog.New(slog.NewTextHandler(&log, nil))
	e.serve(func(context.Context, pgx.Tx, consumer.Event) (webhook.Answer, error) { panic("called") })
	p, err := consumer.New(t.Context(), consumer.Config{Group: e.cfg.Consumer.Group, DB: e.db, Classes: []consumer.Class{e.sender.Class}})
	require.NoError(t, err)
	for i, result := range []string{
		`"booked"`, `7`, `[]`, `null`, `{}`, `{"charge":"ch_1"}`, `{"status":"paid","body":"b"}`,
		`{"Status":"paid","Body":null}`, `{"Status":1,"ContentType":"","Body":null}`, `{"Status":503,"ContentType":"","Body":null}`, "",
	} {
		what := strconv.Itoa(i)
		h, body := e.request(what, e.made)
		ev, err := e.sender.Event(h, body)
		require.NoError(t, err)
		require.NoError(t, pgx.BeginFunc(t.Context(), e.db, func(tx pgx.Tx) error {
			if _, err := p.Claim(t.Context(), tx, ev); err != nil || result == "" {
				return err
			}
			return p.Complete(t.Context(), tx, ev, []byte(result))
		}))
		for range 2 {
			done := e.post(what)
			require.NoError(t, done.err)
			require.Equal(t, http.StatusOK, done.status, result)
			require.JSONEq(t, fmt.Sprintf(`{"event":%q,"outcome":"duplicate"}`, ev.Key), done.body, result)
			require.Contains(t, log.take(), `msg="the event was applied before, with a result that is no answer of package webhook; it is acknowledged without that" group=`+e.cfg.Consumer.Group+" event="+ev.Key.String())
		}
	}
}

// An event that the outbox refuses is no event lost: it is a letter, whose redrive enqueues it.
func TestWebhookThatCannotBeEnqueued(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, providers[2])
	e.serve(nil)
	e.exec("ALTER TABLE onceward.outbox ADD CONSTRAINT refused CHECK (event_type <> 'push')")
	e.posted("1", http.StatusAccepted)
	e.exec("ALTER TABLE onceward.outbox DROP CONSTRAINT refused")
	e.exec("UPDATE onceward.consumer_dead_letters SET state = 'requested'")
	done, err := e.rc.Redrive(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, 1, done)
	require.Contains(t, e.posted("1", http.StatusOK).body, "enqueued")
	require.Equal(t, 1, e.count("SELECT count(*) FROM onceward.outbox WHERE headers->>'x-github-delivery' = '1'"))
}

// What is no failure of the handler, or of an event of a topic, is counted by nobody here.
func TestCountFailureCountsHandlersOnly(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, providers[2])
	p, err := consumer.New(t.Context(), consumer.Config{Group: "hooks", DB: e.db, Classes: []consumer.Class{webhook.GitHubClass("*")}, Retry: consumer.Retry{MaxAttempts: 1}})
	require.NoError(t, err)
	h, body := e.request("1", e.made)
	ev, err := e.sender.Event(h, body)
	require.NoError(t, err)
	of := ev
	of.Source.Topic = "orders"
	failed := &consumer.HandlerError{Err: errors.New("no such account")}
	for _, c := range []struct {
		ev    consumer.Event
		cause error
	}{{ev, context.DeadlineExceeded}, {ev, consumer.ErrInProgress}, {of, failed}} {
		outcome, err := consumer.CountFailure(t.Context(), p, c.ev, c.cause)
		require.Equal(t, c.cause, err)
		require.Zero(t, outcome)
	}
	require.Zero(t, e.count("SELECT (SELECT count(*) FROM onceward.attempts) + (SELECT count(*) FROM onceward.consumer_dead_letters)"))
	outcome, err := consumer.CountFailure(t.Context(), p, ev, failed)
	require.NoError(t, err)
	require.Equal(t, consumer.DeadLettered, outcome)
}

// An event whose day a floor has passed between its handler and its last failure is neither
// there nor kept: who reads the queue must not take it for done.
func TestCountFailureBelowTheFloor(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, providers[0])
	p, err := consumer.New(t.Context(), consumer.Config{Group: "hooks", DB: e.db, Classes: []consumer.Class{webhook.StripeClass("*")}, Retry: consumer.Retry{MaxAttempts: 1}})
	require.NoError(t, err)
	h, body := e.request("1", e.made)
	ev, err := e.sender.Event(h, body)
	require.NoError(t, err)
	ev.Key, err = outbox.ExternalKey("stripe", "evt_old", time.Now().AddDate(-1, 0, 0))
	require.NoError(t, err)
	failed := &consumer.HandlerError{Err: errors.New("no such account")}
	outcome, err := consumer.CountFailure(t.Context(), p, ev, failed)
	require.Equal(t, failed, err)
	require.Equal(t, consumer.Replay, outcome)
}

// What no record can hold could not be kept as a letter: it is refused at its first delivery.
func TestEventsThatNoLetterCouldHold(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, providers[2])
	p, err := consumer.New(t.Context(), consumer.Config{Group: "hooks", DB: e.db, Classes: []consumer.Class{webhook.GitHubClass("*")}})
	require.NoError(t, err)
	for name, change := range map[string]func(ev *consumer.Event){
		"a reserved header": func(ev *consumer.Event) { ev.Headers = map[string]string{"traceparent": "00"} },
		"content type":      func(ev *consumer.Event) { ev.ContentType = "text/\xff" },
		"aggregate type":    func(ev *consumer.Event) { ev.AggregateType = "a\x00" },
	} {
		h, body := e.request("1", e.made)
		ev, err := e.sender.Event(h, body)
		require.NoError(t, err)
		change(&ev)
		_, err = consumer.Do(t.Context(), p, ev, func(context.Context, pgx.Tx) (int, error) { return 0, errors.New("not reached") })
		require.ErrorIs(t, err, consumer.ErrEvent, name)
	}
}

// Without its database a receiver refuses, and counts no failure.
func TestWebhookWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, providers[2])
	e.serve(work)
	e.exec("ALTER TABLE onceward.processed_events RENAME TO away")
	away := e.post("1")
	require.Equal(t, http.StatusServiceUnavailable, away.status)
	require.Equal(t, "5", away.retryAfter)
	e.exec("ALTER TABLE onceward.away RENAME TO processed_events")
	require.Equal(t, http.StatusCreated, e.post("1").status)
	require.Zero(t, e.count("SELECT count(*) FROM onceward.attempts"))
}

// Stripe delivers an event again, and somebody lists what was not delivered: one
// effect, and the same answer each time.
func TestStripeCopiesAreDuplicates(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, providers[0])
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: e.db, Classes: []consumer.Class{webhook.StripeClass("*")}})
	require.NoError(t, err)
	created := strconv.FormatInt(time.Now().Unix(), 10)
	for i, body := range stripeCopies {
		ev, err := webhook.StripeEvent("stripe", []byte(strings.Replace(body, "1795514400", created, 1)))
		require.NoError(t, err)
		got, err := consumer.Do(t.Context(), p, ev, func(ctx context.Context, tx pgx.Tx) (string, error) {
			_, err := work(ctx, tx, ev)
			return "booked", err
		})
		require.NoError(t, err)
		require.Equal(t, "booked", got.Result)
		require.Equal(t, i > 0, got.Outcome == consumer.Duplicate)
	}
	require.Equal(t, 1, e.effects())
}
