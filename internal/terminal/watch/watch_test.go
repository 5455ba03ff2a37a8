package watch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var errLook = errors.New("the database is away")

// run watches for a time, by a clock that the test moves, and returns what was written.
func run(t *testing.T, lines int, how time.Duration, look func(context.Context, int) Answer) (written string, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), how)
		defer cancel()
		var out strings.Builder
		n := 0
		err = Watch{To: &out, Every: 2 * time.Second, Patience: 10 * time.Second, Lines: func() int { return lines }}.Run(ctx,
			func(ctx context.Context) Answer {
				n++
				return look(ctx, n)
			})
		written = out.String()
	})
	return written, err
}

func TestEachAnswerComesAfterTheOneBefore(t *testing.T) {
	written, err := run(t, 0, 5*time.Second, func(_ context.Context, n int) Answer { return Answer{Text: fmt.Sprintf("look %d\n", n)} })
	require.NoError(t, err)
	require.Equal(t, "look 1\nlook 2\nlook 3\n", written)
}

// TestTheLastLookIsWhatItEndsWith: also where one before it failed, or was interrupted.
func TestTheLastLookIsWhatItEndsWith(t *testing.T) {
	failing := func(which int) func(context.Context, int) Answer {
		return func(_ context.Context, n int) Answer {
			if n == which {
				return Answer{Text: "away\n", Err: errLook}
			}
			return Answer{Text: "fine\n"}
		}
	}
	written, err := run(t, 0, 5*time.Second, failing(2))
	require.NoError(t, err, "it was tried again")
	require.Equal(t, "fine\naway\nfine\n", written)
	_, err = run(t, 0, 5*time.Second, failing(3))
	require.ErrorIs(t, err, errLook)
	written, err = run(t, 0, 3*time.Second, func(ctx context.Context, n int) Answer {
		if n == 2 {
			<-ctx.Done()
			return Answer{Text: "interrupted\n", Err: ctx.Err()}
		}
		return Answer{Text: "away\n", Err: errLook}
	})
	require.ErrorIs(t, err, errLook, "the one that was interrupted does not count")
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, "away\n", written)
	_, err = run(t, 0, time.Second, func(ctx context.Context, _ int) Answer {
		<-ctx.Done()
		return Answer{}
	})
	require.ErrorIs(t, err, context.DeadlineExceeded, "no look has ended")
}

func TestALookHasItsTime(t *testing.T) {
	written, err := run(t, 0, 13*time.Second, func(ctx context.Context, n int) Answer {
		if n == 1 {
			<-ctx.Done()
		}
		return Answer{Text: fmt.Sprintf("look %d\n", n), Err: ctx.Err()}
	})
	require.NoError(t, err)
	require.Equal(t, "look 1\nlook 2\n", written)
}

func TestAWrongCallEndsIt(t *testing.T) {
	written, err := run(t, 24, time.Hour, func(context.Context, int) Answer { return Answer{Text: "x", Err: errLook, Over: true} })
	require.ErrorIs(t, err, errLook)
	require.Empty(t, written, "the other screen was not entered")
}

// TestATerminalIsRedrawn plays a terminal: what it shows is the last answer, nothing of a
// longer one before is left, and nothing scrolls. What stays after the end is all of it.
func TestATerminalIsRedrawn(t *testing.T) {
	const lines = 5
	written, err := run(t, lines, 5*time.Second, func(_ context.Context, n int) Answer {
		texts := []string{"first answer\n2\n3\n4\n5\n6\n", "2nd\nx\ny\n", "third\n\n"}
		return Answer{Text: texts[n-1]}
	})
	require.NoError(t, err)
	inside, after, ok := strings.Cut(written, leave)
	require.True(t, ok)
	require.Equal(t, "third\n\n", after)
	inside, ok = strings.CutPrefix(inside, enter)
	require.True(t, ok)
	draws := strings.Split(inside, home)[1:]
	require.Len(t, draws, 3)
	screen := make([]string, lines)
	for i, want := range [][]string{
		{"first answer", "2", "3", "… and 3 lines more, for which the terminal is too small", ""},
		{"2nd", "x", "y", "", ""},
		{"third", "", "", "", ""},
	} {
		rows := strings.Split(draws[i], "\r\n")
		require.LessOrEqual(t, len(rows), lines, "it would scroll")
		for j, row := range rows {
			text, erased := strings.CutSuffix(row, eraseRest)
			if row == eraseBelow {
				clear(screen[j:])
				break
			}
			require.True(t, erased, "%q", row)
			screen[j] = text
		}
		require.Equal(t, want, screen)
	}
}
