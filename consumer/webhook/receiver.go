package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// Handler does the work of an event with the transaction that has claimed it, and
// returns what every delivery of the event is answered. It keeps the rules of a
// [consumer.TxHandler].
type Handler func(ctx context.Context, tx pgx.Tx, ev consumer.Event) (Answer, error)

// Answer is what a delivery is answered. It is stored with the claim.
type Answer struct {
	Status      int    // 200 to 499; default 200. Others than 2xx have most senders come again, for the same answer
	ContentType string // default application/json
	Body        []byte
}

// Config is what [New] needs.
type Config struct {
	// Sender is who sends. Required.
	Sender Sender
	// Secrets are those that the sender may sign with: the new one and the old one, while
	// it is changed. Required, none empty.
	Secrets []string
	// Consumer is the group that claims: Group and DB are required, the group for this
	// receiver alone. Classes are that of the sender, and Retry.MaxAttempts its Tries,
	// unless they are set.
	Consumer consumer.Config
	// Do does the work, when the answer needs its result. Default: the event is enqueued.
	Do Handler
	// MaxBody is how long a body may be, in bytes. Default 1 MiB; GitHub sends up to 25.
	MaxBody int64
}

// Receiver is the [http.Handler] of one endpoint. Make it with [New].
type Receiver struct {
	sender    Sender
	secrets   []string
	maxBody   int64
	do        Handler
	processor *consumer.Processor
	router    *consumer.Router
	longest   time.Duration
	log       *slog.Logger
	now       func() time.Time
}

// New returns the receiver of an endpoint, and registers its class in the database. The
// error names the field and its value, or is that of [consumer.New].
func New(ctx context.Context, cfg Config) (*Receiver, error) {
	if err := cfg.Sender.validate(); err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	if len(cfg.Secrets) == 0 || slices.Contains(cfg.Secrets, "") {
		return nil, errors.New("webhook: Secrets: none, or an empty one, which anybody can sign with; give the endpoint's secret")
	}
	if cfg.MaxBody < 0 {
		return nil, fmt.Errorf("webhook: MaxBody %d: want 1 or more bytes", cfg.MaxBody)
	}
	c := cfg.Consumer
	if len(c.Classes) == 0 {
		c.Classes = []consumer.Class{cfg.Sender.Class}
	}
	if c.Retry.MaxAttempts == 0 {
		c.Retry.MaxAttempts = max(cfg.Sender.Tries, 1)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	p, err := consumer.New(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	r := &Receiver{
		sender: cfg.Sender, secrets: slices.Clone(cfg.Secrets), maxBody: cmp.Or(cfg.MaxBody, 1<<20), do: cfg.Do,
		processor: p, router: consumer.NewRouter(p), log: c.Logger.With("group", c.Group), now: time.Now,
		longest: 2*cmp.Or(c.LockTimeout, 5*time.Second) + cmp.Or(c.HandlerTimeout, 45*time.Second),
	}
	if r.do == nil {
		r.do = enqueue
	}
	for _, class := range c.Classes {
		r.router.Tx(class.Pattern, r.again)
	}
	if err := r.router.Err(); err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	return r, nil
}

// Redrive handles the group's dead letters again for which `outboxctl dead redrive --side
// consumer` has asked, as [consumer.Router.Redrive] does. Call it every now and then.
func (r *Receiver) Redrive(ctx context.Context, limit int) (done int, err error) {
	return r.router.Redrive(ctx, limit)
}

// ServeHTTP implements [http.Handler]. The package comment has the answers.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	answer, refused := r.receive(w, req)
	if refused != nil {
		r.log.WarnContext(req.Context(), "webhook refused", "status", refused.status, "error", refused.err, "remote", req.RemoteAddr)
		switch refused.status {
		case http.StatusMethodNotAllowed:
			w.Header().Set("Allow", http.MethodPost)
		case http.StatusServiceUnavailable:
			w.Header().Set("Retry-After", "5")
		}
		http.Error(w, refused.text, refused.status)
		return
	}
	if len(answer.Body) > 0 {
		w.Header().Set("Content-Type", cmp.Or(answer.ContentType, "application/json"))
	}
	w.WriteHeader(cmp.Or(answer.Status, http.StatusOK))
	_, _ = w.Write(answer.Body) // a sender that is gone asks again
}

// refusal is a status, what the sender is told, and what the log is.
type refusal struct {
	status int
	text   string
	err    error
}

// refuse is a refusal of which the sender is told all.
func refuse(status int, err error) *refusal { return &refusal{status, err.Error(), err} }

// receive reads, verifies and applies one delivery.
func (r *Receiver) receive(w http.ResponseWriter, req *http.Request) (Answer, *refusal) {
	if req.Method != http.MethodPost {
		return Answer{}, refuse(http.StatusMethodNotAllowed, errors.New("webhooks are posted"))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, r.maxBody))
	if tooLong := (*http.MaxBytesError)(nil); errors.As(err, &tooLong) {
		return Answer{}, refuse(http.StatusRequestEntityTooLarge, fmt.Errorf("the body has more than %d bytes", tooLong.Limit))
	}
	if err != nil {
		return Answer{}, &refusal{http.StatusBadRequest, "the body could not be read", err}
	}
	if err := r.verify(req.Header, body); err != nil {
		return Answer{}, refuse(cmp.Or(r.sender.Unsigned, http.StatusUnauthorized), err)
	}
	ev, err := r.sender.Event(req.Header, body)
	if err != nil {
		return Answer{}, refuse(http.StatusBadRequest, err)
	}
	// A sender that hangs up would take the work back that its next delivery asks for.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(req.Context()), r.longest)
	defer cancel()
	return r.apply(ctx, ev)
}

