package outboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/outbox/outboxtest"
)

// pay stands for the service under test.
func pay(ctx context.Context, tx outbox.Tx, invoice string) error {
	key, err := outbox.NewKey("billing")
	if err != nil {
		return err
	}
	_, err = outbox.Enqueue(ctx, tx, outbox.Event{
		Key: key, AggregateType: "invoice", AggregateID: invoice, Type: "InvoicePaid", Payload: []byte(`{"paid":true,"invoice":"` + invoice + `"}`),
	})
	return err
}

func ExampleRecorder() {
	var tx outboxtest.Recorder
	if err := pay(context.Background(), &tx, "inv-7"); err != nil {
		fmt.Println(err)
	}
	for _, ev := range tx.Events() {
		fmt.Println(ev.Type, ev.AggregateID, string(ev.Payload))
	}
	// Output: InvoicePaid inv-7 {"paid":true,"invoice":"inv-7"}
}

func TestRecorderInATest(t *testing.T) {
	var tx outboxtest.Recorder
	require.NoError(t, pay(t.Context(), &tx, "inv-7"))
	outboxtest.RequireEnqueued(t, tx.Events(),
		outbox.Event{AggregateType: "invoice", AggregateID: "inv-7", Type: "InvoicePaid", Payload: []byte(`{"invoice": "inv-7", "paid": true}`)})
}

func newEvent(t *testing.T) outbox.Event {
	t.Helper()
	key, err := outbox.NewKey("billing")
	require.NoError(t, err)
	return outbox.Event{
		Key: key, AggregateType: "invoice", AggregateID: "inv-7", Type: "InvoicePaid", Payload: []byte("p"), ContentType: "text/plain",
		Headers: map[string]string{"tenant": "acme"}, Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	}
}

// ways are those of package outbox that a Recorder plays.
var ways = map[string]func(context.Context, *outboxtest.Recorder, outbox.Event) (outbox.Result, error){
	"Enqueue": func(ctx context.Context, r *outboxtest.Recorder, ev outbox.Event) (outbox.Result, error) {
		return outbox.Enqueue(ctx, r, ev)
	},
	"EnqueueSQL": func(ctx context.Context, r *outboxtest.Recorder, ev outbox.Event) (outbox.Result, error) {
		return outbox.EnqueueSQL(ctx, r.SQL(), ev)
	},
	"EnqueueMany": func(ctx context.Context, r *outboxtest.Recorder, ev outbox.Event) (outbox.Result, error) {
		rs, err := outbox.EnqueueMany(ctx, r, []outbox.Event{ev})
		if len(rs) == 0 {
			return 0, err
		}
		return rs[0], err
	},
}

func TestRecorderAnswersAsPostgreSQL(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			var r outboxtest.Recorder
			ev, tombstone := newEvent(t), newEvent(t)
			tombstone.Payload, tombstone.Headers, tombstone.Traceparent = nil, nil, ""
			for _, e := range []outbox.Event{ev, tombstone} {
				for _, want := range []outbox.Result{outbox.Enqueued, outbox.Duplicate} {
					got, err := way(t.Context(), &r, e)
					require.NoError(t, err)
					require.Equal(t, want, got)
				}
			}
			require.Equal(t, []outbox.Event{ev, tombstone}, r.Events())
			for field, change := range map[string]func(*outbox.Event){
				"payload": func(e *outbox.Event) { e.Payload = nil },
				"headers": func(e *outbox.Event) { e.Headers = nil },
				"type":    func(e *outbox.Event) { e.Type = "Other" },
			} {
				other := ev
				change(&other)
				_, err := way(t.Context(), &r, other)
				require.ErrorIs(t, err, outbox.ErrKeyReused, field)
			}
			broken := ev
			broken.AggregateID = ""
			_, err := way(t.Context(), &r, broken)
			require.ErrorIs(t, err, outbox.ErrEvent)

			boom := errors.New("boom")
			r.Err = boom
			_, err = way(t.Context(), &r, newEvent(t))
			require.ErrorIs(t, err, boom)
			require.Len(t, r.Events(), 2)
		})
	}
}

