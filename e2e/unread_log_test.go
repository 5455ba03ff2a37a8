//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/loopback"
)

// TestUnreadLog: nobody reads the relay's log, which is a pipe that is full from
// the start. It publishes all the same, says how many lines were dropped, and
// ends when it is told to. That the reader of the log goes away, and SIGHUP, do
// not end it.
func TestUnreadLog(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, versions[1])
	prepared(w)
	ports, err := loopback.Reserve(t.Context(), 1)
	require.NoError(t, err)
	defer func() { require.NoError(t, ports.Release()) }()
	address := loopback.Address(ports.Ports()[0])
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	defer reader.Close()
	fill(t, writer)
	cmd := exec.CommandContext(t.Context(), relayBinary(t, ""), "run", "--config", w.config(`admin: {listen: "`+address+`"}`), "--set", "log.level=debug")
	cmd.Stderr = writer
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	require.NoError(t, writer.Close())
	ready := func() bool {
		answer, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	}
	eventually(t, "it streams though its log is full", 30*time.Second, ready)
	writeOne(t, w)
	eventually(t, "it publishes", 30*time.Second, func() bool { return len(w.records()) == 1 })
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(reader)
		scanner.Buffer(nil, 1<<20) // the first line is what filled the pipe
		for scanner.Scan() {
			lines <- strings.TrimLeft(scanner.Text(), "x")
		}
	}()
	eventually(t, "the log is there once it is read, SIGHUP included", 30*time.Second, func() bool {
		select {
		case line := <-lines:
			return strings.Contains(line, "SIGHUP ignored")
		default:
			return false
		}
	})
	require.NoError(t, reader.Close()) // SIGPIPE would end the relay at its next line
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	writeOne(t, w)
	eventually(t, "it goes on without a reader", 30*time.Second, func() bool { return len(w.records()) == 2 })
	require.True(t, ready())
	_, metrics := readPage(t, "http://"+address+"/metrics")
	require.Contains(t, metrics, `onceward_log_lines_dropped_total`)
	began := time.Now()
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-ended:
		require.NoError(t, err, "a graceful stop")
	case <-time.After(20 * time.Second):
		t.Fatal("SIGTERM does not end it")
	}
	t.Logf("ended %s after SIGTERM", time.Since(began).Round(time.Millisecond))
}

// fill writes into a pipe until it is full.
func fill(t *testing.T, pipe *os.File) {
	t.Helper()
	raw, err := pipe.SyscallConn()
	require.NoError(t, err)
	block := bytes.Repeat([]byte("x"), 4096)
	require.NoError(t, raw.Control(func(fd uintptr) {
		for {
			if _, err := syscall.Write(int(fd), block); err != nil {
				return // EAGAIN: Go's pipes do not block
			}
		}
	}))
}
