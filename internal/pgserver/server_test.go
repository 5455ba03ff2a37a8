//go:build e2e

package pgserver_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/internal/pgserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// query returns one text value from the server's database postgres.
func query(t *testing.T, s *pgserver.Server, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.DSN("postgres"))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	var value string
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&value))
	return value
}

// folder makes a folder that the server's user may enter, which t.TempDir's is
// not when root runs the test.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Dir(dir)} {
		require.NoError(t, os.Chmod(path, 0o755))
	}
	return dir
}

// start starts a server that is stopped with the test.
func start(t *testing.T, opts pgserver.Options) *pgserver.Server {
	t.Helper()
	s, err := pgserver.Start(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	return s
}

// Every supported version, from the system or from the library, starts with
// the defaults and can decode with pgoutput.
func TestEveryVersionStartsReadyForLogicalReplication(t *testing.T) {
	for _, version := range []string{"15", "16", "17", "18"} {
		t.Run(version, func(t *testing.T) {
			s := start(t, pgserver.Options{Version: version})
			require.Equal(t, version, query(t, s, "SELECT (current_setting('server_version_num')::int / 10000)::text"))
			require.Equal(t, "logical", query(t, s, "SHOW wal_level"))
			require.Equal(t, "off", query(t, s, "SHOW fsync"))
			require.Equal(t, "UTC", query(t, s, "SHOW timezone"))
			require.Equal(t, "50", query(t, s, "SHOW max_prepared_transactions"))
			require.Equal(t, "made", query(t, s, "SELECT slot_name FROM pg_create_logical_replication_slot('made', 'pgoutput')"))
			require.Equal(t, "127.0.0.1", query(t, s, "SHOW listen_addresses"))
		})
	}
}

func TestSettingsGoOnTopAndAlterSystemOnTopOfThem(t *testing.T) {
	s := start(t, pgserver.Options{Settings: map[string]string{"wal_sender_timeout": "5s", "fsync": "on", "onceward.note": `it's a \ sign`}})
	require.Equal(t, "5s", query(t, s, "SHOW wal_sender_timeout"))
	require.Equal(t, "on", query(t, s, "SHOW fsync"))
	require.Equal(t, `it's a \ sign`, query(t, s, "SHOW onceward.note"))

	conn, err := pgx.Connect(t.Context(), s.DSN("postgres"))
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "ALTER SYSTEM SET wal_sender_timeout = '7s'")
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	require.NoError(t, s.Restart(t.Context(), pgserver.Fast))
	require.Equal(t, "7s", query(t, s, "SHOW wal_sender_timeout"))
}

func TestRestartsKeepDataAndPort(t *testing.T) {
	s := start(t, pgserver.Options{})
	port := s.Port()
	for _, mode := range []pgserver.Mode{pgserver.Fast, pgserver.Immediate} {
		pid, mark := s.PID(), "kept_"+string(mode)
		query(t, s, "SELECT slot_name FROM pg_create_logical_replication_slot('"+mark+"', 'pgoutput')")
		require.NoError(t, s.Restart(t.Context(), mode))
		require.NotEqual(t, pid, s.PID())
		require.Equal(t, port, s.Port())
		require.Equal(t, mark, query(t, s, "SELECT slot_name FROM pg_replication_slots WHERE slot_name = '"+mark+"'"))
	}
}

func TestAHaltedServerIsDownUntilItIsResumed(t *testing.T) {
	s := start(t, pgserver.Options{})
	require.ErrorContains(t, s.Resume(t.Context()), "it is running")
	require.ErrorContains(t, s.Halt(t.Context(), "gently"), `mode is "gently"`)
	require.NoError(t, s.Halt(t.Context(), pgserver.Immediate))
	<-s.Done()
	_, err := pgx.Connect(t.Context(), s.DSN("postgres"))
	require.Error(t, err)
	require.NoError(t, s.Halt(t.Context(), pgserver.Fast), "down already")
	require.NoError(t, s.Resume(t.Context()))
	require.Equal(t, "on", query(t, s, "SHOW full_page_writes"))
}

func TestAKilledServerIsNoticedAndResumed(t *testing.T) {
	s := start(t, pgserver.Options{})
	require.NoError(t, syscall.Kill(s.PID(), syscall.SIGQUIT))
	<-s.Done()
	require.NoError(t, s.Resume(t.Context()))
	require.Equal(t, "logical", query(t, s, "SHOW wal_level"))
}

func TestATemporaryFolderGoesWithTheServer(t *testing.T) {
	s, err := pgserver.Start(t.Context(), pgserver.Options{})
	require.NoError(t, err)
	require.DirExists(t, s.DataDir())
	require.NoError(t, s.StopImmediate(t.Context()))
	require.NoDirExists(t, s.Dir())
}

func TestAFolderOfOnesOwnIsKeptAndUsedAgain(t *testing.T) {
	dir := filepath.Join(folder(t), "server")
	first, err := pgserver.Start(t.Context(), pgserver.Options{Dir: dir})
	require.NoError(t, err)
	system := query(t, first, "SELECT system_identifier::text FROM pg_control_system()")
	require.NoError(t, first.Stop(t.Context()))
	require.DirExists(t, dir)

	second := start(t, pgserver.Options{Dir: dir})
	require.Equal(t, system, query(t, second, "SELECT system_identifier::text FROM pg_control_system()"))
	require.FileExists(t, second.LogFile())
}

func TestDataOfAnotherMajorVersionIsRefused(t *testing.T) {
	dir := folder(t)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "data"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("11\n"), 0o644))
	_, err := pgserver.Start(t.Context(), pgserver.Options{Dir: dir, Version: "15"})
	require.ErrorContains(t, err, "it is of PostgreSQL 11")
}

func TestAFailedStartTellsTheEndOfTheLogAndLeavesNothing(t *testing.T) {
	temporary := folder(t)
	t.Setenv("TMPDIR", temporary)
	_, err := pgserver.Start(t.Context(), pgserver.Options{Settings: map[string]string{"max_connections": "many"}})
	require.ErrorContains(t, err, "the server ended while it started")
	require.ErrorContains(t, err, `invalid value for parameter "max_connections": "many"`)
	left, err := os.ReadDir(temporary)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestAStartEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := pgserver.Start(ctx, pgserver.Options{})
	require.Error(t, err)
}

func TestAFolderThatTheServerCannotEnterIsNamed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root runs the server as somebody else")
	}
	closed := filepath.Join(folder(t), "closed")
	require.NoError(t, os.Mkdir(closed, 0o700))
	_, err := pgserver.Start(t.Context(), pgserver.Options{Dir: filepath.Join(closed, "server")})
	require.ErrorContains(t, err, "may not enter "+closed+" (mode 0700)")
}
