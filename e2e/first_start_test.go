//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// producer writes single events of several aggregates until it is stopped.
type producer struct {
	w       *environment
	group   *errgroup.Group
	stopped atomic.Bool
	written atomic.Int64
}

// produce begins to write beside whatever the test does.
func produce(w *environment, writers int) *producer {
	w.t.Helper()
	p := &producer{w: w, group: &errgroup.Group{}}
	w.t.Cleanup(func() { p.stopped.Store(true) }) // before the environment closes
	for i := range writers {
		aggregate := fmt.Sprintf("w-%d", i)
		w.execute(`INSERT INTO counters VALUES ($1, 0) ON CONFLICT DO NOTHING`, aggregate)
		p.group.Go(func() error {
			pace := time.NewTicker(10 * time.Millisecond)
			defer pace.Stop()
			for !p.stopped.Load() {
				<-pace.C
				if err := oneOf(context.Background(), w, i, aggregate); err != nil {
					return err
				}
				p.written.Add(1)
			}
			return nil
		})
	}
	return p
}

func (p *producer) stop() {
	p.w.t.Helper()
	p.stopped.Store(true)
	require.NoError(p.w.t, p.group.Wait())
}

// atLeast waits until so many more events are committed.
func (p *producer) atLeast(n int64) {
	p.w.t.Helper()
	until := p.written.Load() + n
	eventually(p.w.t, "the producer goes on", time.Minute, func() bool { return p.written.Load() >= until })
}

func oneOf(ctx context.Context, w *environment, writer int, aggregate string) error {
	return pgx.BeginFunc(ctx, w.app, func(tx pgx.Tx) error {
		_, err := (&writers{namespace: w.name}).row(ctx, tx, writer, aggregate)
		return err
	})
}

// settled is an environment with both sides installed, a topic, the tables that writeOne
// needs, and no relay.
func settled(t *testing.T, version string) *environment {
	t.Helper()
	w := newEnvironment(t, version)
	w.prepareTables()
	return w
}

func (w *environment) prepareTables() {
	w.t.Helper()
	w.install()
	w.createTopic(nil)
	w.execute(`CREATE TABLE counters (aggregate text PRIMARY KEY, n int NOT NULL); CREATE TABLE business (key text PRIMARY KEY);
		INSERT INTO counters VALUES ('a-0', 0); GRANT ALL ON counters, business TO PUBLIC`)
}

// TestFirstStart: producers write before a relay first starts, while its slot is
// being made, and afterwards, beside transactions that were open and prepared by
// then, in this database and in others. Every event ends published or, with
// outbox.start: now, before; nothing is lost, and nothing is called published that
// is not in the topic. The relay is killed between slot and beginning, too.
func TestFirstStart(t *testing.T) {
	for i, mode := range []string{"idempotent", "exactly-once"} {
		for k, start := range []string{"all", "now"} {
			version := versions[(i+k)%len(versions)]
			t.Run(mode+"/"+start+"/PostgreSQL"+version, func(t *testing.T) { firstStart(t, settled(t, version), mode, start) })
		}
	}
}

func firstStart(t *testing.T, w *environment, mode, start string) {
	ctx := t.Context()
	for range 20 {
		writeOne(t, w)
	}
	other, err := pgx.Connect(ctx, w.server.DSN("postgres"))
	require.NoError(t, err)
	defer other.Close(context.WithoutCancel(ctx))
	_, err = other.Exec(ctx, `BEGIN; SELECT pg_current_xact_id()`)
	require.NoError(t, err)
	load := produce(w, 3)
	load.atLeast(50)
	open := w.openEvent("open")
	prepared := w.openEvent("prepared")
	_, err = prepared.Exec(ctx, `PREPARE TRANSACTION 'first start'`)
	require.NoError(t, err)

	r := w.newRelay(w.config("checkpoint_interval: 100ms", `admin: {listen: "off"}`, "outbox: {start: "+start+"}"), "none").inMode(mode)
	r.env = append(r.env, "CRASH_AT=after-slot")
	r.start()
	load.atLeast(50)
	eventually(t, "what is waited for is named", 30*time.Second, func() bool {
		return r.logs("in database postgres") && r.logs("prepared transaction first start")
	})
	require.NoError(t, open.Commit(ctx))
	w.execute(`COMMIT PREPARED 'first start'`)
	load.atLeast(50)
	_, err = other.Exec(ctx, `COMMIT`)
	require.NoError(t, err)
	select {
	case <-r.process.Done(): // between the slot and the beginning
	case <-time.After(30 * time.Second):
		t.Fatal("the relay was to crash once its slot was made")
	}
	load.atLeast(50)
	r.env = r.env[:len(r.env)-1]
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	load.atLeast(50)
	load.stop()
	caughtUp(t, w, r)
	eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
	r.stop()
	states, copies := requireTrue(t, w)
	all := scalar[int](w, `SELECT count(*) FROM onceward.outbox`)
	require.Zero(t, copies)
	require.Equal(t, all, states["published"]+states["before"])
	if start == "all" {
		require.Zero(t, states["before"])
	} else {
		require.GreaterOrEqual(t, states["before"], 70, "what was committed before the relay began")
		require.Len(t, list(t, w, "before").Events, states["before"])
		require.Empty(t, list(t, w, "pending").Events)
	}
	t.Logf("%d events, of them %d before; 0 missing, 0 copies", all, states["before"])
}

