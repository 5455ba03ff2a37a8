//go:build e2e

package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/record"
)

// promise is one thing that the package promises. check returns how it was
// broken; each of the defects must make it return something.
type promise struct {
	check   func(e *env) error
	defects map[string]consumer.Defect
}

var promises = map[string]promise{
	"delivered five times, one effect":        {fiveDeliveries, map[string]consumer.Defect{"no claim": consumer.NoClaim, "claim late": consumer.ClaimLate}},
	"failing handler leaves nothing":          {failingHandler, map[string]consumer.Defect{"claim beforehand": consumer.ClaimBeforehand, "ignore errors": consumer.IgnoreErrors}},
	"panicking handler leaves nothing":        {panickingHandler, map[string]consumer.Defect{"forget panics": consumer.ForgetPanics, "claim beforehand": consumer.ClaimBeforehand}},
	"swallowed SQL error is a failure":        {swallowedError, map[string]consumer.Defect{"trust handlers": consumer.TrustHandlers}},
	"ignored context is a failure":            {ignoredContext, map[string]consumer.Defect{"forget context": consumer.ForgetContext}},
	"handler cannot commit":                   {handlerCommits, map[string]consumer.Defect{"trust handlers": consumer.TrustHandlers}},
	"handler's rollback is obeyed":            {handlerRollsBack, map[string]consumer.Defect{"ignore errors": consumer.IgnoreErrors}},
	"two deliveries at once, one effect":      {twoAtOnce, map[string]consumer.Defect{"no claim": consumer.NoClaim, "claim late": consumer.ClaimLate}},
	"the second goes on when the first fails": {firstFails, map[string]consumer.Defect{"claim beforehand": consumer.ClaimBeforehand, "no claim": consumer.NoClaim}},
	"a held claim is in progress":             {heldElsewhere, map[string]consumer.Defect{"busy is done": consumer.TakeBusyForDone, "no claim": consumer.NoClaim}},
	"same key, other content":                 {otherContent, map[string]consumer.Defect{"trust keys": consumer.TrustKeys, "no claim": consumer.NoClaim}},
	"another group is new":                    {otherGroup, map[string]consumer.Defect{"ignore groups": consumer.IgnoreGroups}},
	"another key is new":                      {otherKey, map[string]consumer.Defect{"first key for all": consumer.FirstKeyForAll}},
	"a key without partition fails closed":    {noPartition, map[string]consumer.Defect{"default partition": consumer.OpenPartitions, "no claim": consumer.NoClaim}},
	"the transaction is bounded and synced":   {bounded, map[string]consumer.Defect{"unbounded": consumer.Unbounded}},
}

func TestPromises(t *testing.T) {
	for name, p := range promises {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, p.check(newEnv(t, nil)))
		})
	}
}

func TestDefectsAreCaught(t *testing.T) {
	for name, p := range promises {
		for defect, build := range p.defects {
			t.Run(name+"/"+defect, func(t *testing.T) {
				t.Parallel()
				err := p.check(newEnv(t, build))
				require.Error(t, err, "the check does not notice this defect")
				t.Log("caught:", err)
			})
		}
	}
}

func fiveDeliveries(e *env) error {
	r, ev := e.router("billing", effect("billing")), newEvent(e.t)
	if err := deliver(e.t.Context(), r, ev, consumer.Processed); err != nil {
		return err
	}
	for range 4 {
		if err := deliver(e.t.Context(), r, ev, consumer.Duplicate); err != nil {
			return err
		}
	}
	return e.expect(1, 1)
}

// failsOnce runs the delivery twice with a handler that goes wrong the first
// time, and checks that nothing of the first one is left.
func failsOnce(e *env, wrong consumer.TxHandler, first func(error) error) error {
	calls := 0
	r, ev := e.router("billing", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if calls++; calls == 1 {
			return wrong(ctx, tx, ev)
		}
		return effect("billing")(ctx, tx, ev)
	}), newEvent(e.t)
	ctx, cancel := context.WithCancel(context.WithValue(e.t.Context(), cancelKey{}, nil))
	defer cancel()
	_, err := r.Handle(context.WithValue(ctx, cancelKey{}, cancel), ev)
	if err := first(err); err != nil {
		return err
	}
	if err := e.expect(0, 0); err != nil {
		return fmt.Errorf("after the failure: %w", err)
	}
	if err := deliver(e.t.Context(), r, ev, consumer.Processed); err != nil {
		return err
	}
	return e.expect(1, 1)
}

