//go:build e2e

package consumer_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/record"
)

// provider is a payment provider that remembers keys, as good ones do.
type provider struct {
	mu      sync.Mutex
	charges map[string]string // by key
	calls   []consumer.Call
	before  func(ctx context.Context, c consumer.Call) error
	after   func(ctx context.Context, c consumer.Call) error
}

func (p *provider) charge(ctx context.Context, c consumer.Call) (string, error) {
	if p.before != nil {
		if err := p.before(ctx, c); err != nil {
			return "", err
		}
	}
	p.mu.Lock()
	p.calls = append(p.calls, c)
	if p.charges == nil {
		p.charges = make(map[string]string)
	}
	if p.charges[c.Key] == "" {
		p.charges[c.Key] = "ch-" + c.Key
	}
	charge := p.charges[c.Key]
	p.mu.Unlock()
	if p.after != nil {
		if err := p.after(ctx, c); err != nil {
			return "", err
		}
	}
	return charge, nil
}

// shop is a consumer that charges through a provider and books the charge.
type shop struct {
	*env
	processor *consumer.Processor
	event     consumer.Event
	provider  *provider
	effect    consumer.Effect[string]
}

func newShop(t *testing.T) *shop {
	t.Helper()
	e := newEnv(t, nil)
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: e.db})
	require.NoError(t, err)
	s := &shop{env: e, processor: p, event: newEvent(t), provider: &provider{}}
	s.effect = consumer.Effect[string]{
		Name: "charge", Lease: time.Minute, Do: s.provider.charge,
		Commit: func(ctx context.Context, tx pgx.Tx, charge string) error {
			_, err := tx.Exec(ctx, "INSERT INTO effects (event, consumer_group) VALUES ($1, 'billing')", charge)
			return err
		},
	}
	return s
}

func (s *shop) fence(ctx context.Context) (consumer.Receipt[string], error) {
	return consumer.Fence(ctx, s.processor, s.event, s.effect)
}

// once checks that there is one charge, one booking, one claim, one complete
// fence, and that a further delivery is a duplicate with the same result.
func (s *shop) once() {
	s.t.Helper()
	require.Len(s.t, s.provider.charges, 1)
	require.NoError(s.t, s.expect(1, 1))
	require.Equal(s.t, 1, count(s.t, s.db, "SELECT count(*) FROM onceward.fences WHERE status = 'COMPLETE'"))
	calls := len(s.provider.calls)
	got, err := s.fence(s.t.Context())
	require.NoError(s.t, err)
	require.Equal(s.t, consumer.Duplicate, got.Outcome)
	require.Equal(s.t, s.provider.charges[s.provider.calls[0].Key], got.Result)
	require.False(s.t, got.AppliedAt.IsZero())
	require.Len(s.t, s.provider.calls, calls, "a duplicate does not call the provider")
}

// expire lets the lease run out, as if its holder had died long ago.
func (s *shop) expire() {
	exec(s.t, s.db, "UPDATE onceward.fences SET lease_until = clock_timestamp() - interval '1 second' WHERE status = 'PENDING'")
}

var errProvider = errors.New("provider is down")

func TestFence(t *testing.T) {
	for name, scenario := range map[string]func(t *testing.T, s *shop){
		"once":                                        fenceOnce,
		"a live lease is in progress":                 fenceLive,
		"an expired lease is taken over":              fenceTakeover,
		"a zombie cannot complete":                    fenceZombie,
		"nor complete another's attempt":              fenceOvertaken,
		"the heartbeat keeps the lease":               fenceHeartbeat,
		"a failure gives the lease back":              fenceFailure,
		"failure after the provider's success":        fenceLostAnswer,
		"failing commit":                              fenceFailingCommit,
		"a stale fence is not driven":                 fenceStale,
		"a stale fence is reconciled":                 fenceReconciled,
		"a stale fence that did not happen is driven": fenceNotFound,
		"same key, other content":                     fenceMismatch,
		"no partition, no effect":                     fenceNoPartition,
		"a panic of the provider":                     fencePanic,
		"many at once":                                fenceMany,
		"two effects of one event":                    fenceTwoEffects,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario(t, newShop(t))
		})
	}
}

