//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaproxy"
	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/internal/process"
)

// stopLimit bounds a relay's end after SIGTERM, whatever is broken around it: its
// grace of two seconds, and what closing costs.
const stopLimit = 20 * time.Second

// nemesis does to an arena what a plan says. It runs in the test's goroutine; what
// takes long (a broker's start, a server's) runs beside it and is waited for.
type nemesis struct {
	t      *testing.T
	a      *arena
	began  time.Time
	undos  []undo
	tasks  sync.WaitGroup
	counts map[string]int
	// patience bounds the faults that wait for their moment.
	patience time.Duration
	moves    map[pack]func(step) bool // those of a test of its own
	// standsStill says on what a fault may hang that does not end.
	standsStill func() string
	found       []violation
	diary       []string

	mu       sync.Mutex
	failures []error      // of what ran beside it
	busy     map[int]bool // brokers that are down or stopped
	database bool         // PostgreSQL is being restarted
}

func newNemesis(a *arena) *nemesis {
	return &nemesis{t: a.t, a: a, counts: map[string]int{}, busy: map[int]bool{}, patience: 3 * time.Second, standsStill: func() string { return "" }}
}

// run follows the plan and heals everything.
func (n *nemesis) run(steps []step) {
	n.began = time.Now()
	for _, s := range steps {
		n.until(n.began.Add(s.at))
		n.watchRelays()
		if n.strike(s) {
			n.note(s)
		}
	}
	n.heal()
}

func (n *nemesis) note(s step) {
	name := string(s.pack)
	if s.pack == requestHit {
		name = fmt.Sprintf("request %d %s", s.key, s.action)
	}
	n.counts[name]++
	n.diary = append(n.diary, s.String())
}

// total is the number of faults.
func (n *nemesis) total() int {
	sum := 0
	for _, c := range n.counts {
		sum += c
	}
	return sum
}

func (n *nemesis) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(n.counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, n.counts[name]))
	}
	return strings.Join(parts, ", ")
}

// until waits, and ends the faults whose time has come.
func (n *nemesis) until(at time.Time) {
	if now := time.Now(); at.Before(now) {
		at = now
	}
	for {
		next := at
		for _, u := range n.undos {
			if u.at.Before(next) {
				next = u.at
			}
		}
		_ = wait(n.t.Context(), time.Until(next))
		due := n.undos
		n.undos = nil
		for _, u := range due {
			if u.at.After(next) {
				n.undos = append(n.undos, u)
			} else if !u.do() {
				n.undos = append(n.undos, undo{time.Now().Add(50 * time.Millisecond), u.do})
			}
		}
		if !next.Before(at) {
			return
		}
	}
}

// later ends a fault after a while.
func (n *nemesis) later(d time.Duration, do func()) {
	n.undos = append(n.undos, undo{time.Now().Add(d), func() bool { do(); return true }})
}

// heal ends all faults: what is down comes up again, whatever is held goes.
func (n *nemesis) heal() {
	for deadline := time.Now().Add(2 * stopLimit); len(n.undos) > 0; {
		if time.Now().After(deadline) {
			require.Fail(n.t, "a fault does not end: "+n.undos[0].String(), n.standsStill()+"\n"+strings.Join(n.diary, "\n"))
		}
		for i := range n.undos {
			n.undos[i].at = time.Time{}
		}
		n.until(time.Now().Add(50 * time.Millisecond))
	}
	n.tasks.Wait()
	n.a.heal()
	n.a.pool.Reset()
	n.a.app.Reset()
	n.mu.Lock()
	defer n.mu.Unlock()
	require.NoError(n.t, errors.Join(n.failures...), "what the nemesis itself could not do\n"+strings.Join(n.diary, "\n"))
	n.watchRelays()
}

