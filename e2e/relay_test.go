//go:build e2e

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/process"
)

// relayProcess is the relay as a process of its own.
type relayProcess struct {
	w       *environment
	binary  string
	config  string
	logFile string
	env     []string
	process *process.Process
}

// exitOnHalt makes the relay end when only an operator can mend what is wrong.
const exitOnHalt = "ONCEWARD_EXIT_ON_HALT=true"

// defective is the build tag of a relay with defects that a test can inject.
const defective = "onceward_defects"

// newRelay makes a relay that is not started. A defect is injected into a
// binary that has them; the production binary has none.
func (w *environment) newRelay(config, defect string) *relayProcess {
	w.t.Helper()
	r := &relayProcess{w: w, config: config, logFile: filepath.Join(w.t.TempDir(), "relay.log")}
	// What a test has broken on purpose ends the relay, so that it can wait for
	// that; the tests of a relay that stays take this away.
	r.env = []string{exitOnHalt}
	if defect == "" {
		r.binary = relayBinary(w.t, "")
	} else {
		r.binary, r.env = relayBinary(w.t, defective), append(r.env, "DEFECT="+defect)
	}
	w.t.Cleanup(func() {
		if r.process != nil {
			r.process.Kill()
		}
		if w.t.Failed() {
			w.t.Log(process.Tail(r.logFile))
		}
	})
	return r
}

func (r *relayProcess) start() {
	r.w.t.Helper()
	p, err := process.Start(process.Spec{Path: r.binary, Args: []string{"run", "--config", r.config}, Env: r.env, LogFile: r.logFile, DeathSignal: syscall.SIGKILL})
	require.NoError(r.w.t, err)
	r.process = p
}

// kill is kill -9.
func (r *relayProcess) kill() {
	r.process.Kill()
	r.process = nil
}

// stop is SIGTERM; the relay flushes and ends with 0.
func (r *relayProcess) stop() {
	r.w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	require.NoError(r.w.t, r.process.Stop(ctx, syscall.SIGTERM))
	require.NoError(r.w.t, r.process.Err(), "exit status of a graceful stop")
	r.process = nil
}

// wait waits until the relay ends by itself, and returns its log.
func (r *relayProcess) wait(limit time.Duration) string {
	r.w.t.Helper()
	select {
	case <-r.process.Done():
	case <-time.After(limit):
		r.w.t.Fatalf("the relay did not end within %s", limit)
	}
	return r.log()
}

func (r *relayProcess) log() string {
	r.w.t.Helper()
	text, err := os.ReadFile(r.logFile)
	require.NoError(r.w.t, err)
	return string(text)
}

func (r *relayProcess) logs(text string) bool { return strings.Contains(r.log(), text) }
