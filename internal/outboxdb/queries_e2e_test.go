//go:build e2e

package outboxdb_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

func install(t *testing.T) (*pgxpool.Pool, *outboxdb.Queries) {
	t.Helper()
	pool := testdb.New(t, "15")
	m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Outbox})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	return pool, outboxdb.New(pool)
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

func TestRelayStateIsWrittenOnce(t *testing.T) {
	_, q := install(t)
	_, err := q.LoadRelayState(t.Context(), "onceward_orders")
	require.ErrorIs(t, err, pgx.ErrNoRows)

	catalog := "16400 701"
	first := outboxdb.InsertRelayStateParams{
		Slot: "onceward_orders", Relay: "orders", Database: "app", SystemIdentifier: "7300000000000000001", Timeline: 1,
		ConfirmedLsn: "1/2C00A8F0", Mode: "idempotent", Publication: "onceward_orders", PublicationCatalog: &catalog,
	}
	n, err := q.InsertRelayState(t.Context(), first)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	second := first
	second.ConfirmedLsn = "0/0"
	n, err = q.InsertRelayState(t.Context(), second)
	require.NoError(t, err)
	require.Zero(t, n)

	st, err := q.LoadRelayState(t.Context(), "onceward_orders")
	require.NoError(t, err)
	require.Equal(t, "1/2C00A8F0", st.ConfirmedLsn)
	require.Equal(t, &catalog, st.PublicationCatalog)
	require.Empty(t, st.Skip)
	require.WithinDuration(t, time.Now(), st.UpdatedAt, time.Minute)
}

func TestEveryTypeOfRelayStateComesBack(t *testing.T) {
	pool, q := install(t)
	insertState(t, q)
	skipped := []uuid.UUID{uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())}
	exec(t, pool, `UPDATE onceward.relay_state SET skip = $1, paused_routes = '{a,b}'`, skipped)
	all, err := q.RelayStates(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1)
	st := all[0]
	require.Equal(t, skipped, st.Skip)
	require.Equal(t, []string{"a", "b"}, st.PausedRoutes)
}

// onThisSystem lets the relays have run where the tests do.
const onThisSystem = `UPDATE onceward.relay_state SET system_identifier = (SELECT system_identifier::text FROM pg_control_system())`

func insertState(t *testing.T, q *outboxdb.Queries) {
	t.Helper()
	_, err := q.InsertRelayState(t.Context(), outboxdb.InsertRelayStateParams{
		Slot: "onceward_orders", Relay: "orders", Database: "app", SystemIdentifier: "1", Timeline: 1,
		ConfirmedLsn: "0/100", Mode: "idempotent", Publication: "onceward_orders",
	})
	require.NoError(t, err)
}

func TestCheckpointIsMonotoneAndFenced(t *testing.T) {
	_, q := install(t)
	insertState(t, q)
	old, err := q.BumpEpoch(t.Context(), outboxdb.BumpEpochParams{Slot: "onceward_orders", Relay: "orders"})
	require.NoError(t, err)
	require.EqualValues(t, 1, old.Epoch)
	require.Equal(t, "0/100", old.ConfirmedLsn)

	save := func(epoch int64, lsn string) (int64, error) {
		return q.SaveCheckpoint(t.Context(), outboxdb.SaveCheckpointParams{Slot: "onceward_orders", Epoch: epoch, ConfirmedLsn: lsn})
	}
	tick, err := save(1, "0/200")
	require.NoError(t, err)
	require.EqualValues(t, 1, tick)
	tick, err = save(1, "0/200")
	require.NoError(t, err, "the same position again is a tick, not a step back")
	require.EqualValues(t, 2, tick)
	_, err = save(1, "0/1FF")
	require.ErrorIs(t, err, pgx.ErrNoRows, "never backwards")

	young, err := q.BumpEpoch(t.Context(), outboxdb.BumpEpochParams{Slot: "onceward_orders", Relay: "orders"})
	require.NoError(t, err)
	require.EqualValues(t, 2, young.Epoch)
	require.Equal(t, "0/200", young.ConfirmedLsn)
	_, err = save(1, "0/300")
	require.ErrorIs(t, err, pgx.ErrNoRows, "a woken zombie is fenced")
	_, err = save(2, "A/0")
	require.NoError(t, err, "positions compare as numbers, not as text")
	_, err = save(2, "9/FFFFFFFF")
	require.ErrorIs(t, err, pgx.ErrNoRows)

	_, err = q.BumpEpoch(t.Context(), outboxdb.BumpEpochParams{Slot: "nobody", Relay: "nobody"})
	require.ErrorIs(t, err, pgx.ErrNoRows)
}

