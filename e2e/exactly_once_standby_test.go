//go:build e2e

package e2e

import (
	"context"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/internal/kafkaproxy"
)

// TestStandbyNeverFences: a second relay beside a healthy one in exactly-once
// mode looks for the slot again and again, is restarted and killed, and never
// asks Kafka for a producer: that would fence the holder, who has the slot.
func TestStandbyNeverFences(t *testing.T) {
	a := newArena(t, "18", 1)
	holder, standby := a.relay("holder", "", exactlyOnce(time.Minute)), a.relay("standby", "", exactlyOnce(time.Minute))
	a.streams(holder)
	load := startWild(a, 12)
	for restarts := range 3 {
		standby.start()
		looks := map[string]bool{}
		eventually(t, "the standby looks for the slot", 30*time.Second, func() bool {
			looks[looked(a.environment)] = true
			return len(looks) > 3 || a.producers("standby") > 0
		})
		require.Zero(t, a.producers("standby"), "a standby asks for no producer")
		if restarts == 1 {
			standby.stop()
		} else {
			standby.kill()
		}
	}
	load.stop()
	require.Equal(t, 1, sessions(holder))
	require.NotContains(t, holder.log(), "fenced")
	a.confirmed(time.Minute)
	holder.stop()
	events := a.requireOnce(load.ghosts())
	t.Logf("a standby, killed, stopped and killed: no producer of its own, one session of the holder; %d events, each once", events)
}

// TestZombieAsksForNoProducer: a relay that waits for its producer stops in its
// tracks, loses the slot and wakes. It sees that another has the slot, and does
// not go on asking, which would fence the other again and again.
func TestZombieAsksForNoProducer(t *testing.T) {
	a := newArena(t, "18", 1)
	zombie, owner := a.relay("zombie", "", exactlyOnce(time.Minute)), a.relay("owner", "", exactlyOnce(time.Minute))
	unheard := a.ground.network.Inject(kafkaproxy.Fault{Key: kafkaproxy.InitProducerID, Action: kafkaproxy.Break, Client: a.client("zombie")})
	defer unheard.Release()
	zombie.start()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, unheard.Wait(ctx, 3))
	require.NoError(t, zombie.process.Signal(syscall.SIGSTOP))
	_, err := a.pool.Exec(t.Context(), `SELECT pg_terminate_backend(active_pid) FROM pg_catalog.pg_replication_slots WHERE slot_name = $1 AND active`, a.slot())
	require.NoError(t, err)
	a.streams(owner)
	load := startWild(a, 14)
	before := a.producers("zombie")
	require.NoError(t, zombie.process.Signal(syscall.SIGCONT))
	eventually(t, "the zombie stands by", 30*time.Second, func() bool { return strings.Contains(zombie.log(), "standby: another process holds the slot") })
	asked := a.producers("zombie") - before
	require.LessOrEqual(t, asked, 6, "what it asks before it has looked")
	load.stop()
	require.Equal(t, 1, sessions(owner))
	require.NotContains(t, owner.log(), "fenced")
	a.confirmed(time.Minute)
	zombie.stop()
	owner.stop()
	events := a.requireOnce(load.ghosts())
	t.Logf("a zombie that waited for its producer asked %d times more when it woke, and stands by; one session of the owner; %d events, each once", asked, events)
}

// TestStoppedPastItsTransactionTimeout: a lone relay stops in its tracks with a
// transaction open until Kafka has aborted that, and goes on by itself.
func TestStoppedPastItsTransactionTimeout(t *testing.T) {
	a := newArena(t, "15", 1)
	r := a.relay("relay", "", exactlyOnce(time.Second))
	a.streams(r)
	load := startWild(a, 13)
	client := a.ground.behind(t)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 2 {
		commit := a.ground.network.Inject(kafkaproxy.Fault{Key: kafkaproxy.EndTxn, Action: kafkaproxy.Break, Times: 1})
		open := a.ground.network.Inject(kafkaproxy.Fault{Key: kafkaproxy.TxnOffsetCommit, Action: kafkaproxy.Hold, Times: 1})
		require.NoError(t, open.Wait(ctx, 1))
		require.NoError(t, r.process.Signal(syscall.SIGSTOP))
		open.Release()
		commit.Release()
		eventually(t, "Kafka aborts the transaction", 20*time.Second, func() bool { return a.transactionState(client) == "CompleteAbort" })
		before := load.writers.committed.Load()
		eventually(t, "others write meanwhile", 20*time.Second, func() bool { return load.writers.committed.Load() > before+100 })
		require.NoError(t, r.process.Signal(syscall.SIGCONT))
		a.confirmed(30 * time.Second)
	}
	load.stop()
	a.confirmed(30 * time.Second)
	r.stop()
	events := a.requireOnce(load.ghosts())
	t.Logf("stopped twice until Kafka had aborted its transaction, went on in %d sessions; %d events, each once", sessions(r), events)
}

// wildLoad is writers at work.
type wildLoad struct {
	writers *writers
	a       *arena
	written chan error
}

func startWild(a *arena, seed uint64) *wildLoad {
	l := &wildLoad{a: a, written: make(chan error, 1), writers: &writers{
		pool: a.app, seed: seed, count: 3, aggregates: 60, target: math.MaxInt64, namespace: a.name, wild: true,
	}}
	go func() { l.written <- l.writers.run(a.t.Context()) }()
	eventually(a.t, "events are committed", 30*time.Second, func() bool { return l.writers.committed.Load() > 50 })
	return l
}

func (l *wildLoad) stop() {
	l.a.t.Helper()
	l.writers.enough.Store(true)
	require.NoError(l.a.t, <-l.written)
}

// ghosts may be called after stop.
func (l *wildLoad) ghosts() map[string]string { return l.writers.ghosts }

// requireOnce demands that read_committed shows every event once and in order,
// and returns how many there are.
func (a *arena) requireOnce(ghosts map[string]string) int {
	a.t.Helper()
	truth, err := readTruth(a.t.Context(), a.pool)
	require.NoError(a.t, err)
	committed := a.read(kgo.ReadCommitted())
	found, copies := verify(committed, truth, ghosts, a.partitions)
	require.Empty(a.t, summary(append(found, a.secrets()...)))
	require.Zero(a.t, copies)
	require.Len(a.t, committed, len(truth))
	return len(truth)
}