func (r *Receiver) verify(h http.Header, body []byte) (err error) {
	for _, secret := range r.secrets {
		if err = r.sender.Verify(h, body, secret, r.now()); err == nil || errors.Is(err, errOld) {
			return err
		}
	}
	return err
}

// apply claims the event and does its work, or finds the answer of the delivery that did.
func (r *Receiver) apply(ctx context.Context, ev consumer.Event) (Answer, *refusal) {
	receipt, err := consumer.Do(ctx, r.processor, ev, func(ctx context.Context, tx pgx.Tx) (json.RawMessage, error) {
		return r.stored(ctx, tx, ev)
	})
	outcome, handler := receipt.Outcome, (*consumer.HandlerError)(nil)
	if errors.As(err, &handler) {
		outcome, err = consumer.CountFailure(ctx, r.processor, ev, err)
		if err == nil && outcome != consumer.DeadLettered { // another delivery was faster, and has the answer
			return Answer{}, &refusal{http.StatusServiceUnavailable, "deliver it again", consumer.ErrInProgress}
		}
	}
	mismatch := (*consumer.MismatchError)(nil)
	switch {
	case outcome == consumer.DeadLettered:
		return deadLettered(ev), nil
	case err == nil:
		return r.first(ctx, ev, receipt.Result), nil
	case consumer.IsInfrastructure(err): // whatever it is inside
	case handler != nil:
		return Answer{}, &refusal{http.StatusInternalServerError, "the event could not be handled; deliver it again", err}
	case errors.As(err, &mismatch):
		return Answer{}, &refusal{http.StatusConflict, "the id of this event is taken by one with other content", err}
	case errors.Is(err, consumer.ErrNotApplied) && outcome != consumer.FromFuture:
		return Answer{}, &refusal{http.StatusConflict, "the time of this event lies before those that are remembered; it may have been applied before", err}
	case errors.Is(err, consumer.ErrEvent):
		return Answer{}, &refusal{http.StatusBadRequest, "no event", err}
	}
	return Answer{}, &refusal{http.StatusServiceUnavailable, "the event cannot be handled now; deliver it again", err}
}

// again is the handler of a redrive. It leaves the answer for deliveries that follow.
func (r *Receiver) again(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
	stored, err := r.stored(ctx, tx, ev)
	if err != nil {
		return err
	}
	return r.processor.Complete(ctx, tx, ev, stored)
}

// stored does the work, and returns its answer as it is kept with the claim.
func (r *Receiver) stored(ctx context.Context, tx pgx.Tx, ev consumer.Event) (json.RawMessage, error) {
	answer, err := r.answer(ctx, tx, ev)
	if err != nil {
		return nil, err
	}
	stored, err := json.Marshal(answer)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return stored, nil
}

// first is the answer of the delivery that did the work. Where something else is kept with
// its claim, that was another program of the group: the event is done all the same, and
// its sender has to stop.
func (r *Receiver) first(ctx context.Context, ev consumer.Event, stored json.RawMessage) (a Answer) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(stored, &fields); err == nil && fields["Status"] != nil && fields["Body"] != nil &&
		json.Unmarshal(stored, &a) == nil && wellFormed(a.Status) {
		return a
	}
	r.log.WarnContext(ctx, "the event was applied before, with a result that is no answer of package webhook; it is acknowledged without that",
		"event", ev.Key.String(), "type", ev.Type)
	return said(ev.Key, consumer.Duplicate.String())
}

// wellFormed reports whether a status is one that an [Answer] may have.
func wellFormed(status int) bool { return status == 0 || status >= 200 && status <= 499 }

func (r *Receiver) answer(ctx context.Context, tx pgx.Tx, ev consumer.Event) (Answer, error) {
	a, err := r.do(ctx, tx, ev)
	if err == nil && !wellFormed(a.Status) {
		err = fmt.Errorf("the handler's answer has the status %d: want 200 to 499; return an error to have the event delivered again", a.Status)
	}
	return a, err
}

// enqueue is the Handler of the mode Enqueue. A key without a time gets that of the arrival:
// the claim sees to it that one is enqueued.
func enqueue(ctx context.Context, tx pgx.Tx, ev consumer.Event) (a Answer, err error) {
	key := ev.Key
	if record.Timeless(key) {
		if key, err = outbox.ExternalKey(key.Namespace(), key.UUID().String(), time.Now()); err != nil {
			return a, err
		}
	}
	_, err = outbox.Enqueue(ctx, tx, outbox.Event{
		Key: key, AggregateType: ev.AggregateType, AggregateID: ev.AggregateID, Type: ev.Type,
		Payload: ev.Payload, ContentType: ev.ContentType, Headers: ev.Headers, Traceparent: ev.Traceparent,
	})
	return said(key, "enqueued"), err
}

// deadLettered is the answer of an event that was given up. 2xx: no delivery changes that.
func deadLettered(ev consumer.Event) Answer {
	a := said(ev.Key, consumer.DeadLettered.String())
	a.Status = http.StatusAccepted
	return a
}

func said(key outbox.Key, outcome string) Answer {
	return Answer{Body: fmt.Appendf(nil, "{\"event\":%q,\"outcome\":%q}\n", key, outcome)}
}