// cancelKey is where a handler finds the cancel function of its delivery.
type cancelKey struct{}

// isHandlerError wants a *HandlerError that wraps target.
func isHandlerError(target error) func(error) error {
	return func(err error) error {
		var he *consumer.HandlerError
		if !errors.As(err, &he) || !errors.Is(err, target) {
			return fmt.Errorf("error %v, want a HandlerError of %w", err, target)
		}
		return nil
	}
}

var errBroken = errors.New("broken")

func failingHandler(e *env) error {
	return failsOnce(e, func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		return errors.Join(effect("billing")(ctx, tx, ev), errBroken)
	}, isHandlerError(errBroken))
}

func panickingHandler(e *env) error {
	return failsOnce(e, func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		_ = effect("billing")(ctx, tx, ev)
		panic(errBroken)
	}, func(err error) error {
		var pe *consumer.PanicError
		if !errors.As(err, &pe) || !strings.Contains(string(pe.Stack), "panickingHandler") {
			return fmt.Errorf("error %v, want a PanicError with its stack", err)
		}
		return isHandlerError(errBroken)(err)
	})
}

func swallowedError(e *env) error {
	return failsOnce(e, func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		_ = effect("billing")(ctx, tx, ev)
		_, _ = tx.Exec(ctx, "SELECT 1/0")
		return nil
	}, isHandlerError(consumer.ErrSwallowed))
}

func ignoredContext(e *env) error {
	return failsOnce(e, func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		ctx.Value(cancelKey{}).(context.CancelFunc)()
		return effect("billing")(context.WithoutCancel(ctx), tx, ev)
	}, func(err error) error {
		if !consumer.IsInfrastructure(err) {
			return fmt.Errorf("error %v, want one of infrastructure", err)
		}
		return isHandlerError(context.Canceled)(err)
	})
}

func handlerCommits(e *env) error {
	return failsOnce(e, func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		_ = effect("billing")(ctx, tx, ev)
		_ = tx.Commit(ctx)
		return nil
	}, isHandlerError(consumer.ErrHandlerTx))
}

func handlerRollsBack(e *env) error {
	return failsOnce(e, func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		_ = effect("billing")(ctx, tx, ev)
		_ = tx.Rollback(ctx)
		return nil
	}, isHandlerError(consumer.ErrHandlerTx))
}

// race starts a second delivery while the first one's handler runs, and lets
// the first go on once the second waits for it, or has returned without having
// waited. end is what the first handler returns.
func race(e *env, end error) (outcomes [2]consumer.Outcome, errs [2]error) {
	ev := newEvent(e.t)
	started, second := make(chan struct{}), make(chan struct{})
	first := true
	r := e.router("billing", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if !first {
			return effect("billing")(ctx, tx, ev)
		}
		first = false
		close(started)
		e.waitBlocked(ctx, second)
		return errors.Join(effect("billing")(ctx, tx, ev), end)
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		outcomes[0], errs[0] = r.Handle(e.t.Context(), ev)
	}()
	<-started
	outcomes[1], errs[1] = r.Handle(e.t.Context(), ev)
	close(second)
	<-done
	return outcomes, errs
}

func twoAtOnce(e *env) error {
	outcomes, errs := race(e, nil)
	if err := errors.Join(errs[0], errs[1]); err != nil {
		return err
	}
	if outcomes != [2]consumer.Outcome{consumer.Processed, consumer.Duplicate} {
		return fmt.Errorf("outcomes %v", outcomes)
	}
	return e.expect(1, 1)
}

func firstFails(e *env) error {
	outcomes, errs := race(e, errBroken)
	if !errors.Is(errs[0], errBroken) || errs[1] != nil {
		return fmt.Errorf("errors %v", errs)
	}
	if outcomes[1] != consumer.Processed {
		return fmt.Errorf("second outcome %s", outcomes[1])
	}
	return e.expect(1, 1)
}