func TestRecorderRefusesForeignStatements(t *testing.T) {
	var r outboxtest.Recorder
	_, err := r.Exec(t.Context(), "UPDATE invoices SET paid = true")
	require.ErrorIs(t, err, outboxtest.ErrStatement)
	require.ErrorContains(t, err, "UPDATE invoices")
	require.ErrorIs(t, r.QueryRow(t.Context(), "SELECT 1").Scan(new(int)), outboxtest.ErrStatement)
	rows, err := r.SQL().QueryContext(t.Context(), "SELECT 1")
	require.ErrorIs(t, err, outboxtest.ErrStatement)
	require.Nil(t, rows)
}

func TestQueued(t *testing.T) {
	var batch pgx.Batch
	ev := newEvent(t)
	batch.Queue("UPDATE invoices SET paid = true")
	require.NoError(t, outbox.QueueEnqueue(&batch, ev, nil))
	require.Equal(t, []outbox.Event{ev}, outboxtest.Queued(t, &batch))
}

// fake is a TB that keeps what it is told.
type fake struct {
	*testing.T
	message string
}

func (f *fake) Fatalf(format string, args ...any) { f.message = fmt.Sprintf(format, args...) }

func TestRequireEnqueuedSaysWhatDiffers(t *testing.T) {
	ev := newEvent(t)
	any7 := outbox.Event{AggregateType: "invoice", AggregateID: "inv-7", Type: "InvoicePaid", Payload: []byte("p"), ContentType: "text/plain", Headers: map[string]string{"tenant": "acme"}}
	outboxtest.RequireEnqueued(t, []outbox.Event{ev}, ev)
	outboxtest.RequireEnqueued(t, []outbox.Event{ev}, any7)
	outboxtest.RequireEnqueued(t, nil)

	with := func(change func(*outbox.Event)) []outbox.Event {
		e := ev
		change(&e)
		return []outbox.Event{e}
	}
	for want, got := range map[string][]outbox.Event{
		"event 0 is missing, want InvoicePaid of invoice": nil,
		"event 1 is not wanted: InvoicePaid":              {ev, ev},
		`AggregateType is "order", want "invoice"`:        with(func(e *outbox.Event) { e.AggregateType = "order" }),
		`AggregateID is "x"`:                              with(func(e *outbox.Event) { e.AggregateID = "x" }),
		`Type is "x"`:                                     with(func(e *outbox.Event) { e.Type = "x" }),
		`ContentType is "application/json"`:               with(func(e *outbox.Event) { e.ContentType = "" }),
		`Headers is`:                                      with(func(e *outbox.Event) { e.Headers = nil }),
		`Key is "billing:`:                                with(func(e *outbox.Event) { e.Key = newEvent(t).Key }),
		`Traceparent is ""`:                               with(func(e *outbox.Event) { e.Traceparent = "" }),
		`Payload is nil (a tombstone), want "p"`:          with(func(e *outbox.Event) { e.Payload = nil }),
		`Payload is "", want "p"`:                         with(func(e *outbox.Event) { e.Payload = []byte{} }),
		`(600 bytes)`:                                     with(func(e *outbox.Event) { e.Payload = []byte(strings.Repeat("x", 600)) }),
	} {
		f := &fake{T: t}
		outboxtest.RequireEnqueued(f, got, ev)
		require.Contains(t, f.message, want)
	}
}

func TestPayloadsAreComparedByTheirType(t *testing.T) {
	for name, c := range map[string]struct {
		contentType, got, want string
		same                   bool
	}{
		"order of keys":  {"", `{"a":1,"b":2}`, `{"b": 2, "a": 1}`, true},
		"large numbers":  {"", `9007199254740993`, `9007199254740992`, false},
		"charset":        {"application/json; charset=utf-8", `[1, 2]`, `[1,2]`, true},
		"suffix":         {"application/cloudevents+json", `[1, 2]`, `[1,2]`, true},
		"text":           {"text/plain", `[1, 2]`, `[1,2]`, false},
		"not JSON":       {"", `{`, `{ `, false},
		"trailing value": {"", `1 2`, `1`, false},
	} {
		got, want := newEvent(t), outbox.Event{AggregateType: "invoice", AggregateID: "inv-7", Type: "InvoicePaid", Headers: map[string]string{"tenant": "acme"}}
		got.ContentType, want.ContentType = c.contentType, c.contentType
		got.Payload, want.Payload = []byte(c.got), []byte(c.want)
		f := &fake{T: t}
		outboxtest.RequireEnqueued(f, []outbox.Event{got}, want)
		require.Equal(t, c.same, f.message == "", "%s: %s", name, f.message)
	}
}
