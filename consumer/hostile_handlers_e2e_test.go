//go:build e2e

package consumer_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// nilError is an error whose methods need what a nil pointer has not.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

func at(ev consumer.Event, offset int64) consumer.Event {
	ev.Source = consumer.Source{Topic: "orders", Offset: offset}
	ev.RecordHeaders = []consumer.Header{
		{Name: outbox.HeaderKey, Value: []byte(ev.Key.String())}, {Name: record.HeaderEventType, Value: []byte(ev.Type)},
	}
	return ev
}

// givesUp demands that an event whose handler always fails is a letter after the
// second attempt.
func givesUp(t *testing.T, cfg consumer.Config, register func(p *consumer.Processor, r *consumer.Router)) {
	t.Helper()
	e := newEnv(t, nil)
	cfg.Group, cfg.DB = "billing", e.db
	cfg.Retry.MaxAttempts = 2
	p, err := consumer.New(t.Context(), cfg)
	require.NoError(t, err)
	r := consumer.NewRouter(p)
	register(p, r)
	ev := at(newEvent(t), 1)
	_, err = r.Handle(t.Context(), ev)
	require.Error(t, err)
	require.False(t, consumer.IsInfrastructure(err), err)
	require.NoError(t, deliver(t.Context(), r, ev, consumer.DeadLettered))
	require.Equal(t, 1, e.letters())
}

// An error that cannot be read takes no process down, which would take the next one
// down too: it is a failure that counts.
func TestNilErrorsAreFailures(t *testing.T) {
	tx := func(context.Context, pgx.Tx, consumer.Event) error {
		var e *nilError
		return e
	}
	for name, register := range map[string]func(*consumer.Processor, *consumer.Router){
		"tx":    func(_ *consumer.Processor, r *consumer.Router) { r.Tx("Paid", tx) },
		"batch": func(_ *consumer.Processor, r *consumer.Router) { r.Batch("Paid", consumer.BatchOptions{}, tx) },
		"func": func(_ *consumer.Processor, r *consumer.Router) {
			r.Func("Paid", func(ctx context.Context, ev consumer.Event) error { return tx(ctx, nil, ev) })
		},
		"effect": func(p *consumer.Processor, r *consumer.Router) {
			r.Func("Paid", func(ctx context.Context, ev consumer.Event) error {
				_, err := consumer.Fence(ctx, p, ev, consumer.Effect[int]{Name: "x", Do: func(ctx context.Context, _ consumer.Call) (int, error) { return 0, tx(ctx, nil, ev) }})
				return err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			givesUp(t, consumer.Config{}, register)
		})
	}
	for name, permanent := range map[string]func(error) bool{
		"permanent":         func(error) bool { panic("in Permanent") },
		"permanent, Goexit": func(error) bool { runtime.Goexit(); return true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			givesUp(t, consumer.Config{Retry: consumer.Retry{Permanent: permanent}}, func(_ *consumer.Processor, r *consumer.Router) {
				r.Tx("Paid", func(context.Context, pgx.Tx, consumer.Event) error { return errProvider })
			})
		})
	}
}

// A handler whose time is over inside an effect has failed, whatever broke then.
func TestHandlerTimeoutInAnEffect(t *testing.T) {
	do := func(fn func(ctx context.Context, tx pgx.Tx) (int, error)) func(context.Context, *consumer.Processor, consumer.Event) error {
		return func(ctx context.Context, p *consumer.Processor, ev consumer.Event) error {
			_, err := consumer.Do(ctx, p, ev, fn)
			return err
		}
	}
	fence := func(fn func(ctx context.Context, c consumer.Call) (int, error)) func(context.Context, *consumer.Processor, consumer.Event) error {
		return func(ctx context.Context, p *consumer.Processor, ev consumer.Event) error {
			_, err := consumer.Fence(ctx, p, ev, consumer.Effect[int]{Name: "x", Do: fn})
			return err
		}
	}
	quick := do(func(context.Context, pgx.Tx) (int, error) { return 1, nil })
	for name, h := range map[string]func(context.Context, *consumer.Processor, consumer.Event) error{
		"a statement of Do": do(func(ctx context.Context, tx pgx.Tx) (int, error) {
			_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
			return 1, err
		}),
		"Do takes no notice": do(func(ctx context.Context, _ pgx.Tx) (int, error) {
			<-ctx.Done()
			return 1, nil
		}),
		"Fence": fence(func(ctx context.Context, _ consumer.Call) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}),
		"Fence takes no notice": fence(func(ctx context.Context, _ consumer.Call) (int, error) {
			<-ctx.Done()
			return 1, nil
		}),
		"before the effect": func(ctx context.Context, p *consumer.Processor, ev consumer.Event) error {
			<-ctx.Done()
			return quick(ctx, p, ev)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			givesUp(t, consumer.Config{HandlerTimeout: 200 * time.Millisecond}, func(p *consumer.Processor, r *consumer.Router) {
				r.Func("Paid", func(ctx context.Context, ev consumer.Event) error { return h(ctx, p, ev) })
			})
		})
	}
}