// openEvent is a transaction of its own that has written an event.
func (w *environment) openEvent(aggregate string) pgx.Tx {
	w.t.Helper()
	w.execute(`INSERT INTO counters VALUES ($1, 0)`, aggregate)
	conn, err := pgx.Connect(w.t.Context(), w.dsn(appLogin))
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	tx, err := conn.Begin(w.t.Context())
	require.NoError(w.t, err)
	_, err = (&writers{namespace: w.name}).row(w.t.Context(), tx, 0, aggregate)
	require.NoError(w.t, err)
	return tx
}

// owed counts the events that some relay still has to publish.
func owed(w *environment) int {
	w.t.Helper()
	return scalar[int](w, `SELECT count(*) FROM onceward.outbox o, onceward.account(o.id, o.tx_id, o.seq) a WHERE a.state = 'pending'`)
}

// TestFirstStartAsks: over a table with rows the relay makes no slot, counts, and
// says what to set; an operator's own slot changes nothing about the question.
func TestFirstStartAsks(t *testing.T) {
	t.Parallel()
	w := settled(t, versions[0])
	for range 3 {
		writeOne(t, w)
	}
	r := w.newRelay(w.config(`admin: {listen: "off"}`), "")
	r.start()
	log := r.wait(30 * time.Second)
	require.Contains(t, log, "holds 3 events, and relay "+w.name+" has not begun here, or was retired; no slot was made")
	require.Contains(t, log, "outbox.start: all")
	require.NotContains(t, log, "`outboxctl partitions maintain", "between backquotes it would be a cure")
	require.Zero(t, scalar[int](w, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1`, w.slot()))
	require.Empty(t, list(t, w, "published").Events)
	require.Len(t, list(t, w, "pending").Events, 3)

	w.execute(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, w.slot())
	writeOne(t, w)
	r.start()
	require.Contains(t, strings.TrimPrefix(r.wait(30*time.Second), log), "holds 4 events, and relay "+w.name+" has not begun here, or was retired; slot "+w.slot()+" is there already")
	r.env = append(r.env, "ONCEWARD_OUTBOX_START=all")
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	caughtUp(t, w, r)
	r.stop()
	states, copies := requireTrue(t, w)
	require.Equal(t, 5, states["published"])
	require.Zero(t, copies, "the slot's own event was published from the table, and left out of the stream")
}

// TestFirstStartOverAnEmptyTable: with outbox.start: ask, the default, a table that is
// empty when the relay looks asks nobody. What commits while its slot is made, which
// another database's transaction holds up, and while it waits for its beginning, is
// published, once; nothing is called published before it is in the topic. One that
// dies between slot and beginning finds a table that is not empty, and asks.
func TestFirstStartOverAnEmptyTable(t *testing.T) {
	for i, mode := range []string{"idempotent", "exactly-once"} {
		for k, crash := range []string{"", "after-slot"} {
			version := versions[(i+k)%len(versions)]
			t.Run(fmt.Sprintf("%s/crash=%s/PostgreSQL%s", mode, crash, version), func(t *testing.T) { firstStartEmpty(t, settled(t, version), mode, crash) })
		}
	}
}

// TestFirstStartWithoutKafka: a relay begins when it first takes its slot, not when
// Kafka first answers: what commits in between is published, also with outbox.start: now.
func TestFirstStartWithoutKafka(t *testing.T) {
	t.Parallel()
	for i, mode := range []string{"idempotent", "exactly-once"} {
		t.Run(mode, func(t *testing.T) {
			w := settled(t, versions[i])
			writeOne(t, w)
			more := []string{"checkpoint_interval: 100ms", `admin: {listen: "off"}`, "outbox: {start: now}"}
			config, brokers := w.config(more...), w.brokers
			w.brokers = []string{"127.0.0.1:1"} // nobody listens there
			r := w.newRelay(w.config(more...), "none").inMode(mode)
			w.brokers = brokers
			r.start()
			eventually(t, "it has begun", time.Minute, func() bool {
				return scalar[bool](w, `SELECT count(*) = 1 FROM onceward.gaps WHERE state = 'before' AND events = 1`)
			})
			for range 20 {
				writeOne(t, w)
			}
			epoch := scalar[int64](w, `SELECT epoch FROM onceward.relay_state`)
			eventually(t, "it tries again", time.Minute, func() bool { return scalar[int64](w, `SELECT epoch FROM onceward.relay_state`) > epoch })
			r.kill()
			r.config = config
			r.start()
			eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
			caughtUp(t, w, r)
			eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
			r.stop()
			states, _ := requireTrue(t, w)
			require.Equal(t, map[string]int{"before": 1, "published": scalar[int](w, `SELECT count(*) - 1 FROM onceward.outbox`)}, states)
		})
	}
}

func firstStartEmpty(t *testing.T, w *environment, mode, crash string) {
	ctx := t.Context()
	other, err := pgx.Connect(ctx, w.server.DSN("postgres"))
	require.NoError(t, err)
	defer other.Close(context.WithoutCancel(ctx))
	_, err = other.Exec(ctx, `BEGIN; SELECT pg_current_xact_id()`)
	require.NoError(t, err)
	open := w.openEvent("open")
	require.Zero(t, scalar[int](w, `SELECT count(*) FROM onceward.outbox`))

	r := w.newRelay(w.config("checkpoint_interval: 100ms", `admin: {listen: "off"}`), "none").inMode(mode)
	plain := slices.Clone(r.env)
	r.env = append(r.env, "CRASH_AT="+crash)
	r.start()
	eventually(t, "what is waited for is named", 30*time.Second, func() bool { return r.logs("in database postgres") })
	load := produce(w, 3)
	load.atLeast(100)
	require.Zero(t, sessions(r), "it was the slot that was waited for")
	require.NoError(t, open.Commit(ctx))
	load.atLeast(50)
	require.Empty(t, calledPublished(w), "nothing is in the topic yet")
	_, err = other.Exec(ctx, `COMMIT`)
	require.NoError(t, err)
	if crash != "" {
		r.wait(30 * time.Second)
		r.env = plain
		r.start()
		require.Contains(t, r.wait(30*time.Second), "slot "+w.slot()+" is there already")
		r.env = append(r.env, "ONCEWARD_OUTBOX_START=all")
		r.start()
	}
	for sessions(r) == 0 {
		said := calledPublished(w) // before the topic is read, which only grows
		inTopic := w.published()
		for _, key := range said {
			require.Positive(t, inTopic[key], key)
		}
		load.atLeast(1)
	}
	load.atLeast(50)
	load.stop()
	caughtUp(t, w, r)
	eventually(t, "nothing is pending", 30*time.Second, func() bool { return owed(w) == 0 })
	r.stop()
	states, copies := requireTrue(t, w)
	require.Equal(t, map[string]int{"published": scalar[int](w, `SELECT count(*) FROM onceward.outbox`)}, states)
	require.Zero(t, copies)
	gap := scalar[int](w, `SELECT events::int FROM onceward.gaps WHERE cause = 'FIRST_START' AND state = 'repaired'`)
	require.GreaterOrEqual(t, gap, 150, "what commits while the slot is made comes from the table")
	t.Logf("%d events, %d of them while the slot was made; 0 missing, 0 copies", states["published"], gap)
}

// calledPublished are the events that some relay is said to have published. One that
// has not begun has no account.
func calledPublished(w *environment) []string {
	w.t.Helper()
	return scalar[[]string](w, `SELECT array(SELECT o.namespace || ':' || o.id FROM onceward.outbox o, onceward.account(o.id, o.tx_id, o.seq) a WHERE a.state = 'published')`)
}

// TestBeforeIsRepairedLate: what a relay left out at its first start is published
// by a repair that is asked for later, without a restart.
func TestBeforeIsRepairedLate(t *testing.T) {
	t.Parallel()
	w := settled(t, versions[0])
	old, gone := writeOne(t, w), writeOne(t, w)
	r := startRelay(t, w, "outbox: {start: now}", "checkpoint_interval: 100ms")
	caughtUp(t, w, r)
	require.Contains(t, outboxctl(t, w.dsn(operatorLogin), "show", old), "before relay "+w.name+" began")
	w.execute(`DELETE FROM onceward.outbox WHERE namespace || ':' || id = $1`, gone)
	gap := scalar[string](w, `SELECT gap_id::text FROM onceward.gaps WHERE cause = 'FIRST_START'`)
	outboxctl(t, w.dsn(operatorLogin), "gap", "repair", gap, "--reason", "wanted after all", "--yes")
	eventually(t, "the relay repairs it without being started again", 30*time.Second, func() bool {
		return scalar[string](w, `SELECT state FROM onceward.gaps`) == "repaired"
	})
	require.True(t, r.logs("not all events that were counted in it") && r.logs("missing=1"), "what is gone is not called repaired")
	caughtUp(t, w, r)
	r.stop()
	states, copies := requireTrue(t, w)
	require.Equal(t, 3, states["published"])
	require.Zero(t, copies)
	require.Equal(t, 1, w.published()[old])
	require.Equal(t, 1, scalar[int](w, `SELECT count(*) FROM onceward.relay_actions WHERE requested_by = $1 AND reason = 'wanted after all'`, operatorLogin))
}
