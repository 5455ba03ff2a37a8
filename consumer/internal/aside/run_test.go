package aside

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	limit = time.Minute
	grace = 5 * time.Second
)

var errCause, errWork = errors.New("cause"), errors.New("work")

// turns runs calls one after the other, each for a time whatever its context says, and returns what
// became of it, when, and what the last call returned.
func turns(ctx context.Context, calls ...time.Duration) (left <-chan struct{}, took time.Duration, last chan error, err error) {
	began, last := time.Now(), make(chan error, 1)
	bubble := func(f func()) { go f() } // not a goroutine of before
	left, err = run(bubble, ctx, limit, grace, func(turn *Turn) error {
		var err error
		for _, length := range calls {
			inside, cancel := context.WithTimeoutCause(ctx, limit, errCause)
			err = turn.Call(inside, func() error {
				time.Sleep(length)
				return errWork
			})
			cancel()
		}
		last <- err
		return err
	})
	return left, time.Since(began), last, err
}

func TestACallThatReturnsIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, calls := range [][]time.Duration{
			{0}, {limit + grace - 1}, {limit, limit, limit}, {1, limit + grace - 1, 0, limit + grace - 1},
		} {
			left, _, last, err := turns(t.Context(), calls...)
			require.Nil(t, left)
			require.ErrorIs(t, err, errWork)
			require.ErrorIs(t, <-last, errWork)
		}
	})
}

func TestOneThatDoesNotIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, before := range [][]time.Duration{nil, {limit}, {1, 2, 3}, {limit + grace - 1, limit - 1}} {
			var sum time.Duration
			for _, length := range before {
				sum += length
			}
			left, took, last, err := turns(t.Context(), append(before, time.Hour)...)
			require.ErrorIs(t, err, errCause)
			require.Equal(t, sum+limit+grace, took)
			select {
			case <-left:
				t.Fatal("it runs")
			default:
			}
			<-left
			require.ErrorIs(t, <-last, ErrLeft)
		}
	})
}

func TestTheEndOfTheContextIsWaitedForNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, before := range []time.Duration{0, limit / 2} {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(before+time.Second, func() { cancel(errWork) })
			left, took, _, err := turns(ctx, before, time.Hour)
			require.ErrorIs(t, err, errWork)
			require.Equal(t, before+time.Second+grace, took)
			<-left
			left, took, _, err = turns(ctx, grace-1, grace-1, time.Hour)
			require.ErrorIs(t, err, errWork)
			require.InDelta(t, 3*grace, took, 3, "one that begins afterwards has the grace, too")
			<-left
		}
	})
}

func TestOneThatEndsItsGoroutine(t *testing.T) {
	left, err := Run(t.Context(), limit, grace, func(turn *Turn) error {
		return turn.Call(t.Context(), func() error {
			runtime.Goexit()
			return nil
		})
	})
	require.Nil(t, left)
	require.ErrorIs(t, err, ErrExited)
}