// What the provider's own database says is no failure of ours, and counts.
func TestErrorsOfAnotherDatabaseCount(t *testing.T) {
	for _, code := range []string{"53400", "55P03", "25006", "40001", "08006"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			givesUp(t, consumer.Config{}, func(p *consumer.Processor, r *consumer.Router) {
				r.Func("Paid", func(ctx context.Context, ev consumer.Event) error {
					_, err := consumer.Fence(ctx, p, ev, consumer.Effect[int]{Name: "x", Do: func(context.Context, consumer.Call) (int, error) {
						return 0, &pgconn.PgError{Code: code, Message: "of the other database"}
					}})
					return err
				})
			})
		})
	}
}

// A statement that exceeds a limit of its session exceeds it each time.
func TestLimitOfAStatementCounts(t *testing.T) {
	givesUp(t, consumer.Config{}, func(_ *consumer.Processor, r *consumer.Router) {
		r.Tx("Paid", func(ctx context.Context, tx pgx.Tx, _ consumer.Event) error {
			if _, err := tx.Exec(ctx, "SET LOCAL temp_file_limit = '1MB'; SET LOCAL work_mem = '64kB'"); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "SELECT count(*) FROM (SELECT i, repeat('x', 100) FROM generate_series(1, 200000) i ORDER BY 2, 1 DESC OFFSET 0) x")
			return err
		})
	})
}

// The effect is about the event that was delivered, whatever the handler has made
// of its copy.
func TestEffectOfAChangedCopy(t *testing.T) {
	s := newShop(t)
	fails := errProvider
	r := consumer.NewRouter(s.processor)
	r.Func("Paid", func(ctx context.Context, ev consumer.Event) error {
		ev.Payload = append([]byte("decrypted "), ev.Payload...)
		if _, err := consumer.Fence(ctx, s.processor, ev, s.effect); err != nil {
			return err
		}
		return fails
	})
	ev := at(s.event, 1)
	_, err := r.Handle(t.Context(), ev)
	require.ErrorIs(t, err, errProvider)
	fails = nil
	require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed))
	require.Len(t, s.provider.calls, 1)
}

// What Fence has begun is not made by Do of the same name: that is said, and counts.
func TestDoOfAFencesName(t *testing.T) {
	s := newShop(t)
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: s.db, Retry: consumer.Retry{MaxAttempts: 3}})
	require.NoError(t, err)
	before, after := consumer.NewRouter(p), consumer.NewRouter(p)
	before.Func("Paid", func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Fence(ctx, p, ev, consumer.Effect[int]{Name: "book", Do: func(context.Context, consumer.Call) (int, error) { return 0, errProvider }})
		return err
	})
	after.Func("Paid", func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.DoNamed(ctx, p, ev, "book", func(context.Context, pgx.Tx) (int, error) { return 1, nil })
		return err
	})
	ev := at(s.event, 1)
	_, err = before.Handle(t.Context(), ev)
	require.ErrorIs(t, err, errProvider)
	s.expire()
	_, err = after.Handle(t.Context(), ev)
	require.ErrorContains(t, err, "outboxctl fences reconcile")
	require.NoError(t, deliver(t.Context(), after, ev, consumer.DeadLettered))
	require.Equal(t, 1, s.letters())
}

// An attempt that ends its goroutine gives up its lease when that has run out.
func TestGoexitInAnEffect(t *testing.T) {
	s := newShop(t)
	s.effect.Lease = 300 * time.Millisecond
	s.provider.before = func(context.Context, consumer.Call) error {
		runtime.Goexit()
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.fence(t.Context())
	}()
	<-done
	s.provider.before = nil
	require.Eventually(t, func() bool {
		_, err := s.fence(t.Context())
		return err == nil
	}, 10*time.Second, 50*time.Millisecond)
	s.once()
}

// A receiver that looks at the error alone does not acknowledge what another
// delivery is at.
func TestHandleInProgress(t *testing.T) {
	s := newShop(t)
	in, out := make(chan struct{}), make(chan struct{})
	s.provider.before = func(context.Context, consumer.Call) error {
		close(in)
		<-out
		return errProvider
	}
	h := func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Fence(ctx, s.processor, ev, s.effect)
		return err
	}
	done := make(chan error)
	go func() {
		_, err := consumer.Handle(t.Context(), s.processor, s.event, h)
		done <- err
	}()
	<-in
	_, err := consumer.Handle(t.Context(), s.processor, s.event, h)
	require.ErrorIs(t, err, consumer.ErrInProgress)
	close(out)
	require.ErrorIs(t, <-done, errProvider)
}

// The last attempt of a zombie fails while another member ends the event, which is
// no dead letter then.
func TestGiveUpOfAFinishedEvent(t *testing.T) {
	l := newTill(t, 1)
	patient, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: l.db, Retry: consumer.Retry{MaxAttempts: -1}})
	require.NoError(t, err)
	first := consumer.NewRouter(patient)
	first.Func("Paid", l.handle)
	l.fails["book"] = errProvider
	_, err = first.Handle(t.Context(), l.event)
	require.ErrorIs(t, err, errProvider)
	delete(l.fails, "book")

	zombie := consumer.NewRouter(l.processor)
	zombie.Func("Paid", func(_ context.Context, _ consumer.Event) error {
		if err := deliver(context.WithoutCancel(t.Context()), l.router, l.event, consumer.Processed); err != nil { //nolint:contextcheck // another member
			return err
		}
		return errProvider
	})
	exec(t, l.db, "DELETE FROM onceward.attempts")
	require.NoError(t, deliver(t.Context(), zombie, l.event, consumer.Duplicate))
	require.Zero(t, l.letters())
	l.once()
}