func heldElsewhere(e *env) error {
	ctx, ev := e.t.Context(), newEvent(e.t)
	p, err := consumer.New(ctx, consumer.Config{Group: "billing", DB: e.db, LockTimeout: 50 * time.Millisecond})
	require.NoError(e.t, err)
	r := consumer.NewRouter(p).With(e.defect)
	r.Tx("Paid", effect("billing"))

	holder, err := e.db.Begin(ctx)
	require.NoError(e.t, err)
	defer func() { _ = holder.Rollback(context.WithoutCancel(ctx)) }()
	claim, err := p.Claim(ctx, holder, ev)
	require.NoError(e.t, err)
	require.Equal(e.t, consumer.Processed, claim.Outcome)

	if err := deliver(ctx, r, ev, consumer.InProgress); err != nil {
		return err
	}
	require.NoError(e.t, holder.Rollback(ctx))
	if err := deliver(ctx, r, ev, consumer.Processed); err != nil {
		return err
	}
	return e.expect(1, 1)
}

func otherContent(e *env) error {
	ctx, ev := e.t.Context(), newEvent(e.t)
	r := e.router("billing", effect("billing"))
	if err := deliver(ctx, r, ev, consumer.Processed); err != nil {
		return err
	}
	altered := ev
	altered.Payload = []byte(`{"amount":99}`)
	altered.Source = consumer.Source{Topic: "orders", Partition: 2, Offset: 77}
	for range 2 {
		if err := deliver(ctx, r, altered, consumer.DeadLettered); err != nil {
			return err
		}
	}
	var text string
	var payload []byte
	err := e.db.QueryRow(ctx, `SELECT error, record_value FROM onceward.consumer_dead_letters
		WHERE reason = 'mismatch' AND event_id = $1 AND topic = 'orders' AND kafka_partition = 2 AND kafka_offset = 77`, ev.Key.UUID()).Scan(&text, &payload)
	if err != nil {
		return fmt.Errorf("read the letter: %w", err)
	}
	for _, f := range []record.Fingerprint{ev.Fingerprint(), altered.Fingerprint()} {
		if !strings.Contains(text, f.String()) {
			return fmt.Errorf("letter %q lacks fingerprint %s", text, f)
		}
	}
	if string(payload) != `{"amount":99}` || e.letters() != 1 {
		return fmt.Errorf("payload %s, %d letters", payload, e.letters())
	}
	return e.expect(1, 1)
}

func otherGroup(e *env) error {
	ev := newEvent(e.t)
	for _, group := range []string{"billing", "shipping"} {
		if err := deliver(e.t.Context(), e.router(group, effect(group)), ev, consumer.Processed); err != nil {
			return fmt.Errorf("group %s: %w", group, err)
		}
	}
	return e.expect(2, 2)
}

func otherKey(e *env) error {
	r := e.router("billing", effect("billing"))
	for range 2 {
		if err := deliver(e.t.Context(), r, newEvent(e.t), consumer.Processed); err != nil {
			return err
		}
	}
	return e.expect(2, 2)
}

func noPartition(e *env) error {
	r, ev := e.router("billing", effect("billing")), newEvent(e.t)
	at := time.Now().AddDate(0, 0, -3)
	exec(e.t, e.db, "DROP TABLE onceward."+partition.OfDay("processed_events", at).Name)
	ev.Key = keyAt(e.t, at)
	if _, err := r.Handle(e.t.Context(), ev); !errors.Is(err, consumer.ErrNoPartition) || !strings.Contains(err.Error(), "partitions maintain --side consumer") {
		return fmt.Errorf("error %v, want ErrNoPartition with what to do", err)
	}
	return e.expect(0, 0)
}

func bounded(e *env) error {
	exec(e.t, e.db, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$`)
	e.db.Reset()
	got := map[string]string{}
	r := e.router("billing", func(ctx context.Context, tx pgx.Tx, _ consumer.Event) error {
		for _, name := range []string{"lock_timeout", "idle_in_transaction_session_timeout", "synchronous_commit"} {
			var v string
			if err := tx.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&v); err != nil {
				return err
			}
			got[name] = v
		}
		return nil
	})
	for range 3 { // the first over a connection begins otherwise
		clear(got)
		if err := deliver(e.t.Context(), r, newEvent(e.t), consumer.Processed); err != nil {
			return err
		}
		if got["lock_timeout"] != "0" || got["idle_in_transaction_session_timeout"] != "55s" || got["synchronous_commit"] != "on" {
			return fmt.Errorf("settings %v", got)
		}
	}
	return nil
}