func fenceOnce(t *testing.T, s *shop) {
	got, err := s.fence(t.Context())
	require.NoError(t, err)
	require.Equal(t, consumer.Processed, got.Outcome)
	require.NotEmpty(t, got.Result)
	require.EqualValues(t, 1, s.provider.calls[0].Epoch)
	require.Contains(t, s.provider.calls[0].Key, s.event.Key.String())
	s.once()
}

func fenceLive(t *testing.T, s *shop) {
	var inside error
	s.provider.before = func(ctx context.Context, _ consumer.Call) error {
		_, inside = consumer.Fence(ctx, s.processor, s.event, s.effect)
		return nil
	}
	_, err := s.fence(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, inside, consumer.ErrInProgress)
	s.provider.before = nil
	s.once()
}

// died leaves a fence behind as a process does that was killed before, or after,
// the provider had answered.
func (s *shop) died(charged bool) {
	s.t.Helper()
	crash := errors.New("killed")
	if charged {
		s.provider.after = func(context.Context, consumer.Call) error { return crash }
	} else {
		s.provider.before = func(context.Context, consumer.Call) error { return crash }
	}
	_, err := s.fence(s.t.Context())
	require.ErrorIs(s.t, err, crash)
	s.provider.before, s.provider.after = nil, nil
	exec(s.t, s.db, "UPDATE onceward.fences SET lease_until = clock_timestamp() + interval '1 hour'") // it gave nothing back
}

func fenceTakeover(t *testing.T, s *shop) {
	s.died(false)
	_, err := s.fence(t.Context())
	require.ErrorIs(t, err, consumer.ErrInProgress, "its lease is not over")
	s.expire()
	got, err := s.fence(t.Context())
	require.NoError(t, err)
	require.Equal(t, consumer.Processed, got.Outcome)
	require.EqualValues(t, 2, s.provider.calls[0].Epoch)
	s.once()
}

func fenceZombie(t *testing.T, s *shop) {
	s.provider.before = func(ctx context.Context, c consumer.Call) error {
		if c.Epoch > 1 {
			return nil
		}
		// It sleeps for longer than its lease; another one goes on.
		s.expire() //nolint:contextcheck // the test's own statement, not part of the attempt
		_, err := consumer.Fence(ctx, s.processor, s.event, s.effect)
		return err
	}
	_, err := s.fence(t.Context())
	require.ErrorIs(t, err, consumer.ErrLeaseLost)
	require.Len(t, s.provider.calls, 2)
	require.Equal(t, s.provider.calls[0].Key, s.provider.calls[1].Key, "the same key at every attempt")
	s.once()
}

// fenceOvertaken: the one that took over is still at work when the zombie wakes.
func fenceOvertaken(t *testing.T, s *shop) {
	s.provider.before = func(context.Context, consumer.Call) error {
		exec(t, s.db, "UPDATE onceward.fences SET epoch = epoch + 1") //nolint:contextcheck // another process, not this attempt
		return nil
	}
	_, err := s.fence(t.Context())
	require.ErrorIs(t, err, consumer.ErrLeaseLost)
	require.NoError(t, s.expect(0, 0))
	s.provider.before = nil
	s.expire()
	_, err = s.fence(t.Context())
	require.NoError(t, err)
	s.once()
}

func fenceHeartbeat(t *testing.T, s *shop) {
	s.effect.Lease = 300 * time.Millisecond
	s.provider.before = func(ctx context.Context, _ consumer.Call) error {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if _, err := consumer.Fence(ctx, s.processor, s.event, s.effect); !errors.Is(err, consumer.ErrInProgress) {
				return errors.Join(errors.New("another attempt got in"), err)
			}
			if count(t, s.db, "SELECT count(*) FROM onceward.fences WHERE clock_timestamp() > created_at + interval '1 second'") > 0 { //nolint:contextcheck // the test's own statement, not part of the attempt
				return ctx.Err()
			}
		}
		return nil
	}
	_, err := s.fence(t.Context())
	require.NoError(t, err)
	s.provider.before = nil
	s.once()
	s.event, s.provider.charges, s.provider.calls = newEvent(t), nil, nil
	s.provider.before = func(ctx context.Context, _ consumer.Call) error {
		exec(t, s.db, "UPDATE onceward.fences SET epoch = epoch + 1 WHERE status = 'PENDING'") //nolint:contextcheck // the test's own statement, not part of the attempt
		<-ctx.Done()
		return ctx.Err()
	}
	_, err = s.fence(t.Context())
	require.ErrorIs(t, err, consumer.ErrLeaseLost, "the context of an attempt ends with its lease")
	require.Empty(t, s.provider.charges)
}