// watchRelays finds relays that have ended without having been told to, which
// none of these faults may make them do, and starts them again.
func (n *nemesis) watchRelays() {
	for i, r := range n.a.relays {
		if r.process == nil {
			continue
		}
		select {
		case <-r.process.Done():
		default:
			continue
		}
		n.found = append(n.found, violation{liveAgain, fmt.Sprintf("relay %d ended by itself (%v): %s", i, r.process.Err(), lastLine(r))})
		r.start()
	}
}

// liveAgain is statement 13: what heals by itself does so within its time.
const liveAgain = "live again"

func lastLine(r *relayProcess) string {
	lines := strings.Split(strings.TrimSpace(r.log()), "\n")
	return lines[len(lines)-1]
}

// strike does one step; false: it did not fit.
func (n *nemesis) strike(s step) bool {
	do := map[pack]func(step) bool{
		relayKilled: n.killRelay, relayStopped: n.stopRelay, relayTerminated: n.terminateRelay,
		brokerKilled: n.killBroker, brokerStopped: n.stopBroker, leaderMoved: n.moveLeaders,
		kafkaCut: n.cutKafka, kafkaRefused: n.refuseKafka, kafkaShaped: n.shapeKafka, requestHit: n.hitRequest,
		walsenderEnded: n.endWalsender, postgresFast: n.restartPostgres, postgresCrashed: n.restartPostgres,
		postgresCut: n.cutPostgres, postgresShaped: n.shapePostgres, columnChanged: n.changeColumn,
		lateCommitMeets: n.lateCommit, commitUnheard: n.commitUnheard,
	}[s.pack]
	if do == nil {
		do = n.moves[s.pack]
	}
	require.NotNil(n.t, do, s.pack)
	return do(s)
}

// running returns the relay of a step, nil while it is down.
func (n *nemesis) running(s step) *relayProcess {
	if r := n.a.relays[s.target%uint64(len(n.a.relays))]; r.process != nil {
		return r
	}
	return nil
}

func (n *nemesis) killRelay(s step) bool {
	r := n.running(s)
	if r == nil {
		return false
	}
	r.kill()
	n.later(s.lasting, r.start)
	return true
}

func (n *nemesis) stopRelay(s step) bool {
	r := n.running(s)
	if r == nil {
		return false
	}
	p := r.process
	require.NoError(n.t, p.Signal(syscall.SIGSTOP))
	n.later(s.lasting, func() { _ = p.Signal(syscall.SIGCONT) })
	return true
}

func (n *nemesis) terminateRelay(s step) bool {
	r := n.running(s)
	if r == nil {
		return false
	}
	p := r.process
	require.NoError(n.t, p.Signal(syscall.SIGTERM))
	r.process = nil // not to be struck again
	n.undos = append(n.undos, undo{time.Now().Add(s.lasting), n.restartWhenEnded(r, p)})
	return true
}

// restartWhenEnded starts the relay again once its process has ended, and kills
// one that takes too long.
func (n *nemesis) restartWhenEnded(r *relayProcess, p *process.Process) func() bool {
	told := time.Now()
	return func() bool {
		_ = p.Signal(syscall.SIGCONT) // it may have been stopped before
		select {
		case <-p.Done():
		default:
			if time.Since(told) < stopLimit {
				return false
			}
			p.Kill()
			n.found = append(n.found, violation{liveAgain, fmt.Sprintf("a relay had not ended %s after SIGTERM", stopLimit)})
		}
		r.start()
		return true
	}
}

// takeBroker reserves the broker of a step. One at a time is down: two of three
// must be there.
func (n *nemesis) takeBroker(s step) (i int, free func(error), ok bool) {
	i = int(s.target % uint64(len(n.a.brokers)))
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.busy) > 0 {
		return i, nil, false
	}
	n.busy[i] = true
	return i, func(err error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.busy, i)
		n.failures = append(n.failures, err)
	}, true
}

