//go:build e2e

package redisfast_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/redisfast"
	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// TestRedisLayer: whatever Redis is, or becomes, and whatever becomes of the database, no effect is
// lost and none is made twice.
func TestRedisLayer(t *testing.T) {
	for name, scenario := range map[string]func(t *testing.T){
		"Known": known, "OtherContent": otherContent, "OtherGroup": otherGroup, "OnlyInASession": onlyInASession,
		"Flushed": flushed, "Down": down, "Slow": slow, "Evicting": evicting, "Full": full, "OldDump": oldDump,
		"FailedCommit": failedCommit, "Redrive": redrive, "RegisteredAgain": registeredAgain, "Forgotten": forgotten,
		"Expires": expires, "Restarted": restarted, "RestoredSnapshot": restoredSnapshot, "RestoredDatabase": restoredDatabase, "RestoredUnderAMember": restoredUnderAMember,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario(t)
		})
	}
}

// known: a duplicate that Redis knows asks the database nothing, whoever has applied it.
func known(t *testing.T) {
	w := newWorld(t)
	first, second := w.member("billing", w.cache()), w.member("billing", w.cache())
	recs := append(w.events(20, "Paid"), w.events(20, "Counted")...)
	first.handleAll(recs, consumer.Processed)
	second.handle(w.again(recs[0]), consumer.Duplicate) // it reads once how the class is registered
	w.unasked(func() {
		second.handleAll(recs, consumer.Duplicate)
		first.handleAll(recs, consumer.Duplicate)
		for _, d := range second.HandleRecords(t.Context(), recs[20:]) {
			require.Equal(t, consumer.Delivery{Outcome: consumer.Duplicate}, d)
		}
	})
	w.once("billing", 40)
	require.EqualValues(t, 40, first.cache.Stats().Remembered)
	require.EqualValues(t, 40, first.cache.Stats().Misses)
	require.EqualValues(t, 61, second.cache.Stats().Hits)
	require.NoError(t, second.SaveProgress(t.Context(), second.history, []consumer.Mark{{Topic: "orders", High: 40}}))
	require.Equal(t, 61, w.count("SELECT sum(seen) FROM onceward.redeliveries"), "the advice on windows counts them, too")
}

// otherContent: another event that was given the same key is no duplicate.
func otherContent(t *testing.T) {
	w := newWorld(t)
	m := w.member("billing", w.cache())
	rec := w.event("Paid")
	m.handle(rec, consumer.Processed)
	other := w.again(rec)
	other.Value = []byte(`{"amount":99}`)
	m.handle(other, consumer.DeadLettered)
	require.Equal(t, 1, w.count("SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'mismatch'"))
	require.EqualValues(t, 1, m.cache.Stats().Stale)
	m.handle(w.again(rec), consumer.Duplicate)
	w.once("billing", 1)
}

// otherGroup: what one group has applied says nothing of another, nor does the same group's in
// another database.
func otherGroup(t *testing.T) {
	w, elsewhere := newWorld(t), newWorld(t)
	rec := w.event("Paid")
	w.member("billing", w.cache()).handle(rec, consumer.Processed)
	w.member("mail", w.cache()).handle(rec, consumer.Processed)
	elsewhere.member("billing", w.cache()).handle(rec, consumer.Processed) // the Redis of w
	w.once("billing", 1)
	w.once("mail", 1)
	elsewhere.once("billing", 1)
}

// onlyInASession: without one, and after its end, nothing stands between an answer and the
// offset. Do and events from no topic have no session.
func onlyInASession(t *testing.T) {
	w := newWorld(t)
	m := w.idle("billing", w.cache())
	rec := w.event("Paid")
	m.handle(rec, consumer.Processed)
	m.handle(w.again(rec), consumer.Duplicate)
	require.Zero(t, m.cache.Stats(), "nobody has said by which history it is checked")
	m.begin()
	key, err := outbox.NewKey("shop")
	require.NoError(t, err)
	ev := consumer.Event{Event: record.Event{Key: key, Type: "Paid", Payload: []byte("{}")}}
	for range 2 {
		_, err = consumer.Do(t.Context(), m.processor, ev, func(ctx context.Context, tx pgx.Tx) (int, error) {
			_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ('billing', $1, 1)", key.String())
			return 1, err
		})
		require.NoError(t, err)
	}
	got, err := m.Handle(t.Context(), ev)
	require.NoError(t, err)
	require.Equal(t, consumer.Duplicate, got)
	require.Zero(t, m.cache.Stats(), "it is for records of topics")
	m.handle(w.again(rec), consumer.Duplicate)
	m.handle(w.again(rec), consumer.Duplicate)
	require.EqualValues(t, 1, m.cache.Stats().Hits)
	require.NoError(t, m.EndProgress(t.Context(), m.marks))
	m.handle(w.again(rec), consumer.Duplicate)
	require.EqualValues(t, 1, m.cache.Stats().Hits)
	m.begin()
	m.handle(w.again(rec), consumer.Duplicate)
	require.ErrorIs(t, m.SaveProgress(t.Context(), "another", m.marks), consumer.ErrHistory)
	m.handle(w.again(rec), consumer.Duplicate)
	require.EqualValues(t, 2, m.cache.Stats().Hits, "after ErrHistory nobody is asked before the next session")
	w.once("billing", 2)
}

