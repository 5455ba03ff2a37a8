//go:build e2e

package pgtest_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/consumertest"
	"github.com/onceward/onceward/consumer/consumertest/pgtest"
)

// TestExercise: with nothing but a server of its own, a right handler passes, and a wrong one
// is caught.
func TestExercise(t *testing.T) {
	const insert = "INSERT INTO receipts VALUES ($1, $2)"
	dsn := pgtest.Start(t)
	consumertest.Exercise(t, receipts(dsn, func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		_, err := tx.Exec(ctx, insert, ev.AggregateID, ev.Payload)
		return err
	}))
	report, err := consumertest.Check(t.Context(), receipts(dsn, func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		other, err := pgx.ConnectConfig(ctx, tx.Conn().Config())
		if err != nil {
			return err
		}
		defer other.Close(ctx)
		_, err = other.Exec(ctx, insert, ev.AggregateID, ev.Payload)
		return err
	}))
	require.NoError(t, err)
	require.NotEmpty(t, report.Broken)
	require.Equal(t, consumertest.Crash, report.Broken[0].Promise)
}

// TestServersEndWithTheirTests: two run at once, in the version that was asked for, and leave nothing.
func TestServersEndWithTheirTests(t *testing.T) {
	folder := t.TempDir()
	for _, dir := range []string{folder, filepath.Dir(folder)} {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	t.Setenv("TMPDIR", folder)
	t.Setenv(pgtest.Version, "15")
	var dsns [2]string
	t.Run("up", func(t *testing.T) {
		for i := range dsns {
			dsns[i] = pgtest.Start(t)
			conn, err := pgx.Connect(t.Context(), dsns[i])
			require.NoError(t, err)
			var version string
			require.NoError(t, conn.QueryRow(t.Context(), "SHOW server_version").Scan(&version))
			require.Equal(t, "15", strings.Split(version, ".")[0])
			require.NoError(t, conn.Close(t.Context()))
		}
	})
	require.NotEqual(t, dsns[0], dsns[1])
	for _, dsn := range dsns {
		_, err := pgx.Connect(t.Context(), dsn)
		require.Error(t, err)
	}
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, left)
}
