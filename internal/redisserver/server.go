package redisserver

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/loopback"
	"github.com/onceward/onceward/internal/process"
)

// Server is one Redis. Its methods belong to the goroutine of the test.
type Server struct {
	t    *testing.T
	dir  string
	args []string
	port int
	now  *process.Process // nil: it is down
}

// Start starts a server with more arguments of redis-server, such as "--maxmemory", "2mb". With
// "--tls-port" before anything else of TLS, that is its port, and there is no other. `make deps`
// installs Redis.
func Start(t *testing.T, args ...string) *Server {
	t.Helper()
	_, err := exec.LookPath("redis-server")
	require.NoError(t, err, "Redis is not installed; run make deps")
	port, err := loopback.Reserve(t.Context(), 1)
	require.NoError(t, err)
	s := &Server{t: t, dir: t.TempDir(), args: args, port: port.Ports()[0]}
	t.Cleanup(func() {
		if s.now != nil {
			s.now.Kill()
		}
		_ = port.Release()
	})
	s.Up()
	return s
}

// Address is where the server is, also while it is down.
func (s *Server) Address() string { return loopback.Address(s.port) }

// Up starts the server, with the dump that is there, and waits for it.
func (s *Server) Up() {
	s.t.Helper()
	require.Nil(s.t, s.now, "it is up")
	log := filepath.Join(s.t.TempDir(), "redis.log")
	ports := []string{"--port", strconv.Itoa(s.port)}
	if len(s.args) > 0 && s.args[0] == "--tls-port" {
		ports = []string{"--port", "0", "--tls-port", strconv.Itoa(s.port)}
	}
	args := append([]string{"--bind", loopback.Host, "--dir", s.dir, "--save", "", "--daemonize", "no"}, ports...)
	for _, arg := range s.args {
		if arg != "--tls-port" {
			args = append(args, arg)
		}
	}
	started, err := process.Start(process.Spec{Path: "redis-server", Args: args, LogFile: log, DeathSignal: syscall.SIGKILL})
	require.NoError(s.t, err)
	s.now = started
	require.Eventually(s.t, func() bool {
		text, err := os.ReadFile(log) //nolint:gosec // G304: a log of ours
		return err == nil && strings.Contains(string(text), "Ready to accept connections")
	}, time.Minute, 5*time.Millisecond, "Redis does not start: %s", log)
}

// Kill ends the server as a crash does.
func (s *Server) Kill() {
	s.t.Helper()
	require.NotNil(s.t, s.now, "it is down")
	s.now.Kill()
	s.now = nil
}

// Freeze stops the process: what is asked is taken in, and not answered, until Thaw.
func (s *Server) Freeze() { s.t.Helper(); require.NoError(s.t, s.now.Signal(syscall.SIGSTOP)) }

// Thaw lets a frozen server go on.
func (s *Server) Thaw() { s.t.Helper(); require.NoError(s.t, s.now.Signal(syscall.SIGCONT)) }

// Dump returns what SAVE has written; nil: nothing.
func (s *Server) Dump() []byte {
	s.t.Helper()
	dump, err := os.ReadFile(s.dump())
	if !os.IsNotExist(err) {
		require.NoError(s.t, err)
	}
	return dump
}

// SetDump gives a server that is down what it starts with; nil: nothing.
func (s *Server) SetDump(dump []byte) {
	s.t.Helper()
	require.Nil(s.t, s.now, "it is up, and would not read it")
	if dump == nil {
		require.NoError(s.t, os.RemoveAll(s.dump()))
		return
	}
	require.NoError(s.t, os.WriteFile(s.dump(), dump, 0o600))
}

func (s *Server) dump() string { return filepath.Join(s.dir, "dump.rdb") }