// flushed: the database knows, and tells Redis again.
func flushed(t *testing.T) {
	w := newWorld(t)
	m := w.member("billing", w.cache())
	recs := w.events(30, "Paid")
	m.handleAll(recs, consumer.Processed)
	require.NoError(t, w.client().FlushAll(t.Context()).Err())
	m.handleAll(recs, consumer.Duplicate)
	w.unasked(func() { m.handleAll(recs, consumer.Duplicate) })
	w.once("billing", 30)
}

// down: no server, and a server that is back.
func down(t *testing.T) {
	w := newWorld(t)
	m := w.member("billing", w.cache())
	recs := w.events(20, "Paid")
	m.handleAll(recs[:10], consumer.Processed)
	w.redis.Kill()
	m.handleAll(recs[:10], consumer.Duplicate)
	m.handleAll(recs[10:], consumer.Processed)
	m.handleAll(recs, consumer.Duplicate)
	require.Positive(t, m.cache.Stats().Unasked, "it is left alone")
	w.redis.Up()
	require.Eventually(t, func() bool {
		m.handleAll(recs, consumer.Duplicate)
		return m.cache.Stats().Hits > 0
	}, time.Minute, 10*time.Millisecond, "it is used again")
	w.once("billing", 20)
}

// slow: a server that takes everything and answers nothing costs a few timeouts, and then
// nothing for a while.
func slow(t *testing.T) {
	w := newWorld(t)
	m := w.member("billing", w.cache(func(c *redisfast.Config) { c.Timeout = 20 * time.Millisecond }))
	recs := w.events(200, "Paid")
	w.redis.Freeze()
	m.handleAll(recs, consumer.Processed)
	m.handleAll(recs, consumer.Duplicate)
	s := m.cache.Stats()
	w.redis.Thaw()
	require.Zero(t, s.Hits+s.Misses+s.Stale)
	require.Positive(t, s.Errors)
	require.Greater(t, s.Unasked, 5*s.Errors, "it is left alone: %+v", s)
	w.once("billing", 200)
}

// evicting: Redis forgets what it likes.
func evicting(t *testing.T) {
	w := newWorld(t, "--maxmemory", "1500kb", "--maxmemory-policy", "allkeys-lru")
	m := w.member("billing", w.cache())
	recs := w.events(6000, "Counted")
	require.NoError(t, m.batches(t.Context(), recs, 100))
	require.NoError(t, m.batches(t.Context(), recs, 100))
	require.Positive(t, w.stat("evicted_keys"))
	require.Positive(t, m.cache.Stats().Misses-6000, "some were forgotten: %+v", m.cache.Stats())
	w.once("billing", 6000)
}

// full: Redis takes nothing more, and what it has it still tells.
func full(t *testing.T) {
	w := newWorld(t, "--maxmemory", "1300kb", "--maxmemory-policy", "noeviction")
	m := w.member("billing", w.cache())
	recs := w.events(6000, "Counted")
	require.NoError(t, m.batches(t.Context(), recs, 100))
	s := m.cache.Stats()
	require.Positive(t, s.Forgone)
	require.Positive(t, s.Remembered)
	require.NoError(t, m.batches(t.Context(), recs, 100))
	require.Equal(t, s.Remembered, m.cache.Stats().Hits)
	require.Zero(t, m.cache.Stats().Unasked, "a refusal is an answer: %+v", m.cache.Stats())
	w.once("billing", 6000)
}

// oldDump: Redis goes back in time. What it says is still true.
func oldDump(t *testing.T) {
	w := newWorld(t)
	m := w.member("billing", w.cache())
	recs := w.events(20, "Paid")
	m.handleAll(recs[:10], consumer.Processed)
	require.NoError(t, w.client().Save(t.Context()).Err())
	dump := w.redis.Dump()
	m.handleAll(recs[10:], consumer.Processed)
	w.redis.Kill()
	w.redis.SetDump(dump)
	w.redis.Up()
	m.handleAll(recs, consumer.Duplicate)
	w.unasked(func() { m.handleAll(recs, consumer.Duplicate) })
	w.once("billing", 20)
}

