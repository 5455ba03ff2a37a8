package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/record"
)

func nothing(context.Context, pgx.Tx, consumer.Event) error { return nil }

func TestWrongRegistrations(t *testing.T) {
	cases := map[string]struct {
		register func(r *consumer.Router)
		want     string
	}{
		"empty type":          {func(r *consumer.Router) { r.Tx("", nothing) }, `"": the event type is empty`},
		"nil handler":         {func(r *consumer.Router) { r.Tx("A", nil) }, `"A": the handler is nil`},
		"twice":               {func(r *consumer.Router) { r.Tx("A", nothing); r.Tx("A", nothing) }, `"A": registered twice`},
		"handled and ignored": {func(r *consumer.Router) { r.Tx("A", nothing); r.Ignore("A") }, `"A": registered twice`},
		"pattern twice":       {func(r *consumer.Router) { r.Ignore("A*"); r.Func("A*", nil); r.Ignore("A*") }, `"A*": the handler is nil`},
		"open in the middle":  {func(r *consumer.Router) { r.Ignore("A*B") }, `"A*B": want an event type, or the beginning of one followed by *`},
		"unknown policy":      {func(r *consumer.Router) { r.Unknown("drop") }, `Unknown("drop"): want stop or dead-letter`},
		"no memory": {func(r *consumer.Router) {
			r.AtLeastOnce("A", func(context.Context, consumer.Event) error { return nil }, consumer.Remembered)
		}, `"A": Remembered, and Config.Completed is nil`},
		"the first counts": {func(r *consumer.Router) { r.Ignore(""); r.Tx("A", nil) }, `"": the event type is empty`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := consumer.NewRouter(consumer.Disconnected())
			require.NoError(t, r.Err())
			c.register(r)
			require.ErrorIs(t, r.Err(), consumer.ErrRegistration)
			require.ErrorContains(t, r.Err(), c.want)
			_, err := r.Handle(t.Context(), consumer.Event{Event: record.Event{Key: mustKey(t, someKey), Type: "A"}})
			require.ErrorIs(t, err, consumer.ErrRegistration)
			require.True(t, consumer.Permanent(err))
		})
	}
}

// Of the registrations that match a type the most special one counts, whatever
// their order, and whether it handles or ignores.
func TestIgnorePatterns(t *testing.T) {
	register := []func(r *consumer.Router){
		func(r *consumer.Router) { r.Ignore("*") },
		func(r *consumer.Router) { r.Tx("Order*", nothing) },
		func(r *consumer.Router) { r.Ignore("OrderTest*") },
		func(r *consumer.Router) { r.Batch("OrderTested", consumer.BatchOptions{}, nothing) },
		func(r *consumer.Router) {
			r.Func("Charge*", func(context.Context, consumer.Event) error { return nil })
		},
		func(r *consumer.Router) { r.Ignore("Charge") },
	}
	rapid.Check(t, func(t *rapid.T) {
		r := consumer.NewRouter(consumer.Disconnected())
		for _, i := range rapid.Permutation([]int{0, 1, 2, 3, 4, 5}).Draw(t, "order") {
			register[i](r)
		}
		require.NoError(t, r.Err())
		for eventType, want := range map[string]string{
			"Shipped": "ignored", "Order": "tx", "OrderPaid": "tx", "OrderTest": "ignored", "OrderTest2": "ignored", "OrderTested": "batch",
			"Charge": "ignored", "ChargeAsked": "func", "order": "ignored",
		} {
			require.Equal(t, want, r.Route(eventType), eventType)
		}
	})
	r := consumer.NewRouter(consumer.Disconnected())
	r.Ignore("Order*")
	require.Contains(t, r.Route("Shipped"), "no handler")
	got, err := r.Handle(t.Context(), consumer.Event{Event: record.Event{Key: mustKey(t, someKey), Type: "OrderPaid"}}) // has no database
	require.NoError(t, err)
	require.Equal(t, consumer.Ignored, got)
}

func TestHandleRefusesBeforeTheDatabase(t *testing.T) {
	r := consumer.NewRouter(consumer.Disconnected()) // has no database
	for name, ev := range map[string]consumer.Event{
		"no key":        {Event: record.Event{Type: "A"}},
		"no type":       {Event: record.Event{Key: mustKey(t, someKey)}},
		"type with NUL": {Event: record.Event{Key: mustKey(t, someKey), Type: "A\x00"}},
	} {
		_, err := r.Handle(t.Context(), ev)
		require.ErrorIs(t, err, consumer.ErrEvent, name)
	}
	_, err := r.HandleRecord(t.Context(), consumer.Record{})
	require.ErrorContains(t, err, "Source.Topic")
}

func TestConfigErrorsNameFieldAndValue(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "host=127.0.0.1 port=1")
	require.NoError(t, err)
	defer pool.Close()
	long := make([]byte, 256)
	for name, c := range map[string]struct {
		cfg  consumer.Config
		want string
	}{
		"no group":       {consumer.Config{DB: pool}, `Group ""`},
		"long group":     {consumer.Config{DB: pool, Group: string(long)}, "1 to 255 bytes"},
		"group with NUL": {consumer.Config{DB: pool, Group: "a\x00"}, `Group "a\x00"`},
		"no pool":        {consumer.Config{Group: "g"}, "DB is nil"},
		"negative lock":  {consumer.Config{Group: "g", DB: pool, LockTimeout: -time.Second}, "LockTimeout -1s"},
		"too short":      {consumer.Config{Group: "g", DB: pool, SessionTimeout: time.Microsecond}, "SessionTimeout 1µs"},
		"too long":       {consumer.Config{Group: "g", DB: pool, SessionTimeout: 600 * time.Hour}, "SessionTimeout 600h0m0s"},
		"nobody answers": {consumer.Config{Group: "g", DB: pool}, "look for the consumer's tables"},
	} {
		_, err := consumer.New(t.Context(), c.cfg)
		require.ErrorContains(t, err, c.want, name)
	}
}

