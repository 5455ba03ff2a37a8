//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// TestMuteWalsender: while the server decodes the rewrite of a large table that is
// not published, it may send nothing for much longer than wal_sender_timeout, and
// a new session would begin that decoding again. The relay has patience: at most
// one new session, then it goes on.
func TestMuteWalsender(t *testing.T) {
	t.Parallel()
	rows := 5_000_000
	if full() {
		rows = 10_000_000
	}
	onAVersion(t, func(t *testing.T, version string) {
		w := ownEnvironment(t, version, map[string]string{"wal_sender_timeout": "2s", "autovacuum": "off"})
		r := streaming(t, w)
		caughtUp(t, w, r)
		quiet := time.Now()
		eventually(t, "quiet for longer than the relay waits for a word", time.Minute, func() bool { return time.Since(quiet) > 7*time.Second })
		require.Equal(t, 1, sessions(r), "a quiet server is no dead one: the relay asks it")

		w.execute(`CREATE UNLOGGED TABLE large AS SELECT i FROM generate_series(1, $1::int) i`, rows)
		mute := watchSilence(t, w)
		began := time.Now()
		require.NoError(t, pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error { // the rewrite is in the log, the making of the table was not
			_, err := tx.Exec(t.Context(), `ALTER TABLE large SET LOGGED, ALTER i TYPE bigint`)
			return err
		}))
		rewritten := time.Since(began)
		caughtUpWithin(t, w, r, 10*time.Minute)
		behind := time.Since(began)
		longest := mute()
		r.stop()
		records, copies, committed := verifyAll(t, w, nil)
		t.Logf("PostgreSQL %s: rewrite of %d rows took %s, the relay was through after %s; nothing was sent for %s at most (wal_sender_timeout 2s); %d sessions; %d events, %d records, %d extra copies",
			version, rows, rewritten.Round(time.Millisecond), behind.Round(time.Millisecond), longest.Round(time.Millisecond), sessions(r), committed, records, copies)
		// Patience is 4 s, and doubles: 8 s are enough for the short form.
		reconnects := 1
		for patience := 8 * time.Second; patience < longest+time.Second; patience *= 2 {
			reconnects++
		}
		require.LessOrEqual(t, sessions(r), 1+reconnects)
		require.LessOrEqual(t, strings.Count(r.log(), "session ended, trying again"), reconnects)
	})
}

// watchSilence measures how long the walsender's position stood still while log
// was waiting; the function returned ends it and tells the longest time.
func watchSilence(t *testing.T, w *environment) (longest func() time.Duration) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan time.Duration, 1)
	go func() {
		var most time.Duration
		defer func() { done <- most }()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		conn, err := pgx.Connect(ctx, w.server.DSN(w.name))
		if err != nil {
			return
		}
		defer conn.Close(context.WithoutCancel(ctx))
		var last string
		since := time.Now()
		for {
			var now string
			err := conn.QueryRow(ctx, `SELECT coalesce(max(sent_lsn::text || reply_time::text), '') FROM pg_stat_replication`).Scan(&now)
			if err != nil {
				return
			}
			if now != last {
				last, since = now, time.Now()
			}
			most = max(most, time.Since(since))
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() time.Duration { cancel(); return <-done }
}
