package consumertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/record"
)

// What a delivery does to others beside it: to the next one in its session, and to one at the
// same moment.

// leftQuery lists what a session has beyond its transactions. Of a setting the name is
// enough: its value may be a secret.
const leftQuery = `
SELECT pg_catalog.concat('the setting ', name) FROM pg_catalog.pg_settings WHERE source OPERATOR(pg_catalog.=) 'session'
UNION ALL
SELECT pg_catalog.concat('the role ', CURRENT_USER) WHERE CURRENT_USER OPERATOR(pg_catalog.<>) SESSION_USER
UNION ALL
SELECT 'an advisory lock' FROM pg_catalog.pg_locks
WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()
UNION ALL
SELECT pg_catalog.concat('the temporary table ', relname) FROM pg_catalog.pg_class
WHERE relnamespace OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema() AND relkind OPERATOR(pg_catalog.=) 'r'
UNION ALL
SELECT pg_catalog.concat('the cursor ', name) FROM pg_catalog.pg_cursors WHERE is_holdable
UNION ALL
SELECT pg_catalog.concat('LISTEN ', channel) FROM pg_catalog.pg_listening_channels() AS channel`

func left(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, leftQuery)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// session compares the sessions that deliveries have used with a new one.
func session(ctx context.Context, w *world) {
	fresh, err := pgx.ConnectConfig(ctx, w.process.db.Config().ConnConfig)
	if err != nil {
		w.err = err
		return
	}
	want, err := left(ctx, fresh)
	err = errors.Join(err, fresh.Close(ctx))
	for _, used := range w.process.db.AcquireAllIdle(ctx) {
		var got []string
		if err == nil {
			got, err = left(ctx, used.Conn())
		}
		used.Release()
		if d := differ(got, want); err == nil && len(d.more) > 0 {
			found := strings.Join(append([]string{"left in a session of the pool:"}, slices.Compact(d.more)...), "\n+ ")
			w.broken(w.applied-1, "once, undisturbed", found, d.advice(Session))
		}
	}
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("look at a session: %w", err)
	}
}

// atOnce has two processes apply events at the same moment: one is held before each of its
// COMMITs in turn, until the other has ended, or waits for a lock.
func atOnce(ctx context.Context, w *world) {
	other, err := w.spawn(ctx)
	if err != nil {
		w.err = err
		return
	}
	for at := 1; at <= count(w.report.Statements, commit) && w.err == nil; at++ {
		n, first := w.set()
		_, second := w.set()
		how := fmt.Sprintf("at once with another event, in another process, which was applied while this one was before its COMMIT number %d", at)
		held, release := make(chan struct{}), make(chan struct{})
		w.process.network.arm(fault{at: at, hold: func() {
			close(held)
			<-release
		}})
		one := background(func() { w.process.deliver(ctx, first...) })
		select {
		case <-held:
		case <-one: // it went another way
		}
		two := background(func() { other.deliver(ctx, second...) })
		w.endsOrWaits(ctx, two)
		close(release)
		<-one
		<-two
		w.process.network.disarm()
		for _, recs := range [][]record.Record{first, second} { // what was in each other's way comes again
			w.apply(ctx, n, how, recs)
		}
		w.expect(ctx, n, how)
	}
	w.err = errors.Join(w.err, other.stop())
}

// background calls a function, and tells of its end.
func background(call func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	return done
}

// endsOrWaits returns when a delivery has ended, or a session waits for a lock. What waits for
// anything else, such as a mutex of the service, has a second.
func (w *world) endsOrWaits(ctx context.Context, done <-chan struct{}) {
	patience := time.NewTimer(time.Second)
	defer patience.Stop()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for waits := false; !waits && w.err == nil; {
		select {
		case <-done:
			return
		case <-patience.C:
			return
		case <-poll.C:
			w.err = w.reader.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity
				WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database() AND wait_event_type OPERATOR(pg_catalog.=) 'Lock')`).Scan(&waits)
		}
	}
}
