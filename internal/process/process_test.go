//go:build unix

package process_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/internal/process"
)

// orphanVariable makes the test binary play a parent that dies: see
// TestAChildDiesWithItsParent.
const orphanVariable = "PROCESS_TEST_PARENT_LOG"

func TestMain(m *testing.M) {
	if log := os.Getenv(orphanVariable); log != "" {
		playParent(log)
	}
	goleak.VerifyTestMain(m)
}

// sleeper starts a shell that waits for ever, says "up" in its log first, and
// does trap when it gets SIGTERM.
func sleeper(t *testing.T, trap string) (*process.Process, string) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	script := "trap '" + trap + "' TERM; echo up; while :; do sleep 0.05; done"
	p, err := process.Start(process.Spec{Path: "/bin/sh", Args: []string{"-c", script}, LogFile: log})
	require.NoError(t, err)
	t.Cleanup(p.Kill)
	require.Eventually(t, func() bool { return strings.Contains(process.Tail(log), "up") }, time.Minute, time.Millisecond)
	return p, log
}

func TestStopEndsAProcessThatObeys(t *testing.T) {
	p, log := sleeper(t, "echo bye; exit 3")
	require.NoError(t, p.Err(), "it runs")
	require.NoError(t, p.Stop(t.Context(), syscall.SIGTERM))
	var exit *exec.ExitError
	require.ErrorAs(t, p.Err(), &exit)
	require.Equal(t, 3, exit.ExitCode())
	require.Contains(t, process.Tail(log), "bye")
	require.NoError(t, p.Stop(t.Context(), syscall.SIGTERM), "ended already")
	require.ErrorIs(t, p.Signal(syscall.SIGTERM), os.ErrProcessDone)
}

func TestStopKillsAProcessThatDoesNotObey(t *testing.T) {
	p, _ := sleeper(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := p.Stop(ctx, syscall.SIGTERM)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "was killed")
	require.ErrorIs(t, syscall.Kill(p.PID(), 0), syscall.ESRCH)
}

func TestStartTellsWhatCouldNotBeStarted(t *testing.T) {
	dir := t.TempDir()
	_, err := process.Start(process.Spec{Path: "/no/such/program", LogFile: filepath.Join(dir, "log")})
	require.ErrorContains(t, err, "start /no/such/program")
	_, err = process.Start(process.Spec{Path: "/bin/sh", LogFile: filepath.Join(dir, "no", "log")})
	require.ErrorContains(t, err, "open its log")
	_, err = process.Start(process.Spec{Path: "/bin/sh", LogFile: filepath.Join(dir, "log"), Detached: true, DeathSignal: syscall.SIGKILL})
	require.ErrorContains(t, err, "DeathSignal is killed")
}

func TestRunReturnsTheOutputAndPutsItIntoTheError(t *testing.T) {
	out, err := process.Run(t.Context(), process.Spec{Path: "/bin/sh", Args: []string{"-c", "echo $GREETING; pwd"}, Env: []string{"GREETING=hello"}, Dir: "/"})
	require.NoError(t, err)
	require.Equal(t, "hello\n/\n", out)

	_, err = process.Run(t.Context(), process.Spec{Path: "/bin/sh", Args: []string{"-c", "echo the reason >&2; exit 4"}})
	require.ErrorContains(t, err, "exit status 4\n  | the reason")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = process.Run(ctx, process.Spec{Path: "/bin/sh", Args: []string{"-c", "read line"}})
	require.ErrorIs(t, err, context.Canceled)
}

func TestTailIsBoundedAndSaysWhatItReads(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	require.Contains(t, process.Tail(log), "no log")
	require.NoError(t, os.WriteFile(log, nil, 0o600))
	require.Contains(t, process.Tail(log), "is empty")
	require.NoError(t, os.WriteFile(log, []byte(strings.Repeat("old\n", 100_000)+"new\n"), 0o600))
	tail := process.Tail(log)
	require.True(t, strings.HasPrefix(tail, "\nthe end of "+log))
	require.True(t, strings.HasSuffix(tail, "| old\n  | new"))
	require.Equal(t, 20, strings.Count(tail, "  | "))
}

func TestRootsChildrenRunAsNobody(t *testing.T) {
	user, err := process.Unprivileged()
	require.NoError(t, err)
	if user == nil {
		t.Skip("only root has to step down")
	}
	out, err := process.Run(t.Context(), process.Spec{Path: "/bin/sh", Args: []string{"-c", "id -un; id -G | wc -w"}, User: user, Dir: "/"})
	require.NoError(t, err)
	require.Equal(t, []string{"nobody", "1"}, strings.Fields(out), "nobody, in no other group")

	dir := t.TempDir()
	require.ErrorContains(t, user.Reach(dir), "may not enter "+filepath.Dir(dir))
	require.NoError(t, user.Own(filepath.Dir(dir)))
	require.NoError(t, user.Reach(dir), "what it owns it may enter")
	require.NoError(t, user.Reach("/"))
}

func TestAForeignProcessIsKnownByItsMarker(t *testing.T) {
	p, log := sleeper(t, "exit")
	require.True(t, process.Runs(p.PID(), "echo up"))
	require.False(t, process.Runs(p.PID(), "another program"))
	require.False(t, process.Runs(p.PID(), ""))
	require.False(t, process.Runs(0, "echo up"))
	require.NoError(t, process.StopForeign(t.Context(), p.PID(), "another program", syscall.SIGTERM), "not ours: left alone")
	require.NoError(t, p.Err())
	require.NoError(t, process.StopForeign(t.Context(), p.PID(), "echo up", syscall.SIGTERM))
	<-p.Done()
	require.FileExists(t, log)

	deaf, _ := sleeper(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, process.StopForeign(ctx, deaf.PID(), "echo up", syscall.SIGTERM))
	<-deaf.Done()
}

// playParent starts a child with a death signal, tells its process id, and
// waits to be killed.
func playParent(log string) {
	p, err := process.Start(process.Spec{
		Path: "/bin/sh", Args: []string{"-c", "echo up; while :; do sleep 0.05; done"},
		LogFile: log, DeathSignal: syscall.SIGKILL,
	})
	if err != nil {
		panic(err)
	}
	_, _ = os.Stdout.WriteString(strconv.Itoa(p.PID()) + "\n")
	<-p.Done()
	os.Exit(9)
}

func TestAChildDiesWithItsParent(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("only Linux tells the child")
	}
	log := filepath.Join(t.TempDir(), "log")
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), orphanVariable+"="+log)
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	line := make([]byte, 20)
	n, err := out.Read(line)
	require.True(t, err == nil || errors.Is(err, io.EOF), "%v", err)
	child, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
	require.NoError(t, err)
	require.True(t, process.Runs(child, "echo up"))

	require.NoError(t, parent.Process.Kill())
	require.Error(t, parent.Wait())
	require.Eventually(t, func() bool { return !process.Runs(child, "echo up") }, time.Minute, time.Millisecond)
}