func fenceFailure(t *testing.T, s *shop) {
	s.provider.before = func(context.Context, consumer.Call) error { return errProvider }
	_, err := s.fence(t.Context())
	require.ErrorIs(t, err, errProvider)
	require.NoError(t, s.expect(0, 0))
	s.provider.before = nil
	_, err = s.fence(t.Context())
	require.NoError(t, err, "nobody waits for the lease of an attempt that has failed")
	s.once()
}

func fenceLostAnswer(t *testing.T, s *shop) {
	s.died(true)
	s.expire()
	_, err := s.fence(t.Context())
	require.NoError(t, err)
	require.Len(t, s.provider.calls, 2)
	s.once()
}

func fenceFailingCommit(t *testing.T, s *shop) {
	booked := s.effect.Commit
	s.effect.Commit = func(context.Context, pgx.Tx, string) error { return errProvider }
	_, err := s.fence(t.Context())
	require.ErrorIs(t, err, errProvider)
	require.NoError(t, s.expect(0, 0))
	s.effect.Commit = booked
	_, err = s.fence(t.Context())
	require.NoError(t, err, "nobody waits for the lease of an attempt that has failed")
	s.once()
}

// old is a fence that a dead process began longer ago than the provider
// remembers its key.
func (s *shop) old() {
	s.t.Helper()
	s.effect.ProviderKeyTTL = 23 * time.Hour
	s.died(true)
	s.expire()
	exec(s.t, s.db, "UPDATE onceward.fences SET provider_key_until = clock_timestamp() - interval '1 second'")
	s.provider.charges = nil // forgotten
}

func fenceStale(t *testing.T, s *shop) {
	s.old()
	for range 2 {
		_, err := s.fence(t.Context())
		require.ErrorIs(t, err, consumer.ErrFenceStale)
	}
	require.Len(t, s.provider.calls, 1, "only the first attempt called the provider")
	require.NoError(t, s.expect(0, 0))
}

func fenceReconciled(t *testing.T, s *shop) {
	s.old()
	s.effect.Reconcile = func(_ context.Context, c consumer.Call) (string, bool, error) { return "found-" + c.Key, true, nil }
	got, err := s.fence(t.Context())
	require.NoError(t, err)
	require.Equal(t, consumer.Processed, got.Outcome)
	require.Equal(t, "found-"+s.provider.calls[0].Key, got.Result)
	require.Len(t, s.provider.calls, 1)
	require.NoError(t, s.expect(1, 1))
}

func fenceNotFound(t *testing.T, s *shop) {
	s.old()
	s.effect.Reconcile = func(context.Context, consumer.Call) (string, bool, error) { return "", false, nil }
	_, err := s.fence(t.Context())
	require.NoError(t, err)
	s.once()
}

func fenceMismatch(t *testing.T, s *shop) {
	_, err := s.fence(t.Context())
	require.NoError(t, err)
	right := s.event
	s.event.Payload = []byte("other")
	_, err = s.fence(t.Context())
	var mismatch *consumer.MismatchError
	require.ErrorAs(t, err, &mismatch)
	s.event = right
	s.once()
}

func fenceNoPartition(t *testing.T, s *shop) {
	at := time.Now().AddDate(0, 0, -3)
	exec(t, s.db, "DROP TABLE onceward."+partition.OfDay("processed_events", at).Name)
	s.event.Key = keyAt(t, at)
	_, err := s.fence(t.Context())
	require.ErrorIs(t, err, consumer.ErrNoPartition)
	require.Empty(t, s.provider.calls)
}

func fencePanic(t *testing.T, s *shop) {
	s.provider.before = func(context.Context, consumer.Call) error { panic("boom") }
	_, err := s.fence(t.Context())
	var p *consumer.PanicError
	require.ErrorAs(t, err, &p)
	s.provider.before = nil
	_, err = s.fence(t.Context())
	require.NoError(t, err)
	s.once()
}

func fenceMany(t *testing.T, s *shop) {
	var group sync.WaitGroup
	outcomes := make(chan error, 12)
	for range cap(outcomes) {
		group.Go(func() {
			_, err := s.fence(t.Context())
			outcomes <- err
		})
	}
	group.Wait()
	close(outcomes)
	for err := range outcomes {
		if err != nil {
			require.ErrorIs(t, err, consumer.ErrInProgress)
		}
	}
	require.Len(t, s.provider.calls, 1)
	s.once()
}

