//go:build e2e

package consumer_test

import (
	"context"
	"os"
	exec2 "os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
)

const (
	redriveTask     = "ONCEWARD_REDRIVE_DSN" // makes the test binary a member that redrives once
	redriveAttempts = 2
	exitKilled      = 137
	exitDecided     = 40 // and so many letters
)

// mortal is a member of the group billing whose handlers end the process unless they
// are mended.
func mortal(ctx context.Context, db *pgxpool.Pool, attempts int, mended bool) (*consumer.Router, error) {
	p, err := consumer.New(ctx, consumer.Config{Group: "billing", DB: db, Retry: consumer.Retry{MaxAttempts: attempts, OnLetter: consumer.LetterPark}})
	if err != nil {
		return nil, err
	}
	work := func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if !mended {
			os.Exit(exitKilled)
		}
		return effect("billing")(ctx, tx, ev)
	}
	r := consumer.NewRouter(p)
	r.Tx("Paid", work)
	r.Func("Called", func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Do(ctx, p, ev, func(ctx context.Context, tx pgx.Tx) (int, error) { return 1, work(ctx, tx, ev) })
		return err
	})
	return r, nil
}

// redriveOnce is the main function of a member in a process of its own.
func redriveOnce(dsn string) int {
	ctx := context.Background()
	db, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return 1
	}
	defer db.Close()
	r, err := mortal(ctx, db, redriveAttempts, false)
	if err != nil {
		return 1
	}
	n, err := r.Redrive(ctx, 100)
	if err != nil {
		return 1
	}
	return exitDecided + n
}

// noticed waits until the server has noticed that a member died: until then its locks
// are there.
func (d *letterGroup) noticed() {
	d.t.Helper()
	require.Eventually(d.t, func() bool {
		return count(d.t, d.db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'") == 0
	}, time.Minute, 5*time.Millisecond, "no transaction is open")
}

// redriven runs a member in a process of its own, and returns how that has ended.
func (d *letterGroup) redriven() int {
	d.t.Helper()
	d.noticed()
	child := exec2.CommandContext(d.t.Context(), os.Args[0])
	child.Env = append(os.Environ(), redriveTask+"="+d.db.Config().ConnString())
	child.Stderr = d.t.Output()
	var exit *exec2.ExitError
	require.ErrorAs(d.t, child.Run(), &exit)
	return exit.ExitCode()
}

// longAgo lets the last start be so long ago that its handler cannot be running.
func (d *letterGroup) longAgo() {
	d.t.Helper()
	exec(d.t, d.db, "UPDATE onceward.attempts SET expires_at = expires_at - interval '1 hour'")
}

// TestRedriveThatKillsTheProcess: an operator asks for the redrive of an event of which
// the process dies. The members die of it MaxAttempts times, and no more: the letter is
// open again, and says so. The next redrive has all attempts again.
func TestRedriveThatKillsTheProcess(t *testing.T) {
	for _, eventType := range []string{"Paid", "Called"} {
		t.Run(eventType, func(t *testing.T) {
			t.Parallel()
			d := newLetterGroup(t)
			d.router.Func("Called", func(context.Context, consumer.Event) error { return consumer.DeadLetter(errBroken) })
			d.handle(func(context.Context, pgx.Tx, consumer.Event) error { return consumer.DeadLetter(errBroken) })
			ev := newEvent(t)
			ev.Type = eventType
			rec := d.record(ev)
			d.deliver(rec, consumer.DeadLettered)
			for asked := 1; asked <= 2; asked++ {
				d.request()
				for range redriveAttempts {
					require.Equal(t, exitKilled, d.redriven())
				}
				require.Equal(t, exitDecided, d.redriven(), "another member may be at it")
				require.Equal(t, "requested", d.letter(rec).State)
				d.longAgo()
				require.Equal(t, exitDecided+1, d.redriven())
				l := d.letter(rec)
				require.Equal(t, []any{"open", "crash", 1 + asked*redriveAttempts}, []any{l.State, l.Reason, l.Attempts})
				require.Contains(t, l.Error, "the process ended 2 times while the event of this letter was handled again")
				require.Equal(t, exitDecided, d.redriven(), "nobody asks for it")
			}
			d.request()
			require.Equal(t, exitKilled, d.redriven())
			r, err := mortal(t.Context(), d.db, redriveAttempts, true)
			require.NoError(t, err)
			d.router = r
			d.noticed()
			d.redrive(1)
			d.applied(1)
		})
	}
}

// A release counts as a redrive does; without a limit nothing is given up; and what
// came back leaves nothing.
func TestStartsOfRedrives(t *testing.T) {
	d := newLetterGroup(t)
	r, err := mortal(t.Context(), d.db, redriveAttempts, true)
	require.NoError(t, err)
	d.router = r
	broken := consumer.DeadLetter(errBroken)
	d.router.Func("Broken", func(context.Context, consumer.Event) error { return broken })
	first, behind := newEvent(t), newEvent(t)
	first.Type = "Broken"
	head, parked := d.record(first), d.record(behind)
	d.deliver(head, consumer.DeadLettered)
	d.deliver(parked, consumer.DeadLettered)
	require.Equal(t, "parked", d.letter(parked).State)
	d.request()
	d.redrive(1)
	require.Equal(t, "open", d.letter(head).State)
	require.Zero(t, count(t, d.db, "SELECT count(*) FROM onceward.attempts WHERE starts > 0"), "it came back")

	exec(t, d.db, "UPDATE onceward.consumer_dead_letters SET state = 'discarded' WHERE state = 'open'")
	exec(t, d.db, `INSERT INTO onceward.attempts (event_id, consumer_group, attempts, starts, last_error, expires_at)
		VALUES ($1, 'billing', 0, $2, '', clock_timestamp() + interval '7 days')`, behind.Key.UUID(), redriveAttempts)
	d.redrive(0)
	d.longAgo()
	d.redrive(1)
	l := d.letter(parked)
	require.Equal(t, []any{"open", "parked", redriveAttempts}, []any{l.State, l.Reason, l.Attempts})
	require.Zero(t, d.effects())

	d.request()
	exec(t, d.db, `INSERT INTO onceward.attempts (event_id, consumer_group, attempts, starts, last_error, expires_at)
		VALUES ($1, 'billing', 0, 1000, '', clock_timestamp())`, behind.Key.UUID())
	d.router, err = mortal(t.Context(), d.db, -1, true)
	require.NoError(t, err)
	d.redrive(1)
	require.Equal(t, 1, d.effects())
}
