//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

const (
	confirmAfterDurable = "confirm after durable"
	checkpointMonotone  = "checkpoint monotone"
)

// positions samples the slot and the checkpoint while a scenario runs: the slot
// is never ahead of the checkpoint, and the checkpoint never goes back.
type positions struct {
	w       *environment
	looks   atomic.Int64
	samples int // looks, once it has ended
	mu      sync.Mutex
	found   []violation
	last    sample
	end     context.CancelFunc
	done    chan struct{}
}

// sample is one look, positions as bytes of log.
type sample struct{ flushed, checkpoint, tick, epoch int64 }

// watchPositions samples until stop is called.
func watchPositions(t *testing.T, w *environment) *positions {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &positions{w: w, end: cancel, done: make(chan struct{})}
	t.Cleanup(func() { p.stop() })
	go p.run(ctx)
	return p
}

// stop ends the sampling; safe to call twice.
func (p *positions) stop() *positions {
	p.end()
	<-p.done
	p.samples = int(p.looks.Load())
	return p
}

// now returns what was found up to now.
func (p *positions) now() []violation {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.found)
}

func (p *positions) report(statement, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.found = append(p.found, violation{statement, fmt.Sprintf(format, args...)})
}

// count is the number of samples up to now.
func (p *positions) count() int { return int(p.looks.Load()) }

func (p *positions) run(ctx context.Context) {
	defer close(p.done)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var conn *pgx.Conn
	for ctx.Err() == nil {
		if conn == nil || conn.IsClosed() { // the scenario may restart the server
			conn, _ = pgx.Connect(ctx, p.w.server.DSN(p.w.name))
		}
		if conn != nil {
			p.look(ctx, conn)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	if conn != nil {
		_ = conn.Close(context.WithoutCancel(ctx))
	}
}

// look reads the slot first and the checkpoint after it, in two statements: the
// checkpoint only grows, so it must have reached the slot's position by then.
func (p *positions) look(ctx context.Context, conn *pgx.Conn) {
	var s sample
	err := conn.QueryRow(ctx, `SELECT pg_wal_lsn_diff(confirmed_flush_lsn, '0/0')::bigint FROM pg_replication_slots WHERE slot_name = $1`, p.w.slot()).Scan(&s.flushed)
	if err != nil {
		return
	}
	err = conn.QueryRow(ctx, `SELECT pg_wal_lsn_diff(confirmed_lsn, '0/0')::bigint, tick, epoch FROM onceward.relay_state WHERE slot = $1`, p.w.slot()).Scan(&s.checkpoint, &s.tick, &s.epoch)
	if err != nil {
		return
	}
	p.looks.Add(1)
	if s.flushed > s.checkpoint {
		p.report(confirmAfterDurable, "the slot stands at %d, the checkpoint read after it at %d", s.flushed, s.checkpoint)
	}
	if s.checkpoint < p.last.checkpoint || s.tick < p.last.tick || s.epoch < p.last.epoch {
		p.report(checkpointMonotone, "%+v, then %+v", p.last, s)
	}
	p.last = s
}

// memory reads a line of /proc/<pid>/status, in MiB: VmHWM is the most that was
// ever resident.
func memory(t *testing.T, r *relayProcess, name string) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.process.PID()))
	require.NoError(t, err)
	m := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(text)
	require.NotNil(t, m, "%s in %s", name, text)
	kib, err := strconv.Atoi(string(m[1]))
	require.NoError(t, err)
	return float64(kib) / 1024
}

// memoryBar is what a relay may have resident, in MiB, whatever it reads.
const memoryBar = 96

var served = regexp.MustCompile(`serving health and metrics.*address=(\S+)`)

// adminAddress is where the relay's last process serves its pages.
func adminAddress(t *testing.T, r *relayProcess) string {
	t.Helper()
	addresses := served.FindAllStringSubmatch(r.log(), -1)
	require.NotEmpty(t, addresses, "the relay says where it serves its metrics")
	return addresses[len(addresses)-1][1]
}

// metric reads a value of the relay's /metrics, summed over labels; ok is false
// when there is none of that name.
func metric(t *testing.T, r *relayProcess, name string) (value float64, ok bool) {
	t.Helper()
	value, ok = scrape(t, r)[name]
	return value, ok
}

// sessions counts how often the relay took the slot.
func sessions(r *relayProcess) int { return strings.Count(r.log(), "slot taken") }
