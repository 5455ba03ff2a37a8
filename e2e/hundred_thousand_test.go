//go:build e2e

package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
)

// TestHundredThousandEvents: interleaved writers, prepared transactions among
// them, while the relay is killed ten times, its walsender is terminated every
// few seconds and PostgreSQL is restarted, once fast and once as after a crash.
// Everything arrives, nothing is invented, in order per key. The short form has 30,000.
func TestHundredThousandEvents(t *testing.T) {
	onAVersion(t, func(t *testing.T, version string) {
		began := time.Now()
		s := storm{events: 30_000, kills: 10}
		if full() {
			s.events = 100_000
		}
		s.run(t, version)
		o, load := s.outcome, s.load
		t.Logf("PostgreSQL %s, %s: %d events committed, %d rolled back, %d+%d prepared transactions committed+rolled back, %d outcomes lost (%d committed); "+
			"%d kills, %d walsenders terminated, 2 restarts, %d sessions; %d records, %d extra copies; %d samples of slot and checkpoint; 0 violations",
			version, time.Since(began).Round(time.Second), len(o.truth), len(o.ghosts), load.tally.prepared.Load(), load.tally.preparedRolledBack.Load(),
			load.tally.lost.Load(), load.tally.lostCommitted.Load(), s.kills, s.terminated, sessions(s.relay), len(o.records), o.copies, s.watch.samples)
		// caughtUp adds one more.
		require.Len(t, o.truth, int(load.committed.Load())+1, "what was acknowledged to the writers, or settled, is in the table")
		require.GreaterOrEqual(t, len(o.truth), int(s.events))
		require.Positive(t, s.terminated)
		require.Positive(t, load.tally.lost.Load(), "a restart met open transactions")
		require.Empty(t, summary(o.found))
	})
}

// TestHundredThousandEventsCatchesEarlyConfirms: the same storm, smaller, finds a
// relay that confirms what Kafka has not acknowledged.
func TestHundredThousandEventsCatchesEarlyConfirms(t *testing.T) {
	s := storm{events: 6000, kills: 4, defect: "confirm-early"}
	s.run(t, versions[0])
	t.Log(summary(s.outcome.found))
	require.Contains(t, summary(s.outcome.found), noLoss)
}

// storm is one run, and what it left behind.
type storm struct {
	events int64
	kills  int
	defect string

	w          *environment
	load       *writers
	relay      *relayProcess
	watch      *positions
	calm       sync.Mutex // held while no session may be terminated
	terminated int
	outcome    outcome
}

func (s *storm) run(t *testing.T, version string) {
	w := ownEnvironment(t, version, nil)
	s.w = w
	w.install()
	w.createTopic(nil)
	s.load = &writers{pool: w.app, seed: 4, count: 8, aggregates: 120, target: s.events, namespace: w.name, twoPhase: true, restarts: true}
	s.relay = w.newRelay(w.config("checkpoint_interval: 50ms", `admin: {listen: "off"}`), s.defect)
	s.relay.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return s.relay.logs("slot taken") })
	s.watch = watchPositions(t, w)
	written := make(chan error, 1)
	go func() { written <- s.load.run(t.Context()) }()
	stop := s.terminateWalsenders(t)
	defer stop()
	for i := range s.kills {
		s.fault(t, i)
	}
	require.NoError(t, <-written)
	stop()
	caughtUp(t, w, s.relay)
	s.relay.stop()
	s.verify(t)
}

// fault waits for its turn and kills the relay, every other time with Kafka
// stopped and events in flight. The server is restarted after a third and after
// two thirds of the kills.
func (s *storm) fault(t *testing.T, i int) {
	mark := s.events * int64(i+1) / int64(s.kills+1)
	eventually(t, "the writers go on", 2*time.Minute, func() bool { return s.load.committed.Load() >= mark })
	if i%2 == 0 {
		s.calm.Lock() // without Kafka a relay that lost its session cannot begin a new one
		killInFlight(t, s.w, s.relay, s.load)
		s.calm.Unlock()
	} else {
		s.relay.kill()
	}
	s.relay.start()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	switch i {
	case s.kills / 3:
		require.NoError(t, s.w.server.Restart(ctx, pgserver.Fast))
		s.w.pool.Reset()
		s.w.app.Reset()
	case s.kills * 2 / 3:
		require.NoError(t, s.w.server.Restart(ctx, pgserver.Immediate))
		s.w.pool.Reset()
		s.w.app.Reset()
	}
}

// terminateWalsenders ends the relay's session every two seconds, as an
// administrator would; the function returned stops it and is safe to call twice.
func (s *storm) terminateWalsenders(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(2 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			s.terminate(ctx)
		}
	})
	return func() { cancel(); group.Wait() }
}

// terminate ends the session that holds the slot now, if there is one.
func (s *storm) terminate(ctx context.Context) {
	s.calm.Lock()
	defer s.calm.Unlock()
	conn, err := pgx.Connect(ctx, s.w.server.DSN(s.w.name))
	if err != nil {
		return // it is being restarted
	}
	var n int
	err = conn.QueryRow(ctx, `SELECT count(*) FILTER (WHERE pg_terminate_backend(active_pid)) FROM pg_replication_slots WHERE slot_name = $1 AND active`, s.w.slot()).Scan(&n)
	if err == nil {
		s.terminated += n
	}
	_ = conn.Close(ctx)
}

func (s *storm) verify(t *testing.T) {
	o := outcome{w: s.w, ghosts: s.load.ghosts, records: s.w.records()}
	var err error
	o.truth, err = readTruth(t.Context(), s.w.pool)
	require.NoError(t, err)
	o.found, o.copies = verify(o.records, o.truth, o.ghosts, s.w.partitions)
	o.found = append(o.found, s.watch.stop().found...)
	s.outcome = o
}
