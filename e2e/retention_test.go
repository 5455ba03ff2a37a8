//go:build e2e

package e2e

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/relay/retention"
)

// oldDays is an outbox with partitions that are past keep, and all that was
// committed to each.
type oldDays struct {
	t    *testing.T
	w    *environment
	r    *relayProcess
	conn *pgx.Conn // the maintainer
	day  time.Time
	leaf string

	mu        sync.Mutex
	committed map[string]bool // keys, of this leaf
	serial    uint32
}

func newOldDays(t *testing.T, version string) *oldDays {
	w := newEnvironment(t, version)
	w.install()
	w.createTopic(nil)
	o := &oldDays{t: t, w: w, r: w.newRelay(w.config("checkpoint_interval: 20ms", `admin: {listen: "off"}`), ""), conn: w.connect(maintainerLogin)}
	o.r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return o.r.logs("slot taken") })
	return o
}

func (w *environment) connect(login string) *pgx.Conn {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.dsn(login))
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// open makes the partition of some days ago.
func (o *oldDays) open(daysAgo int) {
	o.t.Helper()
	o.day = partition.Day(time.Now()).AddDate(0, 0, -daysAgo)
	made, err := partition.Ensure(o.t.Context(), o.conn, "onceward.outbox", "id", partition.Span{First: o.day, Last: o.day, Reopen: true})
	require.NoError(o.t, err)
	o.leaf, o.committed = made[0], map[string]bool{}
}

// id returns a fresh id of the old day.
func (o *oldDays) id() uuid.UUID {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.serial++
	id := outbox.FirstID(o.day.Add(time.Duration(o.serial) * time.Millisecond))
	id[6], id[8] = 0x70, 0x80
	return id
}

func (o *oldDays) remember(ids ...uuid.UUID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range ids {
		o.committed[o.w.name+":"+id.String()] = true
	}
}

func (o *oldDays) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.committed)
}

func (o *oldDays) enqueue(ctx context.Context, tx outbox.Tx) (uuid.UUID, error) {
	id := o.id()
	key, err := outbox.ParseKey(o.w.name + ":" + id.String())
	if err != nil {
		return id, err
	}
	_, err = outbox.Enqueue(ctx, tx, outbox.Event{Key: key, AggregateType: "order", AggregateID: "old", Type: "T", Payload: []byte("{}")})
	return id, err
}

// untilClosed runs transactions of one kind until the partition refuses them.
func (o *oldDays) untilClosed(ctx context.Context, write func(context.Context, pgx.Tx) ([]uuid.UUID, error), options pgx.TxOptions) error {
	for {
		var ids []uuid.UUID
		err := pgx.BeginTxFunc(ctx, o.w.app, options, func(tx pgx.Tx) (err error) {
			ids, err = write(ctx, tx)
			return err
		})
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "23514" { // Enqueue's ErrOutOfWindow wraps it
			return nil
		}
		if err != nil {
			return err
		}
		o.remember(ids...)
	}
}

// plain writes a few events, one of them in a savepoint.
func (o *oldDays) plain(ctx context.Context, tx pgx.Tx) (ids []uuid.UUID, err error) {
	for range 3 {
		err := pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
			id, err := o.enqueue(ctx, inner)
			ids = append(ids, id)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// astride is one statement that takes its time over many rows.
func (o *oldDays) astride(ctx context.Context, tx pgx.Tx) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	for range 20 {
		ids = append(ids, o.id())
	}
	rows, err := tx.Query(ctx, `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload)
		SELECT id, $2, 'order', 'astride', 'T', '{}' FROM unnest($1::uuid[]) AS id WHERE pg_sleep(0.02) IS NOT NULL RETURNING id`, ids, o.w.name)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// late takes its snapshot, gives the closing time to come between, and writes.
func (o *oldDays) late(ctx context.Context, tx pgx.Tx) ([]uuid.UUID, error) {
	if _, err := tx.Exec(ctx, "SELECT count(id), pg_sleep(0.05) FROM onceward.outbox"); err != nil {
		return nil, err
	}
	id, err := o.enqueue(ctx, tx)
	if err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, "SELECT pg_sleep(0.05)")
	return []uuid.UUID{id}, err
}

// prepared leaves its transaction prepared for a while: it holds its locks without
// a session.
func (o *oldDays) prepared(ctx context.Context) error {
	for {
		conn, err := o.w.app.Acquire(ctx)
		if err != nil {
			return err
		}
		id, err := o.prepare(ctx, conn.Conn())
		conn.Release()
		if errors.Is(err, outbox.ErrOutOfWindow) {
			return nil
		}
		if err != nil {
			return err
		}
		o.remember(id)
	}
}

func (o *oldDays) prepare(ctx context.Context, conn *pgx.Conn) (uuid.UUID, error) {
	if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
		return uuid.Nil, err
	}
	id, err := o.enqueue(ctx, conn)
	if err != nil {
		_, failed := conn.Exec(ctx, "ROLLBACK")
		return id, errors.Join(err, failed)
	}
	for _, sql := range []string{"PREPARE TRANSACTION '" + id.String() + "'", "SELECT pg_sleep(0.05)", "COMMIT PREPARED '" + id.String() + "'"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return id, err
		}
	}
	return id, nil
}

// maintain runs once and returns what became of the old partition. At the moment
// when it is gone, the topic must have all that was ever committed to it.
func (o *oldDays) maintain() retention.LeafState {
	o.t.Helper()
	report, err := retention.Maintain(o.t.Context(), o.conn, retention.Config{LockTimeout: 100 * time.Millisecond})
	require.NoError(o.t, err)
	for _, l := range report.Leaves {
		if l.Name == o.leaf {
			if l.State == retention.LeafDropped {
				o.allPublished()
			}
			return l.State
		}
	}
	o.t.Fatalf("partition %s is not in the report", o.leaf)
	return ""
}

