//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
)

// saved is a snapshot of the storage.
type saved struct {
	past
	dir string // a copy of the data folder
	end string // a transaction id that is above those in it
}

// saveStorage takes a snapshot of the storage under the running server.
func (a *accounting) saveStorage(step) bool {
	if !a.answers() {
		return false
	}
	dir := filepath.Join(a.t.TempDir(), "data")
	frozen(a.t, a.server, func() { copied(a.t, a.server.DataDir(), dir) })
	if a.saved != nil {
		require.NoError(a.t, os.RemoveAll(a.saved.dir))
	}
	a.saved = &saved{past: a.present(), dir: dir, end: scalar[string](a.environment, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text`)}
	return true
}

// restoreStorage puts the storage back to the snapshot, under relays that live or that
// come back. It fits once the relays have ended what is in the snapshot: nothing of it
// is under way to Kafka any more, so that the order there can be judged.
func (a *accounting) restoreStorage(s step) bool {
	if a.saved == nil || !a.may(storageRestored) || !a.answers() {
		return false
	}
	if !a.holds(`SELECT pg_snapshot_xmin(snapshot) >= $2::text::xid8 FROM onceward.published_snapshots WHERE slot = $1`, a.slot(), a.saved.end) {
		return false
	}
	if _, ok := a.ends(); !ok {
		return false
	}
	a.dropStandby()
	a.abandon(s, a.saved.past, func() {
		ctx := a.t.Context()
		require.NoError(a.t, a.server.Halt(ctx, pgserver.Immediate))
		putBack(a.t, a.server, a.saved.dir)
		require.NoError(a.t, a.server.Resume(ctx))
		a.pool.Reset()
		a.forgetStandby()
	})
	return true
}

// putBack replaces the data of a server that is down by a copy of before.
func putBack(t *testing.T, server *pgserver.Server, from string) {
	t.Helper()
	data, conf := server.DataDir(), filepath.Join(t.TempDir(), "conf") // of this server: its port
	copied(t, filepath.Join(data, "onceward.conf"), conf)
	require.NoError(t, os.RemoveAll(data))
	copied(t, from, data)
	require.NoError(t, os.RemoveAll(filepath.Join(data, "postmaster.pid")))
	require.NoError(t, os.RemoveAll(filepath.Join(data, "onceward.conf")))
	copied(t, conf, filepath.Join(data, "onceward.conf"))
}

// frozen does something while no process of the server runs: what is in its files then
// is what a snapshot of the storage holds.
func frozen(t *testing.T, server *pgserver.Server, do func()) {
	t.Helper()
	pids := []int{server.PID()}
	require.NoError(t, syscall.Kill(pids[0], syscall.SIGSTOP)) // it makes no more of them
	stopped(t, pids[0])
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, path := range all {
		fields := statOf(path)
		if len(fields) < 2 || fields[1] != strconv.Itoa(pids[0]) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		require.NoError(t, err)
		if syscall.Kill(pid, syscall.SIGSTOP) == nil {
			pids = append(pids, pid)
			stopped(t, pid)
		}
	}
	do()
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}

// stopped waits until a process runs no more; one that has ended does not.
func stopped(t *testing.T, pid int) {
	t.Helper()
	eventually(t, "the process stands still", 10*time.Second, func() bool {
		fields := statOf("/proc/" + strconv.Itoa(pid) + "/stat")
		return len(fields) == 0 || slices.Contains([]string{"T", "t", "Z", "X"}, fields[0])
	})
}

// statOf returns the state of a process, its parent's id, and what follows; nothing
// when it has ended.
func statOf(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
}