// failedCommit: an effect that was not committed is not remembered.
func failedCommit(t *testing.T) {
	w := newWorld(t)
	w.exec(`CREATE TABLE refused (n bigint)`)
	w.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF EXISTS (SELECT FROM refused) THEN RAISE EXCEPTION 'not yet'; END IF; RETURN NULL; END $$`)
	w.exec(`CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	w.exec(`INSERT INTO refused VALUES (1)`)
	m := w.member("billing", w.cache())
	single, batch := w.event("Paid"), w.events(10, "Counted")
	_, err := m.HandleRecord(t.Context(), single)
	require.Error(t, err, "the commit fails")
	for _, d := range m.HandleRecords(t.Context(), batch) {
		require.False(t, d.Finished())
	}
	failing := errors.New("the handler fails")
	w.fail.Store(&failing)
	failed := w.event("Paid")
	_, err = m.HandleRecord(t.Context(), failed)
	require.ErrorIs(t, err, failing)
	require.Zero(t, m.cache.Stats().Remembered)
	w.fail.Store(nil)
	w.exec(`DELETE FROM refused`)
	m.handleAll(append(batch, single, failed), consumer.Processed)
	w.once("billing", 12)
}

// redrive: what was given up is not remembered, and its redrive has its effect once.
func redrive(t *testing.T) {
	w := newWorld(t)
	m := w.member("billing", w.cache())
	rec := w.event("Paid")
	broken := consumer.DeadLetter(errors.New("broken"))
	w.fail.Store(&broken)
	m.handle(rec, consumer.DeadLettered)
	m.handle(w.again(rec), consumer.DeadLettered)
	require.Zero(t, m.cache.Stats().Remembered)
	w.fail.Store(nil)
	w.exec("UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1")
	done, err := m.Redrive(t.Context(), 10)
	require.NoError(t, err)
	require.Positive(t, done)
	w.once("billing", 1)
	require.Zero(t, m.cache.Stats().Hits, "a redrive asks the database")
	m.handle(w.again(rec), consumer.Duplicate)
	w.unasked(func() { m.handle(w.again(rec), consumer.Duplicate) })
	w.once("billing", 1)
}

// registeredAgain: a group that was retired has lost its claims, perhaps, and begins anew.
func registeredAgain(t *testing.T) {
	w := newWorld(t)
	cache := w.cache()
	recs := w.events(10, "Paid")
	m := w.member("billing", cache)
	m.handleAll(recs, consumer.Processed)
	w.exec("UPDATE onceward.dedup_windows SET retired_at = clock_timestamp()")
	w.exec("DELETE FROM onceward.processed_events")
	w.exec("DELETE FROM effects")
	m = w.member("billing", cache)
	m.handleAll(recs, consumer.Processed)
	w.once("billing", 10)
	require.EqualValues(t, 10, cache.Stats().Stale)
}

// forgotten: an operator has the group forget an event, so that it is applied again.
func forgotten(t *testing.T) {
	w := newWorld(t)
	cache := w.cache()
	m := w.member("billing", cache)
	recs := w.events(2, "Paid")
	m.handleAll(recs, consumer.Processed)
	// What `outboxctl processed forget` does.
	w.exec("DELETE FROM onceward.processed_events")
	w.exec("INSERT INTO onceward.consumer_actions (action, consumer_group, target, reason) VALUES ('processed forget', 'billing', 'both', 'test')")
	// Its next step is a replay, which this very process reads.
	replayed := w.again(recs[0])
	replayed.Headers = append(replayed.Headers, consumer.Header{Name: record.HeaderReplayID, Value: []byte(uuid.NewString())},
		consumer.Header{Name: record.HeaderReplayMode, Value: []byte(record.ReplayRedeliver)})
	m.handle(replayed, consumer.Processed)
	// Or the group's offset is set back, for which it is stopped.
	m = w.member("billing", cache)
	m.handle(recs[1], consumer.Processed)
	require.Equal(t, 4, w.count("SELECT count(*) FROM effects"), "both were applied again")
}

// expires: an entry goes at the latest one window after the effect.
func expires(t *testing.T) {
	w := newWorld(t)
	m := w.member("billing", w.cache(func(c *redisfast.Config) { c.Prefix = "once:" }))
	recs := w.events(3, "Paid")
	m.handleAll(recs, consumer.Processed)
	client := w.client()
	left := func() (all []time.Duration) {
		keys, err := client.Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		for _, key := range keys {
			require.Regexp(t, `^once:billing:[0-9a-f-]{36}$`, key)
			ttl, err := client.PTTL(t.Context(), key).Result()
			require.NoError(t, err)
			all = append(all, ttl)
		}
		return all
	}
	require.Len(t, left(), 3)
	for _, ttl := range left() {
		require.LessOrEqual(t, ttl, window)
		require.Greater(t, ttl, window-time.Hour)
	}
	bytes, err := client.MemoryUsage(t.Context(), must(client.Keys(t.Context(), "*").Result())[0]).Result()
	require.NoError(t, err)
	t.Logf("an entry of group billing takes %d bytes of Redis", bytes)
	// What is told by the database counts from then.
	require.NoError(t, client.FlushAll(t.Context()).Err())
	w.exec("UPDATE onceward.processed_events SET processed_at = processed_at - interval '20 hours'")
	m.handleAll(recs, consumer.Duplicate)
	for _, ttl := range left() {
		require.LessOrEqual(t, ttl, window-20*time.Hour)
	}
	require.NoError(t, client.FlushAll(t.Context()).Err())
	w.exec("UPDATE onceward.processed_events SET processed_at = processed_at - interval '20 hours'")
	m.handleAll(recs, consumer.Duplicate)
	require.Empty(t, left())
	w.once("billing", 3)
}