func (o *oldDays) allPublished() {
	o.t.Helper()
	published := map[string]bool{}
	for _, m := range o.w.records() {
		published[headerOf(m, outbox.HeaderKey)] = true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for key := range o.committed {
		require.True(o.t, published[key], "%s was committed, is not in the topic, and its partition is gone", key)
	}
}

func (o *oldDays) dropped() {
	o.t.Helper()
	eventually(o.t, "the partition is dropped", time.Minute, func() bool { return o.maintain() == retention.LeafDropped })
	require.False(o.t, scalar[bool](o.w, "SELECT to_regclass('onceward.'||$1) IS NOT NULL", o.leaf))
}

// nemeses is what happens to relay and maintainer while writers write to the old
// partition; each returns when the partition was dropped.
var nemeses = []struct {
	name string
	do   func(*oldDays)
}{
	{"the relay streams", (*oldDays).dropped},
	{"the relay is stopped", func(o *oldDays) {
		o.r.stop()
		eventually(o.t, "the partition is closed", 30*time.Second, func() bool { return o.maintain() == retention.LeafWaiting })
		for range 20 {
			require.Equal(o.t, retention.LeafWaiting, o.maintain(), "nobody has published its rows")
		}
		o.r.start()
		o.dropped()
	}},
	{"the relay is killed again and again", func(o *oldDays) {
		for range 3 {
			o.r.kill()
			dropped := o.maintain() == retention.LeafDropped // all was published before
			o.r.start()
			if dropped || o.maintain() == retention.LeafDropped {
				return
			}
		}
		o.dropped()
	}},
	{"an old snapshot holds up the detach", func(o *oldDays) {
		tx, err := o.w.app.BeginTx(o.t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		require.NoError(o.t, err)
		_, err = tx.Exec(o.t.Context(), "SELECT count(id) FROM onceward.outbox")
		require.NoError(o.t, err)
		eventually(o.t, "the detach waits", 30*time.Second, func() bool { return o.maintain() == retention.LeafDetaching })
		_, err = o.enqueue(o.t.Context(), tx)
		require.ErrorIs(o.t, err, outbox.ErrOutOfWindow)
		require.NoError(o.t, tx.Rollback(o.t.Context()))
		o.dropped()
	}},
}

// TestPartitionNeverDroppedUnpublished tries hard to have a partition dropped
// with a row in it that was not published.
func TestPartitionNeverDroppedUnpublished(t *testing.T) {
	t.Parallel()
	for _, version := range versionsOf(t.Name()) {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			o := newOldDays(t, version)
			for i, nemesis := range nemeses {
				o.open(10 + i)
				group, ctx := errgroup.WithContext(t.Context())
				repeatable := pgx.TxOptions{IsoLevel: pgx.RepeatableRead}
				group.Go(func() error { return o.untilClosed(ctx, o.plain, pgx.TxOptions{}) })
				group.Go(func() error { return o.untilClosed(ctx, o.plain, repeatable) })
				group.Go(func() error { return o.untilClosed(ctx, o.astride, pgx.TxOptions{}) })
				group.Go(func() error { return o.untilClosed(ctx, o.late, repeatable) })
				group.Go(func() error { return o.prepared(ctx) })
				eventually(t, "the writers write", 30*time.Second, func() bool { return o.count() > 100 })
				nemesis.do(o)
				require.NoError(t, group.Wait())
				o.allPublished()
				t.Logf("%s: %d events in %s, all published when it was dropped", nemesis.name, o.count(), o.leaf)
			}
			o.r.stop()
		})
	}
}

// TestDetachOfAnOpenPartitionLosesEvents shows why retention closes first, and
// that the checks above would notice.
func TestDetachOfAnOpenPartitionLosesEvents(t *testing.T) {
	for _, version := range versionsOf(t.Name()) {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			o := newOldDays(t, version)
			o.open(10)
			tx, err := o.w.app.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), "SELECT count(id) FROM onceward.outbox")
			require.NoError(t, err)
			detached := make(chan error, 1)
			hand := o.w.connect(maintainerLogin)
			go func() {
				_, err := hand.Exec(t.Context(), "ALTER TABLE onceward.outbox DETACH PARTITION onceward."+o.leaf+" CONCURRENTLY")
				detached <- err
			}()
			eventually(t, "the detach is pending", 10*time.Second, func() bool {
				return scalar[bool](o.w, "SELECT coalesce(bool_or(inhdetachpending), false) FROM pg_inherits WHERE inhrelid = to_regclass('onceward.'||$1)", o.leaf)
			})
			id, err := o.enqueue(t.Context(), tx)
			require.NoError(t, err)
			require.NoError(t, tx.Commit(t.Context()))
			require.NoError(t, <-detached)
			_, err = o.w.app.Exec(t.Context(), oneAggregate)
			require.NoError(t, err)
			caughtUp(t, o.w, o.r)
			o.r.stop()
			require.EqualValues(t, 1, scalar[int64](o.w, "SELECT count(*) FROM onceward."+o.leaf+" WHERE id = $1", id), "it is committed")
			for _, m := range o.w.records() {
				require.NotEqual(t, o.w.name+":"+id.String(), headerOf(m, outbox.HeaderKey), "PostgreSQL decodes such rows now: retention could be simpler")
			}
		})
	}
}
