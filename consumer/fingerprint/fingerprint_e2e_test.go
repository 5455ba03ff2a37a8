//go:build e2e

package fingerprint_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/fingerprint"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/record"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

func newDatabase(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := testdb.New(t, cmp.Or(os.Getenv("ONCEWARD_TEST_POSTGRES"), "15"))
	m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Consumer})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), "CREATE TABLE effects (payload text NOT NULL, sent text NOT NULL)")
	require.NoError(t, err)
	cfg := pool.Config()
	cfg.MaxConns = 16 // a crowd, and who looks at it
	crowd, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(crowd.Close)
	return crowd
}

// soon returns a window of which a bucket ends within the next seconds, and when.
func soon(t *testing.T, db *pgxpool.Pool) (window time.Duration, edge time.Time) {
	t.Helper()
	var now time.Time
	require.NoError(t, db.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&now))
	first := now.Add(1500 * time.Millisecond).UnixMilli()
	for ms := time.Minute.Milliseconds(); ; ms++ {
		if end := (first/ms + 1) * ms; end-first < 500 {
			return time.Duration(ms) * time.Millisecond, time.UnixMilli(end)
		}
	}
}

// pass has the database wait until its clock has passed an instant.
func pass(t *testing.T, db *pgxpool.Pool, at time.Time) {
	t.Helper()
	_, err := db.Exec(t.Context(), "SELECT pg_sleep(extract(epoch FROM $1::timestamptz - clock_timestamp()) + 0.001)", at)
	require.NoError(t, err)
}

// waits asks whether a session of the database waits for a lock.
func waits(t *testing.T, db *pgxpool.Pool) func() bool {
	t.Helper()
	return func() bool {
		var n int
		require.NoError(t, db.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&n))
		return n > 0
	}
}

// TestFingerprint: two copies that are spelled differently, one of which is claimed before the
// edge of a bucket and is still under way when the other arrives behind it, have one
// effect, and so have those that come later, alone and in a crowd; two that differ in a chosen field have two.
func TestFingerprint(t *testing.T) {
	db := newDatabase(t)
	s := source(t, fingerprint.AsWritten, "/meter", "/value")
	window, edge := soon(t, db)
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: db, LockTimeout: 20 * time.Second, Classes: []consumer.Class{fingerprint.Window("Read", window)}})
	require.NoError(t, err)
	entered, goOn := make(chan struct{}), make(chan struct{})
	deliver := func(message string, within func()) (consumer.Outcome, error) {
		receipt, err := consumer.Do(t.Context(), p, consumer.Event{Event: event(t, s, message)}, func(ctx context.Context, tx pgx.Tx) (string, error) {
			var arrived time.Time
			if err := tx.QueryRow(ctx, "INSERT INTO effects VALUES ($1, '') RETURNING now()", message).Scan(&arrived); err != nil {
				return "", err
			}
			within()
			return arrived.Format(time.RFC3339Nano), nil
		})
		return receipt.Outcome, err
	}
	first := make(chan error, 1)
	go func() {
		outcome, err := deliver(`{"meter": "m-1", "value": 1.0, "sent": 1}`, func() { close(entered); <-goOn })
		if err == nil && outcome != consumer.Processed {
			err = fmt.Errorf("the first is %s", outcome)
		}
		first <- err
	}()
	<-entered
	var began time.Time
	require.NoError(t, db.QueryRow(t.Context(), "SELECT xact_start FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'").Scan(&began))
	require.True(t, began.Before(edge), "the machine was too slow: the first arrived behind the edge")
	pass(t, db, edge)

	outcomes, errs := make([]consumer.Outcome, 8), make([]error, 8)
	var crowd sync.WaitGroup
	for i := range outcomes {
		crowd.Go(func() {
			message := fmt.Sprintf(`{"sent":%d,"value":1,"meter":" m-1"}`, 2+i)
			if i == 0 {
				message = `{"value":2,"meter":"m-1","sent":1}` // says something else, and waits for nobody
			}
			outcomes[i], errs[i] = deliver(message, func() {})
		})
	}
	require.Eventually(t, waits(t, db), 20*time.Second, 5*time.Millisecond, "the copies behind the edge wait for the one before it")
	close(goOn)
	require.NoError(t, <-first)
	crowd.Wait()
	for i, outcome := range outcomes {
		require.NoError(t, errs[i])
		want := consumer.Duplicate
		if i == 0 {
			want = consumer.Processed
		}
		require.Equal(t, want, outcome, i)
	}
	require.Equal(t, 2, count(t, db, "SELECT count(*) FROM effects"))
	require.Equal(t, 4, count(t, db, "SELECT count(*) FROM onceward.processed_events"), "two for each event")
}

func count(t *testing.T, db *pgxpool.Pool, sql string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRow(t.Context(), sql).Scan(&n))
	return n
}

// TestRecordsWithoutAKey: records of a topic whose producer gives no key. The handler sees
// what was chosen, and may look at the record; what has no fingerprint is a letter, which a
// redrive reads again.
func TestRecordsWithoutAKey(t *testing.T) {
	db := newDatabase(t)
	s := source(t, fingerprint.AsWritten, "/meter", "/value")
	p, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: db, Readers: []consumer.RecordReader{s.Read}, Classes: []consumer.Class{fingerprint.Window("Read", time.Hour)}})
	require.NoError(t, err)
	r := consumer.NewRouter(p)
	r.Tx("Read", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		rec := ev.Record()
		_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1, $2)", string(ev.Payload), string(rec.Value))
		return err
	})
	offset := int64(0)
	deliver := func(key, value string) consumer.Outcome {
		t.Helper()
		outcome, err := r.HandleRecord(t.Context(), consumer.Record{Source: record.Source{Topic: "readings", Offset: offset}, Key: []byte(key), Value: []byte(value)})
		require.NoError(t, err)
		offset++
		return outcome
	}
	require.Equal(t, consumer.Processed, deliver("line-1", `{"meter":"m-1","value":20.50,"sent":1}`))
	require.Equal(t, consumer.Duplicate, deliver("line-1", `{"sent":2,"value":20.5,"meter":"m-1"}`))
	require.Equal(t, consumer.Processed, deliver("line-2", `{"sent":2,"value":20.5,"meter":"m-1"}`))
	require.Equal(t, consumer.DeadLettered, deliver("line-1", `{"value":20.5}`))
	var payload, sent, cause string
	require.NoError(t, db.QueryRow(t.Context(), "SELECT payload, sent FROM effects ORDER BY sent DESC LIMIT 1").Scan(&payload, &sent))
	require.Equal(t, []string{`{"meter":"m-1","value":20.5}`, `{"sent":2,"value":20.5,"meter":"m-1"}`}, []string{payload, sent})
	require.NoError(t, db.QueryRow(t.Context(), "SELECT reason || ': ' || error FROM onceward.consumer_dead_letters").Scan(&cause))
	require.Contains(t, cause, "malformed: ")
	require.Contains(t, cause, "the field /meter is not there")
	require.Equal(t, 2, count(t, db, "SELECT count(*) FROM effects"))
}