// restarted: a server that was started again is another history, because it may have been put back.
func restarted(t *testing.T) {
	server, pool := testdb.Own(t, pgserver.Options{Version: version()})
	w := newWorldOn(t, pool)
	m := w.member("billing", w.cache())
	recs := w.events(10, "Paid")
	m.handleAll(recs, consumer.Processed)
	pool.Reset()
	w.db.Reset()
	require.NoError(t, server.Halt(t.Context(), pgserver.Fast))
	// Hits in the session of before are answered, and not acknowledged: Kafka's offset follows this.
	w.unasked(func() { m.handleAll(recs, consumer.Duplicate) })
	require.NoError(t, server.Resume(t.Context()))
	require.ErrorIs(t, m.SaveProgress(t.Context(), m.history, m.marks), consumer.ErrHistory)
	m.begin()
	m.handleAll(recs, consumer.Duplicate)
	require.EqualValues(t, 10, m.cache.Stats().Stale)
	w.unasked(func() { m.handleAll(recs, consumer.Duplicate) })
	w.once("billing", 10)
}

// restoredSnapshot: the database has lost effects that Redis knows. They are made again.
func restoredSnapshot(t *testing.T) {
	server, pool := testdb.Own(t, pgserver.Options{Version: version()})
	w := newWorldOn(t, pool)
	data, snapshot := server.DataDir(), filepath.Join(t.TempDir(), "snapshot")
	again := func(between func()) {
		pool.Reset()
		w.db.Reset()
		require.NoError(t, server.Halt(t.Context(), pgserver.Fast))
		between()
		require.NoError(t, server.Resume(t.Context()))
	}
	w.member("billing", nil) // registers the class
	again(func() { copyAll(t, data, snapshot) })
	m := w.member("billing", w.cache())
	recs := w.events(15, "Paid")
	m.handleAll(recs, consumer.Processed)
	again(func() {
		require.NoError(t, os.RemoveAll(data))
		copyAll(t, snapshot, data)
	})
	require.Zero(t, w.count("SELECT count(*) FROM effects"))
	require.ErrorIs(t, m.SaveProgress(t.Context(), m.history, m.marks), consumer.ErrHistory)
	m.begin()
	m.handleAll(recs, consumer.Processed)
	m.handleAll(recs, consumer.Duplicate)
	w.once("billing", 15)
}

// restoredDatabase: a dump that is put back into the running server keeps the history, and the
// registration. Its tables are others.
func restoredDatabase(t *testing.T) {
	_, restored, recs := restoredIntoTheServer(t)
	restored.member("billing", restored.cache()).handleAll(recs, consumer.Processed)
	restored.once("billing", 5)
}

// restoredUnderAMember: it has a new session on the same history, in less than the ten seconds for
// which it believes what it has read of the tables.
func restoredUnderAMember(t *testing.T) {
	m, restored, recs := restoredIntoTheServer(t)
	m.begin()
	m.handleAll(recs, consumer.Processed)
	restored.once("billing", 5)
}

func restoredIntoTheServer(t *testing.T) (m *member, restored *world, recs []consumer.Record) {
	w := newWorld(t)
	m = w.member("billing", w.cache())
	recs = w.events(5, "Paid")
	w.exec(`CREATE TABLE dumped AS SELECT * FROM onceward.dedup_windows`)
	m.handleAll(recs, consumer.Processed)
	w.exec(`DROP SCHEMA onceward CASCADE`)
	w.exec(`DROP TABLE effects`)
	pool := w.db
	restored = newWorldOn(t, pool)
	restored.redis = w.redis
	restored.exec(`INSERT INTO onceward.dedup_windows SELECT * FROM dumped`)
	return m, restored, recs
}

func (w *world) stat(name string) int {
	w.t.Helper()
	info, err := w.client().InfoMap(w.t.Context(), "stats").Result()
	require.NoError(w.t, err)
	n, err := strconv.Atoi(info["Stats"][name])
	require.NoError(w.t, err, "%v", info)
	return n
}

func copyAll(t *testing.T, from, to string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "cp", "-a", from, to).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprint(err))
	}
	return v
}