func (n *nemesis) killBroker(s step) bool {
	i, free, ok := n.takeBroker(s)
	if !ok {
		return false
	}
	cluster := n.a.ground.cluster
	cluster.Kill(i)
	n.later(s.lasting, func() {
		n.tasks.Go(func() { free(cluster.StartBroker(context.WithoutCancel(n.t.Context()), i)) })
	})
	return true
}

func (n *nemesis) stopBroker(s step) bool {
	i, free, ok := n.takeBroker(s)
	if !ok {
		return false
	}
	pid := n.a.ground.cluster.PID(i)
	require.NoError(n.t, syscall.Kill(pid, syscall.SIGSTOP))
	n.later(s.lasting, func() { free(syscall.Kill(pid, syscall.SIGCONT)) })
	return true
}

func (n *nemesis) restartPostgres(s step) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.database {
		return false
	}
	n.database = true
	mode := pgserver.Fast
	if s.pack == postgresCrashed {
		mode = pgserver.Immediate
	}
	n.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(n.t.Context()), time.Minute)
		defer cancel()
		err := n.a.server.Restart(ctx, mode)
		n.mu.Lock()
		defer n.mu.Unlock()
		n.database = false
		n.failures = append(n.failures, err)
	})
	return true
}

// link returns the way to the broker of a step.
func (n *nemesis) link(s step) *kafkaproxy.Link {
	links := n.a.ground.network.Links()
	return links[s.target%uint64(len(links))]
}

func (n *nemesis) cutKafka(s step) bool { return n.link(s).Cut() > 0 }

func (n *nemesis) refuseKafka(s step) bool {
	link := n.link(s)
	link.Refuse(true)
	link.Cut()
	n.later(s.lasting, func() { link.Refuse(false) })
	return true
}

func (n *nemesis) shapeKafka(s step) bool { return n.shape(n.link(s), s) }

func (n *nemesis) shape(link *kafkaproxy.Link, s step) bool {
	link.Shape(s.direction(), s.shaped())
	n.later(s.lasting, func() { link.Shape(s.direction(), kafkaproxy.Traffic{}) })
	return true
}

func (n *nemesis) hitRequest(s step) bool {
	fault := n.a.ground.network.Inject(kafkaproxy.Fault{Key: s.key, Action: s.action, Times: s.times})
	n.later(s.lasting, fault.Release)
	return true
}

func (n *nemesis) cutPostgres(step) bool     { return n.a.postgres.Cut() > 0 }
func (n *nemesis) shapePostgres(s step) bool { return n.shape(n.a.postgres, s) }

func (n *nemesis) endWalsender(step) bool {
	return n.sql(`SELECT count(*) FILTER (WHERE pg_terminate_backend(active_pid)) FROM pg_replication_slots WHERE slot_name = '` + n.a.slot() + `' AND active`)
}

func (n *nemesis) changeColumn(s step) bool {
	change := fmt.Sprintf("ADD COLUMN IF NOT EXISTS spare_%d text", s.target%3)
	if s.up {
		change = fmt.Sprintf("DROP COLUMN IF EXISTS spare_%d", s.target%3)
	}
	return n.sql("SET lock_timeout = '1s'; ALTER TABLE onceward.outbox " + change)
}

// sql runs a statement as the superuser; false: the server is not there, or
// somebody held the table for too long.
func (n *nemesis) sql(statement string) bool {
	ctx, cancel := context.WithTimeout(n.t.Context(), 2*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, n.a.server.DSN(n.a.name))
	if err != nil {
		return false
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol)
	return err == nil
}

// moveLeaders makes each partition's first replica its leader again, which after
// a broker's return moves leaders back to it.
func (n *nemesis) moveLeaders(step) bool {
	config := kafkaConfig()
	config.Net.DialTimeout, config.Net.ReadTimeout, config.Metadata.Retry.Max, config.Admin.Retry.Max = time.Second, time.Second, 0, 0
	admin, err := sarama.NewClusterAdmin(n.a.brokers, config)
	if err != nil {
		return false
	}
	defer admin.Close()
	all := make([]int32, n.a.partitions)
	for i := range all {
		all[i] = int32(i)
	}
	_, err = admin.ElectLeaders(sarama.PreferredElection, map[string][]int32{n.a.topic(): all, checkpointTopic: {0, 1}})
	return err == nil
}

