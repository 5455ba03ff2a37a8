//go:build e2e

package consumerdb_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

func install(t *testing.T) (*pgxpool.Pool, *consumerdb.Queries) {
	t.Helper()
	pool := testdb.New(t, "15")
	m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Consumer})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	return pool, consumerdb.New(pool)
}

func TestClaimOnceThenCompleteThenDelete(t *testing.T) {
	_, q := install(t)
	id := uuid.Must(uuid.NewV7())
	claim := consumerdb.ClaimEventsParams{
		ConsumerGroup: "billing", EventIds: []string{id.String()}, EventTypes: []string{"OrderPaid"}, Namespaces: []string{"orders"}, Fingerprints: []string{"0102"},
	}
	ids, err := q.ClaimEvents(t.Context(), claim)
	require.NoError(t, err)
	require.Equal(t, id.String(), ids.EventIds)
	ids, err = q.ClaimEvents(t.Context(), claim)
	require.NoError(t, err)
	require.Empty(t, ids.EventIds, "a second claim of the group is none")
	other := claim
	other.ConsumerGroup = "mail"
	ids, err = q.ClaimEvents(t.Context(), other)
	require.NoError(t, err)
	require.Equal(t, id.String(), ids.EventIds, "another group claims for itself")

	stored := consumerdb.FindClaimsParams{EventIds: []string{id.String()}, ConsumerGroup: "billing"}
	got, err := q.FindClaims(t.Context(), stored)
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Equal(t, "p", got[0].Outcome)
	require.Equal(t, []byte{1, 2}, got[0].Fingerprint)
	require.Nil(t, got[0].Result)
	require.WithinDuration(t, time.Now(), got[0].ProcessedAt, time.Minute)

	n, err := q.CompleteClaims(t.Context(), consumerdb.CompleteClaimsParams{EventIds: []string{id.String()}, ConsumerGroup: "billing", Result: `{"quote": 1}`})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	got, err = q.FindClaims(t.Context(), stored)
	require.NoError(t, err)
	require.JSONEq(t, `{"quote": 1}`, string(got[0].Result))

	require.NoError(t, q.DeleteClaims(t.Context(), consumerdb.DeleteClaimsParams{EventIds: []string{id.String()}, ConsumerGroup: "billing"}))
	got, err = q.FindClaims(t.Context(), stored)
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestDeadLetterIsKeptOnce(t *testing.T) {
	_, q := install(t)
	id, namespace := uuid.Must(uuid.NewV7()), "orders"
	letter := consumerdb.PutDeadLetterParams{
		ConsumerGroup: "billing", Topic: "orders", KafkaPartition: 2, KafkaOffset: 7, EventID: &id, Namespace: &namespace,
		RecordKey: []byte("A"), RecordHeaders: `[["a", "Yg=="]]`, Reason: "handler", Error: "no such account", Attempts: 3, State: "open",
	}
	n, err := q.PutDeadLetter(t.Context(), letter)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	n, err = q.PutDeadLetter(t.Context(), letter)
	require.NoError(t, err)
	require.Zero(t, n)
	bare := consumerdb.PutDeadLetterParams{ConsumerGroup: "billing", Topic: "orders", KafkaOffset: 8, RecordHeaders: `[]`, Reason: "malformed", Error: "no key", State: "open"}
	n, err = q.PutDeadLetter(t.Context(), bare)
	require.NoError(t, err)
	require.EqualValues(t, 1, n, "a message without a key has nothing else than its offset")
}

// The letters that wait are few, and an index has them: the settled ones are not read.
func TestLettersWaitingReadNoOthers(t *testing.T) {
	pool, _ := install(t)
	file, err := os.ReadFile("metrics.sql")
	require.NoError(t, err)
	_, query, _ := strings.Cut(string(file), "-- name: LettersWaiting :many")
	query, _, _ = strings.Cut(query, ";")
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), "SET enable_seqscan = off") // which an empty table does not need
	require.NoError(t, err)
	var plan string
	require.NoError(t, conn.QueryRow(t.Context(), "EXPLAIN (FORMAT JSON) "+query).Scan(&plan))
	require.Contains(t, plan, "consumer_dead_letters_of_key")
}

func TestProgressOnlyWidens(t *testing.T) {
	pool, q := install(t)
	early := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	late := early.Add(time.Hour)
	for _, mark := range []struct {
		low, high int64
		at        time.Time
	}{{10, 12, late}, {5, 11, early}, {11, 11, time.Unix(0, 0)}} {
		n, err := q.SaveProgress(t.Context(), consumerdb.SaveProgressParams{
			ConsumerGroup: "billing", Topics: []string{"orders"}, TopicIds: []string{uuid.Nil.String()}, KafkaPartitions: []int32{1},
			LowOffsets: []int64{mark.low}, HighOffsets: []int64{mark.high}, ReadOffsets: []int64{0}, FinishedTimes: []time.Time{mark.at},
		})
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
	}
	var low, high int64
	var finished time.Time
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT low_offset, high_offset, finished_time FROM onceward.progress").Scan(&low, &high, &finished))
	require.EqualValues(t, 5, low)
	require.EqualValues(t, 12, high)
	require.True(t, finished.Equal(late))
}
