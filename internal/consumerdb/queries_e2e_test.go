//go:build e2e

package consumerdb_test

import (
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
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
	claim := consumerdb.ClaimEventParams{
		EventID: id, ConsumerGroup: "billing", EventType: "OrderPaid", Namespace: "orders", Fingerprint: []byte{1, 2}, Outcome: "p",
	}
	n, err := q.ClaimEvent(t.Context(), claim)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	n, err = q.ClaimEvent(t.Context(), claim)
	require.NoError(t, err)
	require.Zero(t, n, "a second claim of the group is none")
	other := claim
	other.ConsumerGroup, other.Outcome = "mail", "d"
	n, err = q.ClaimEvent(t.Context(), other)
	require.NoError(t, err)
	require.EqualValues(t, 1, n, "another group claims for itself")

	stored := consumerdb.FindClaimParams{EventID: id, ConsumerGroup: "billing"}
	got, err := q.FindClaim(t.Context(), stored)
	require.NoError(t, err)
	require.Equal(t, "p", got.Outcome)
	require.Equal(t, []byte{1, 2}, got.Fingerprint)
	require.Nil(t, got.Result)
	require.WithinDuration(t, time.Now(), got.ProcessedAt, time.Minute)

	n, err = q.CompleteClaim(t.Context(), consumerdb.CompleteClaimParams{EventID: id, ConsumerGroup: "billing", Result: []byte(`{"quote": 1}`)})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	got, err = q.FindClaim(t.Context(), stored)
	require.NoError(t, err)
	require.JSONEq(t, `{"quote": 1}`, string(got.Result))

	require.NoError(t, q.DeleteClaims(t.Context(), consumerdb.DeleteClaimsParams{EventIds: []uuid.UUID{id}, ConsumerGroup: "billing"}))
	_, err = q.FindClaim(t.Context(), stored)
	require.ErrorIs(t, err, pgx.ErrNoRows)
}

func TestDeadLetterIsKeptOnce(t *testing.T) {
	_, q := install(t)
	id, namespace := uuid.Must(uuid.NewV7()), "orders"
	letter := consumerdb.InsertDeadLetterParams{
		ConsumerGroup: "billing", Topic: "orders", KafkaPartition: 2, KafkaOffset: 7, EventID: &id, Namespace: &namespace,
		RecordKey: []byte("A"), RecordHeaders: []byte(`[["a", "Yg=="]]`), Reason: "handler", Error: "no such account", Attempts: 3,
	}
	n, err := q.InsertDeadLetter(t.Context(), letter)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	n, err = q.InsertDeadLetter(t.Context(), letter)
	require.NoError(t, err)
	require.Zero(t, n)
	bare := consumerdb.InsertDeadLetterParams{ConsumerGroup: "billing", Topic: "orders", KafkaOffset: 8, Reason: "malformed", Error: "no key"}
	n, err = q.InsertDeadLetter(t.Context(), bare)
	require.NoError(t, err)
	require.EqualValues(t, 1, n, "a message without a key has nothing else than its offset")
}

func TestProgressOnlyWidens(t *testing.T) {
	pool, q := install(t)
	early := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	late := early.Add(time.Hour)
	for _, mark := range []struct {
		low, high int64
		at        time.Time
	}{{10, 12, late}, {5, 11, early}, {11, 11, time.Unix(0, 0)}} {
		require.NoError(t, q.SaveProgress(t.Context(), consumerdb.SaveProgressParams{
			ConsumerGroup: "billing", Topics: []string{"orders"}, KafkaPartitions: []int32{1},
			LowOffsets: []int64{mark.low}, HighOffsets: []int64{mark.high}, FinishedTimes: []time.Time{mark.at},
		}))
	}
	var low, high int64
	var finished time.Time
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT low_offset, high_offset, finished_time FROM onceward.progress").Scan(&low, &high, &finished))
	require.EqualValues(t, 5, low)
	require.EqualValues(t, 12, high)
	require.True(t, finished.Equal(late))
}