func TestEventAndItsLife(t *testing.T) {
	pool, q := install(t)
	insertState(t, q)
	exec(t, pool, onThisSystem)
	id, replay := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	_, err := q.FindOutboxRow(t.Context(), id)
	require.ErrorIs(t, err, pgx.ErrNoRows)

	exec(t, pool, `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload, headers)
VALUES ($1, 'orders', 'order', 'A', 'OrderPaid', NULL, '{"a": "b"}')`, id)
	row, err := q.FindOutboxRow(t.Context(), id)
	require.NoError(t, err)
	require.Nil(t, row.Payload)
	require.JSONEq(t, `{"a": "b"}`, string(row.Headers))
	require.Positive(t, row.TxID)
	require.EqualValues(t, 1, row.Seq)

	event := outboxdb.AccountOfParams{ID: row.ID, TxID: row.TxID, Seq: row.Seq}
	by, err := q.AccountOf(t.Context(), event)
	require.NoError(t, err)
	require.False(t, by[0].Known)
	require.Equal(t, "pending", by[0].State)
	exec(t, pool, "INSERT INTO onceward.published_snapshots SELECT slot, pg_current_snapshot(), now() FROM onceward.relay_state ON CONFLICT (slot) DO UPDATE SET snapshot = excluded.snapshot, taken_at = excluded.taken_at")
	by, err = q.AccountOf(t.Context(), event)
	require.NoError(t, err)
	require.True(t, by[0].Known)
	require.Equal(t, "published", by[0].State)
	event.TxID += 1_000_000
	by, err = q.AccountOf(t.Context(), event)
	require.NoError(t, err)
	require.Equal(t, "pending", by[0].State)

	exec(t, pool, `INSERT INTO onceward.replays (replay_id, id, namespace, aggregate_type, aggregate_id, event_type, created_at, reason)
VALUES ($1, $2, 'orders', 'order', 'A', 'OrderPaid', now(), 'support')`, replay, id)
	replays, err := q.ReplaysOfEvent(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, replay, replays[0].ReplayID)
	for _, letter := range []uuid.UUID{id, replay} {
		exec(t, pool, `INSERT INTO onceward.dead_letters (slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, content_type,
 created_at, tx_id, seq, position, error_class, error) VALUES ('onceward_orders', $1, 'orders', 'order', 'A', 'OrderPaid', 't', now(), '1', 1, '1/A0', 'c', 'e')`, letter)
	}
	letters, err := q.DeadLettersByID(t.Context(), []uuid.UUID{id, replay})
	require.NoError(t, err)
	require.Len(t, letters, 2)
	require.Equal(t, "1/A0", letters[0].Position)
	counts, err := q.DeadLettersByState(t.Context())
	require.NoError(t, err)
	require.Equal(t, []outboxdb.DeadLettersByStateRow{{Slot: "onceward_orders", State: "open", Letters: 2}}, counts)

	exec(t, pool, "ANALYZE onceward.outbox")
	rows, err := q.OutboxEstimate(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, rows)
}

// Every event is in one list, whatever its letter says and whether the snapshot
// covers it or not.
func TestListsKnowEveryState(t *testing.T) {
	pool, q := install(t)
	insertState(t, q)
	exec(t, pool, onThisSystem)
	states := []string{"", "open", "retrying", "replayed", "discarded"}
	insert := func() (ids []uuid.UUID) {
		for _, state := range states {
			id := uuid.Must(uuid.NewV7())
			ids = append(ids, id)
			exec(t, pool, `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type) VALUES ($1, 'orders', 'order', 'A', 'OrderPaid')`, id)
			if state != "" {
				exec(t, pool, `INSERT INTO onceward.dead_letters (slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, content_type, created_at, tx_id, seq, position, error_class, error, state)
SELECT 'onceward_orders', id, namespace, aggregate_type, aggregate_id, event_type, content_type, created_at, tx_id, seq, '0/1', 'c', 'e', $2 FROM onceward.outbox WHERE id = $1`, id, state)
			}
		}
		return ids
	}
	covered := insert()
	exec(t, pool, "INSERT INTO onceward.published_snapshots SELECT slot, pg_current_snapshot(), now() FROM onceward.relay_state ON CONFLICT (slot) DO UPDATE SET snapshot = excluded.snapshot, taken_at = excluded.taken_at")
	ahead := insert()

	pending, err := q.ListByState(t.Context(), outboxdb.ListByStateParams{State: "pending", RowLimit: 100})
	require.NoError(t, err)
	require.Len(t, pending, 1)
	require.Equal(t, ahead[0], pending[0].ID)
	published, err := q.ListPublished(t.Context(), outboxdb.ListPublishedParams{RowLimit: 100})
	require.NoError(t, err)
	var ids []uuid.UUID
	for _, row := range published {
		ids = append(ids, row.ID)
	}
	require.Equal(t, []uuid.UUID{ahead[3], covered[3], covered[0]}, ids, "a replayed letter is in Kafka, a discarded one is not")
	dead := func(states ...string) (ids []uuid.UUID) {
		rows, err := q.ListDead(t.Context(), outboxdb.ListDeadParams{RowLimit: 100, States: states})
		require.NoError(t, err)
		for _, row := range rows {
			ids = append(ids, row.LetterID)
		}
		return ids
	}
	require.Equal(t, []uuid.UUID{covered[1], covered[2], ahead[1], ahead[2]}, dead())
	require.Equal(t, []uuid.UUID{covered[4], ahead[4]}, dead("discarded"))
	require.Equal(t, []uuid.UUID{covered[3], covered[4], ahead[3], ahead[4]}, dead("discarded", "replayed"))
}