// lateCommit is the trap of a late EndTxn, whole: the commit of a transaction is
// held back until the client has committed by another one, and comes while the
// next transaction has its records in the topic and not its position. Then the
// relay is killed, so that the next session begins at the position before them.
func (n *nemesis) lateCommit(s step) bool {
	network := n.a.ground.network
	late := network.Inject(kafkaproxy.Fault{Key: kafkaproxy.EndTxn, Action: kafkaproxy.Late, Times: 1})
	defer late.Release()
	if !n.await(late, 1) {
		return false // nobody commits just now
	}
	faults, ok := n.behindEvents(kafkaproxy.Fault{Key: kafkaproxy.TxnOffsetCommit, Action: kafkaproxy.Hold, Times: 1})
	defer release(faults)
	if !ok || !n.await(faults[0], 1) {
		return false
	}
	ctx, cancel := context.WithTimeout(n.t.Context(), n.patience)
	defer cancel()
	if late.Deliver(ctx) != nil {
		return false // its broker has gone
	}
	n.killRelays(s)
	return true
}

// commitUnheard lets Kafka commit a transaction of which the relay hears nothing
// before it is killed: only the checkpoint in Kafka knows of it.
func (n *nemesis) commitUnheard(s step) bool {
	faults, ok := n.behindEvents(
		kafkaproxy.Fault{Key: kafkaproxy.EndTxn, Action: kafkaproxy.DropReply, Times: 1},
		kafkaproxy.Fault{Key: kafkaproxy.EndTxn, Action: kafkaproxy.Hold, Times: 1}, // sent again
	)
	defer release(faults)
	if !ok || !n.await(faults[1], 1) || faults[0].Hits() == 0 {
		return false
	}
	n.killRelays(s)
	return true
}

// behindEvents injects faults whose next requests belong to a transaction that
// holds events: one that commits a position alone has nothing to lose or double.
// Events are held while they are put in place, because no transaction ends before
// its events are acknowledged. False: nobody published any.
func (n *nemesis) behindEvents(faults ...kafkaproxy.Fault) (injected []*kafkaproxy.Injected, ok bool) {
	network := n.a.ground.network
	events := network.Inject(kafkaproxy.Fault{Key: kafkaproxy.Produce, Action: kafkaproxy.Hold, Times: 1})
	defer events.Release()
	if !n.await(events, 1) {
		return nil, false
	}
	for _, f := range faults {
		injected = append(injected, network.Inject(f))
	}
	return injected, true
}

func release(faults []*kafkaproxy.Injected) {
	for _, f := range faults {
		f.Release()
	}
}

// await waits for a fault to meet its requests, while other faults end in time.
func (n *nemesis) await(fault *kafkaproxy.Injected, hits int) bool {
	for deadline := time.Now().Add(n.patience); fault.Hits() < hits; {
		if time.Now().After(deadline) {
			return false
		}
		n.until(time.Now().Add(5 * time.Millisecond))
	}
	return true
}

// killRelays kills all of them, and soon starts them again.
func (n *nemesis) killRelays(s step) {
	for _, r := range n.a.relays {
		if r.process != nil {
			r.kill()
			n.later(s.lasting/10, r.start)
		}
	}
}

// secrets finds in the relays' logs what must never be there: a password, a
// payload.
func (a *arena) secrets() (found []violation) {
	for _, path := range a.logs {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it was never started
		}
		for _, canary := range []string{loginPassword, padding} {
			if canary != "" && strings.Contains(string(text), canary) {
				found = append(found, violation{"secrets", fmt.Sprintf("%q is in a relay's log", canary)})
			}
		}
	}
	return found
}
