//go:build e2e

package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
)

// commits are ways in which a handler commits the transaction of its batch.
var commits = map[string]func(context.Context, pgx.Tx) error{
	"nil": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "COMMIT"); return err },
	"error": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "COMMIT")
		return errors.Join(err, errTransient)
	},
	"Goexit": func(ctx context.Context, tx pgx.Tx) error {
		_, _ = tx.Exec(ctx, "COMMIT")
		runtime.Goexit()
		return nil
	},
	"late": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "COMMIT")
		<-ctx.Done()
		<-time.After(6 * time.Second)
		return err
	},
}

// TestBatchThatAHandlerCommits (P1): the events behind are applied all the same, and once; the
// handler's own fails, and says why. Its batch has one that fails for another reason as well,
// so that each has a savepoint, or not.
func TestBatchThatAHandlerCommits(t *testing.T) {
	for name, commit := range commits {
		for _, savepoints := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, savepoints %t", name, savepoints), func(t *testing.T) {
				t.Parallel()
				l := newLine(t)
				l.timeout = 3 * time.Second
				l.narrow()
				l.router = l.member(3)
				evs, dead := l.events(120, "Moved"), 0
				l.wrong[evs[70].Key.String()] = commit
				evs[90].AggregateID = evs[70].AggregateID
				want := slices.Concat(repeat("duplicate", 70), []string{"failed"}, repeat("processed", 49))
				want[90] = "held back"
				if savepoints {
					dead = 1
					l.wrong[evs[60].Key.String()] = fails(consumer.DeadLetter(errTransient))
					want = slices.Concat(repeat("processed", 50), want[50:60], []string{"dead-lettered"}, want[61:])
				}
				require.Equal(t, want, l.outcomes(evs))
				require.Equal(t, 1, l.calls[evs[70].Key.String()])
				l.consistent(119-dead, dead)
				clear(l.wrong)
				require.NoError(t, deliver(t.Context(), l.router, evs[90], consumer.Processed))
				require.Equal(t, "duplicate", l.outcomes(evs)[70], "its effect was committed")
				l.consistent(120-dead, dead)
				require.Equal(t, dead, l.letters())
				require.Eventually(t, func() bool { return l.router.Processor().StuckHandlers() == 0 }, time.Minute, time.Millisecond)
			})
		}
	}
}

// TestBatchThatAHandlerCommitsAndBreaks: so it is when the connection is gone after that.
func TestBatchThatAHandlerCommitsAndBreaks(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	evs := l.events(20, "Moved")
	l.wrong[evs[10].Key.String()] = func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(commits["error"](ctx, tx), tx.Conn().Close(ctx))
	}
	require.Equal(t, slices.Concat(repeat("infrastructure", 10), []string{"failed"}, repeat("infrastructure", 9)), l.outcomes(evs))
	require.Equal(t, slices.Concat(repeat("duplicate", 11), repeat("processed", 9)), l.outcomes(evs))
	l.consistent(20, 0)
}

// TestBatchThatAHandlerCommitsUnanswered: so it is when the answer to the COMMIT is lost with the connection.
func TestBatchThatAHandlerCommitsUnanswered(t *testing.T) {
	for name, sql := range map[string]string{
		"backend ended": "COMMIT; SELECT pg_terminate_backend(pg_backend_pid())",
		"deadline":      "COMMIT; SELECT pg_sleep(20)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLine(t)
			evs := l.events(20, "Moved")
			l.wrong[evs[10].Key.String()] = func(ctx context.Context, tx pgx.Tx) error {
				ctx, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				_, err := tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
				return err
			}
			l.outcomes(evs)
			clear(l.wrong)
			l.outcomes(evs)
			l.consistent(20, 0)
			require.Equal(t, repeat("duplicate", 20), l.outcomes(evs))
		})
	}
}

// TestLastOfABatchCommits: one that nobody shares a transaction with any more fails as well.
func TestLastOfABatchCommits(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	evs := l.events(2, "Moved")
	l.wrong[evs[0].Key.String()], l.wrong[evs[1].Key.String()] = fails(errTransient), commits["nil"]
	require.Equal(t, repeat("failed", 2), l.outcomes(evs))
}

// TestSetThatItsHandlerCommits: of its own events nobody knows which have had their effect.
func TestSetThatItsHandlerCommits(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	evs := slices.Concat(l.events(5, "Counted"), l.events(5, "Moved"))
	l.wrong[evs[2].Key.String()] = commits["error"]
	for _, d := range l.router.HandleBatch(t.Context(), evs)[:5] {
		require.ErrorIs(t, d.Err, consumer.ErrTxEnded)
	}
	clear(l.wrong)
	require.Equal(t, slices.Concat(repeat("duplicate", 5), repeat("processed", 5)), l.outcomes(evs))
	require.NoError(t, l.expect(8, 10))
}

// TestBatchThatAHandlerRollsBack: what another member has claimed since then stays claimed.
func TestBatchThatAHandlerRollsBack(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	evs, other := l.events(20, "Moved"), l.member(3)
	l.wrong[evs[10].Key.String()] = func(ctx context.Context, tx pgx.Tx) error {
		if l.calls[evs[15].Key.String()] > 0 {
			return nil
		}
		_, err := tx.Exec(ctx, "ROLLBACK")
		return errors.Join(err, deliver(ctx, other, evs[15], consumer.Processed))
	}
	want := repeat("processed", 20)
	want[15] = "duplicate"
	require.Equal(t, want, l.outcomes(evs))
	l.consistent(20, 0)
}