func TestSlotsAreThoseOfThisDatabase(t *testing.T) {
	pool, q := install(t)
	slots, err := q.Slots(t.Context())
	require.NoError(t, err)
	require.Empty(t, slots)
	exec(t, pool, "SELECT pg_create_logical_replication_slot('onceward_queries', 'pgoutput')")
	slots, err = q.Slots(t.Context())
	require.NoError(t, err)
	require.Len(t, slots, 1)
	require.Equal(t, "pgoutput", slots[0].Plugin)
	require.False(t, slots[0].Active)
	require.Nil(t, slots[0].ActivePid)
	require.Equal(t, "reserved", *slots[0].WalStatus)
	require.NotEmpty(t, slots[0].ConfirmedFlushLsn)
	exec(t, pool, "SELECT pg_drop_replication_slot('onceward_queries')")
}

// A transaction of the relay itself is never what pins the log.
func TestSlotHealthNamesNoTransactionOfTheRelay(t *testing.T) {
	pool, q := install(t)
	slot := "onceward_" + pool.Config().ConnConfig.Database
	exec(t, pool, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
	defer exec(t, pool, "SELECT pg_drop_replication_slot($1)", slot)
	for name, named := range map[string]bool{"onceward relay " + slot: false, "somebody else": true} {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), "SELECT set_config('application_name', $1, true), pg_current_xact_id()", name)
		require.NoError(t, err)
		health, err := q.SlotHealth(t.Context(), slot)
		require.NoError(t, err)
		require.Equal(t, named, health.OldestTransaction != "", "%s: %s", name, health.OldestTransaction)
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

// explained is a database that tells how it would answer, and does not.
type explained struct {
	*pgxpool.Pool
	plan *string
}

var errExplained = errors.New("explained")

func (e explained) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := e.Pool.Query(ctx, "EXPLAIN "+sql, args...)
	if err != nil {
		return nil, err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	*e.plan = strings.Join(lines, "\n")
	return nil, errors.Join(err, errExplained)
}

// What blocks a release is looked up once, and not for each of its letters: with some
// thousands of them a session would be over before the answer.
func TestReleaseAgainLooksOnce(t *testing.T) {
	pool, _ := install(t)
	var plan string
	control := uuid.New()
	_, err := outboxdb.New(explained{pool, &plan}).ReleaseAgain(t.Context(), outboxdb.ReleaseAgainParams{Slot: "onceward_orders", ControlID: &control})
	require.ErrorIs(t, err, errExplained)
	require.Contains(t, plan, "CTE Scan on blocker")
}

// A page that is read back holds as many rows as fit into its bytes, by payload and headers: what an event may have
// of these alone would be a large page.
func TestPagesAreBoundedByHeadersToo(t *testing.T) {
	pool, q := install(t)
	insertState(t, q)
	control := uuid.New()
	var ids []uuid.UUID
	for n := range 4 {
		id := uuid.Must(uuid.NewV7())
		ids = append(ids, id)
		exec(t, pool, `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, headers)
			VALUES ($1, 'orders', 'order', 'A', 'X', jsonb_build_object('h', repeat('x', 400000)))`, id)
		exec(t, pool, `INSERT INTO onceward.waiting (position, tx_id, lane, ordinal, id) SELECT '0/1', tx_id, 1, $2, id FROM onceward.outbox WHERE id = $1`, id, n)
		exec(t, pool, `INSERT INTO onceward.dead_letters (slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, content_type, headers, created_at, tx_id, seq, position, error_class, error, state, control_id, retry_index)
			SELECT 'onceward_orders', id, namespace, aggregate_type, aggregate_id, event_type, content_type, headers, created_at, tx_id, seq, '0/1', 'c', 'e', 'retrying', $2, $3 FROM onceward.outbox WHERE id = $1`, id, control, n)
	}
	const within = 1_000_000
	gap, err := q.RowsOfGap(t.Context(), outboxdb.RowsOfGapParams{Ids: ids, Bytes: within})
	require.NoError(t, err)
	require.Len(t, gap, 2)
	waits, err := q.ReadWaiting(t.Context(), outboxdb.ReadWaitingParams{Slot: "onceward_orders", Lane: 1, Position: "0/0", RowLimit: 100, ByteLimit: within})
	require.NoError(t, err)
	require.Len(t, waits, 3, "up to the one that goes beyond")
	letters, err := q.ReadRelease(t.Context(), outboxdb.ReadReleaseParams{Slot: "onceward_orders", ControlID: &control, RowLimit: 100, ByteLimit: within})
	require.NoError(t, err)
	require.Len(t, letters, 3, "up to the one that goes beyond")
}
