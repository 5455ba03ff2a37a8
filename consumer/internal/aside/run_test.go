package aside

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const limit = time.Minute

var errCause, errWork = errors.New("cause"), errors.New("work")

// turns runs calls one after the other, each for a time whatever its context says, and returns what
// became of it, when, and what the last call returned.
func turns(ctx context.Context, w *Watch, calls ...time.Duration) (late bool, took time.Duration, last chan error, err error) {
	began, last := time.Now(), make(chan error, 1)
	bubble := func(f func()) { go f() } // not a goroutine of before
	late, err = w.run(ctx, limit, func(turn *Turn) error {
		var err error
		for _, length := range calls {
			inside, cancel := context.WithTimeoutCause(ctx, limit, errCause)
			err = turn.Call(inside, func() error {
				<-time.After(length)
				return errWork
			})
			cancel()
		}
		last <- err
		return err
	}, bubble)
	return late, time.Since(began), last, err
}

func TestACallThatReturnsIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, calls := range [][]time.Duration{
			{0}, {limit + grace - 1}, {limit, limit, limit}, {1, limit + grace - 1, 0, limit + grace - 1},
		} {
			late, _, last, err := turns(t.Context(), new(Watch), calls...)
			require.False(t, late)
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
			w := new(Watch)
			late, took, last, err := turns(t.Context(), w, append(before, time.Hour)...)
			require.True(t, late)
			require.ErrorIs(t, err, errCause)
			require.InDelta(t, sum+limit+grace, took, float64(time.Millisecond))
			require.Equal(t, 1, w.Stuck())
			require.ErrorIs(t, <-last, ErrLeft)
			synctest.Wait()
			require.Zero(t, w.Stuck())
		}
	})
}

func TestTheEndOfTheContextIsWaitedForNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, before := range []time.Duration{0, limit / 2} {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(before+time.Second, func() { cancel(errWork) })
			late, took, last, err := turns(ctx, new(Watch), before, time.Hour)
			require.True(t, late)
			require.ErrorIs(t, err, errWork)
			require.InDelta(t, before+time.Second+grace, took, float64(time.Millisecond))
			<-last
			late, took, last, err = turns(ctx, new(Watch), grace-1, grace-1, time.Hour)
			require.True(t, late)
			require.ErrorIs(t, err, errWork)
			require.InDelta(t, 3*grace, took, float64(time.Second), "one that begins afterwards has its time, too")
			<-last
		}
	})
}

// A context that never ends has not ended once the time of one function is over.
func TestAContextThatNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late, _, last, err := turns(context.WithoutCancel(t.Context()), new(Watch), slices.Repeat([]time.Duration{11 * time.Second}, 8)...)
		require.False(t, late)
		require.ErrorIs(t, err, errWork)
		<-last
	})
}

// Nobody has looked, because the process stood still: the function has its time all the same.
func TestAFunctionHasItsTimeAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inside, cancel := context.WithTimeoutCause(t.Context(), limit, errCause)
		defer cancel()
		turn := Turn{inside: inside}
		<-time.After(limit + time.Hour)
		wait, _ := turn.look(limit, false)
		require.Equal(t, grace, wait)
		<-time.After(grace)
		wait, cause := turn.look(limit, false)
		require.Zero(t, wait)
		require.ErrorIs(t, cause, errCause)
	})
}

func TestOneThatEndsItsGoroutine(t *testing.T) {
	late, err := new(Watch).Run(t.Context(), limit, func(turn *Turn) error {
		return turn.Call(t.Context(), func() error {
			runtime.Goexit()
			return nil
		})
	})
	require.False(t, late)
	require.ErrorIs(t, err, ErrExited)
}