func fenceTwoEffects(t *testing.T, s *shop) {
	mail := &provider{}
	r := consumer.NewRouter(s.processor)
	broken := true
	r.Func("Paid", func(ctx context.Context, ev consumer.Event) error {
		if _, err := consumer.Fence(ctx, s.processor, ev, s.effect); err != nil {
			return err
		}
		if broken {
			return errProvider
		}
		_, err := consumer.Fence(ctx, s.processor, ev, consumer.Effect[string]{Name: "mail", Do: mail.charge})
		return err
	})
	_, err := r.Handle(t.Context(), s.event)
	require.ErrorIs(t, err, errProvider)
	broken = false
	require.NoError(t, deliver(t.Context(), r, s.event, consumer.Processed))
	require.NoError(t, deliver(t.Context(), r, s.event, consumer.Duplicate))
	require.Len(t, mail.calls, 1)
	require.Len(t, s.provider.calls, 1)
	require.NoError(t, s.expect(1, 1))
}

// TestFuncDoesNotHideALiveFence: a handler that swallows the error of a fence
// does not acknowledge the message.
func TestFuncDoesNotHideALiveFence(t *testing.T) {
	s := newShop(t)
	s.died(false)
	r := consumer.NewRouter(s.processor)
	r.Func("Paid", func(ctx context.Context, ev consumer.Event) error {
		_, _ = consumer.Fence(ctx, s.processor, ev, s.effect)
		return nil
	})
	require.NoError(t, deliver(t.Context(), r, s.event, consumer.InProgress))
	s.expire()
	require.NoError(t, deliver(t.Context(), r, s.event, consumer.Processed))
	s.once()
}

// TestDo: the first result comes back for every duplicate.
func TestDo(t *testing.T) {
	e := newEnv(t, nil)
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: e.db})
	require.NoError(t, err)
	ev, calls := newEvent(t), 0
	quote := func(ctx context.Context, tx pgx.Tx) (int, error) {
		calls++
		return 41 + calls, effect("billing")(ctx, tx, ev)
	}
	failing := func(ctx context.Context, tx pgx.Tx) (int, error) {
		_, err := quote(ctx, tx)
		return 0, errors.Join(err, errProvider)
	}
	_, err = consumer.Do(t.Context(), p, ev, failing)
	require.ErrorIs(t, err, errProvider)
	require.NoError(t, e.expect(0, 0))
	for i, want := range []consumer.Outcome{consumer.Processed, consumer.Duplicate, consumer.Duplicate} {
		got, err := consumer.Do(t.Context(), p, ev, quote)
		require.NoError(t, err, "call %d", i)
		require.Equal(t, want, got.Outcome)
		require.Equal(t, 43, got.Result)
	}
	require.NoError(t, e.expect(1, 1))
	ev.Payload = []byte("other")
	_, err = consumer.Do(t.Context(), p, ev, quote)
	var mismatch *consumer.MismatchError
	require.ErrorAs(t, err, &mismatch)
}

// TestReprocess: the named group applies a replay once more, and once only; for
// every other group it is a copy.
func TestReprocess(t *testing.T) {
	e := newEnv(t, nil)
	billing, audit := e.router("billing", effect("billing")), e.router("audit", effect("audit"))
	ev := newEvent(t)
	for _, r := range []*consumer.Router{billing, audit} {
		require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed))
	}
	replay := ev
	replay.ReplayID, replay.ReplayMode, replay.ReplayGroup = newEvent(t).Key.UUID(), record.ReplayReprocess, "billing"
	require.NoError(t, deliver(t.Context(), billing, replay, consumer.Processed))
	require.NoError(t, deliver(t.Context(), billing, replay, consumer.Duplicate))
	require.NoError(t, deliver(t.Context(), audit, replay, consumer.Duplicate))
	require.NoError(t, deliver(t.Context(), billing, ev, consumer.Duplicate))
	redelivered := ev
	redelivered.ReplayID, redelivered.ReplayMode = newEvent(t).Key.UUID(), record.ReplayRedeliver
	require.NoError(t, deliver(t.Context(), billing, redelivered, consumer.Duplicate))
	require.NoError(t, e.expect(3, 3))
}