func TestOutcomes(t *testing.T) {
	for o, want := range map[consumer.Outcome]struct {
		name string
		ack  bool
	}{
		0: {"outcome(0)", false}, consumer.Processed: {"processed", true}, consumer.Duplicate: {"duplicate", true},
		consumer.InProgress: {"in progress", false}, consumer.Mismatch: {"mismatch", true},
		consumer.DeadLettered: {"dead-lettered", true}, consumer.Ignored: {"ignored", true}, 99: {"outcome(99)", false},
	} {
		require.Equal(t, want.name, o.String())
		require.Equal(t, want.ack, o.Acknowledges(), want.name)
	}
}

func TestIsInfrastructure(t *testing.T) {
	for code, want := range map[string]bool{
		"08006": true, "25006": true, "25P03": true, "40001": true, "40P01": true, "53300": true, "55P03": true, "57P01": true, "57P03": true, "58030": true,
		"23505": false, "23514": false, "22P02": false, "25P02": false, "42P01": false, "42501": false, "57014": false, "": false,
	} {
		err := fmt.Errorf("claim: %w", &pgconn.PgError{Code: code})
		require.Equal(t, want, consumer.IsInfrastructure(err), code)
		require.False(t, consumer.IsInfrastructure(&consumer.HandlerError{Err: err}), "what a handler returns was judged by then")
		require.False(t, consumer.IsInfrastructure(errors.Join(errors.New("other"), &consumer.HandlerError{Err: err})))
	}
	require.False(t, consumer.IsInfrastructure(nil))
	require.False(t, consumer.IsInfrastructure(errors.New("broken")))
	require.False(t, consumer.Permanent(errors.New("broken")))
	require.False(t, consumer.Permanent(&consumer.HandlerError{Err: fmt.Errorf("another event: %w", consumer.ErrNoClass)}), "of what the handler asked about")
	require.True(t, consumer.Permanent(&consumer.HandlerError{Err: consumer.ErrInstallation}))
	require.True(t, consumer.Permanent(&consumer.HandlerError{Err: consumer.ErrRegistration}), "a Processor of another database")
}

func TestPanicErrorUnwraps(t *testing.T) {
	cause := errors.New("broken")
	require.ErrorIs(t, &consumer.PanicError{Value: cause}, cause)
	require.NoError(t, errors.Unwrap(&consumer.PanicError{Value: "text"}))
	require.ErrorContains(t, &consumer.PanicError{Value: "text", Stack: []byte("goroutine 1")}, "goroutine 1")
}

// A record is never too odd to be kept: jsonb has no NUL.
func FuzzEncodeHeaders(f *testing.F) {
	f.Add("name", []byte("value"))
	f.Add("\x00\xff", []byte(nil))
	f.Fuzz(func(t *testing.T, name string, value []byte) {
		b, err := record.StoreHeaders([]consumer.Header{{Name: name, Value: value}})
		require.NoError(t, err)
		var pairs [][2]*string
		require.NoError(t, json.Unmarshal(b, &pairs))
		require.Len(t, pairs, 1)
		require.NotContains(t, *pairs[0][0], "\x00")
	})
}

// TestEffectsByContentAreRefused: a handler whose effects would be remembered for longer than the
// class remembers the event, whatever its pattern.
func TestEffectsByContentAreRefused(t *testing.T) {
	fn := func(context.Context, consumer.Event) error { return nil }
	for name, c := range map[string]struct {
		register func(r *consumer.Router)
		refused  bool
	}{
		"func":                           {func(r *consumer.Router) { r.Func("Read", fn) }, true},
		"func of a pattern in the class": {func(r *consumer.Router) { r.Func("Readings*", fn) }, true},
		"func of a wider one":            {func(r *consumer.Router) { r.Func("*", fn) }, true},
		"that leaves the class out":      {func(r *consumer.Router) { r.Func("*", fn); r.Tx("Read*", nothing) }, false},
		"whatever the order":             {func(r *consumer.Router) { r.Batch("Read*", consumer.BatchOptions{}, nothing); r.Func("*", fn) }, false},
		"a handler without a claim":      {func(r *consumer.Router) { r.AtLeastOnce("*", fn) }, false},
		"what is ignored":                {func(r *consumer.Router) { r.Func("*", fn); r.Ignore("Read*") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := consumer.Reading([]consumer.Class{{Pattern: "*", Window: time.Hour}, {Pattern: "Read*", Window: time.Hour, Keyed: consumer.ByArrival, Content: true}})
			require.NoError(t, err)
			r := consumer.NewRouter(p)
			c.register(r)
			if !c.refused {
				require.NoError(t, r.Err())
				return
			}
			require.ErrorIs(t, r.Err(), consumer.ErrRegistration)
			require.ErrorContains(t, r.Err(), "keyed by content")
			require.ErrorContains(t, r.Err(), "use Router.Tx")
			_, err = r.Handle(t.Context(), consumer.Event{Event: record.Event{Key: mustKey(t, someKey), Type: "ReadingsTaken"}})
			require.ErrorIs(t, err, consumer.ErrRegistration)
			require.True(t, consumer.Permanent(err))
		})
	}
}
