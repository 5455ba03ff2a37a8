//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaproxy"
	"github.com/onceward/onceward/internal/redisserver"
)

// TestConsumerMoves: four members of a group, of two versions of the program, work
// while everything happens at random that faults of processes and networks, an
// operator's commands, changes of the environment and users' mistakes can do. At
// quiet moments every event has each of its effects once, and once more for each
// time that an operator ordered it; or one letter that says why it has not.
//
// SEED draws the moves, whether there is Redis in front of the claims and, in the short
// form, whether the database has a standby that is promoted or snapshots that are
// restored; FOR is their length.
// Without SEED each run has a schedule of its own.
func TestConsumerMoves(t *testing.T) {
	seed := seedOf(t)
	servers := []string{withStandby, onSnapshots}
	if !full() {
		servers = servers[seed%2:][:1]
	}
	for _, server := range servers {
		t.Run(server, func(t *testing.T) {
			m := newMover(t, versions[seed/2%2], seed, server, "")
			m.run(lengthOf(t, 35*time.Second, 5*time.Minute))
			t.Log(m.report())
			if len(m.found) > 0 {
				t.Log("moves:\n" + strings.Join(m.diary, "\n"))
			}
			require.Empty(t, m.found)
			require.GreaterOrEqual(t, len(m.counts), map[bool]int{true: len(m.bag()) - 4, false: 8}[full()], "kinds of moves")
		})
	}
}

// mover makes moves against a consumerGroup, and knows of each event what has to come of it.
type mover struct {
	*consumerGroup
	*replicated // nil: there is no standby, or it leads by now
	t           *testing.T
	seed        uint64
	defect      string
	limit       time.Duration // until all is quiet and right
	members     []*consumerProcess
	zombies     int
	producer    sarama.SyncProducer
	told        map[string]*toldEvent
	order       []*toldEvent // the same, in the order of their publication
	malformed   int          // records, and batches, that no event can be made of
	snapshot    string       // a copy of the data folder
	due         []later
	halted      bool // PostgreSQL is: what is due, which may ask it, waits
	deck        []string
	unfit       map[string]bool // kinds of the deck that are at its end now
	counts      map[string]int  // moves, by kind
	diary       []string
	began       time.Time
	quiet       int
	found       []string

	fast        *redisserver.Server // in front of the claims; nil: there is none
	network     *kafkaproxy.Network // between Kafka and its clients; nil: there is no such
	broker      func() int          // the process id of Kafka
	refusing    string              // event type whose late events become letters
	second      *secondGroup        // nil: it has not begun
	lostCommits bool                // the database has lost some
}

// later is what has to be done at a time.
type later struct {
	at time.Time
	do func()
}

// movesWindow is that of the class that both versions have: old events lie below its
// floor.
const movesWindow = day

// Servers of the group's database.
const (
	withStandby = "standby"
	onSnapshots = "snapshots"
	onShared    = "shared" // with other tests: it is not restarted
)

func newMover(t *testing.T, version string, seed uint64, server, defect string) *mover {
	m := &mover{t: t, seed: seed, defect: defect, began: time.Now(), limit: time.Minute, told: map[string]*toldEvent{}, counts: map[string]int{}}
	outside := newEnvironment(t, version)
	switch server {
	case onShared:
		m.consumerGroup = newConsumerGroupIn(newEnvironment(t, version), outside, seed)
	case withStandby:
		m.replicated = newReplicated(t, version)
		m.consumerGroup = newConsumerGroupIn(newEnvironmentBetween(t, m.primary, m.kafka()), outside, seed)
		m.dsn = m.eitherDSN(m.w, billingLogin)
	case onSnapshots:
		m.consumerGroup = newConsumerGroupIn(newEnvironmentBetween(t, ownServer(t, version, nil), m.kafka()), outside, seed)
	}
	if seed%3 > 0 {
		m.refusing = "Set"
	}
	if defect == "" && (seed/8%2 == 0) == (server == withStandby) { // the long form has one of each
		m.fast = redisserver.Start(t)
		m.redis = m.fast.Address()
	}
	m.window = movesWindow
	m.w.execute(`ALTER TABLE effects ADD COLUMN name text NOT NULL DEFAULT 'effect';
		CREATE TABLE refused (key text NOT NULL);
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
			IF NOT EXISTS (SELECT FROM mended WHERE key = NEW.key) THEN RAISE check_violation USING MESSAGE = 'refused at the end'; END IF; RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON refused DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse();
		GRANT ALL ON refused TO PUBLIC;
		CREATE SCHEMA second;
		CREATE TABLE second.effects (LIKE public.effects INCLUDING ALL);
		GRANT ALL ON SCHEMA second TO PUBLIC;
		GRANT ALL ON second.effects TO PUBLIC`)
	_, err := outside.as(billingLogin).Exec(t.Context(), `CREATE TABLE tries (key text PRIMARY KEY, n int NOT NULL, first timestamptz NOT NULL DEFAULT clock_timestamp());
		CREATE TABLE reconciled (key text PRIMARY KEY)`)
	require.NoError(t, err)
	if seed%4 < 2 {
		m.since(time.Now().Add(-4 * day))
	} else {
		require.True(t, m.command(consumerMaintainerLogin, "windows", "adopt", m.group, "--from", time.Now().UTC().Add(-4*day).Format(time.DateOnly), "--class", "*", "--window", "1d"))
		m.counts["adopted"]++
	}
	m.registerReadings(m.group)
	m.producer, err = sarama.NewSyncProducer(m.w.brokers, kafkaConfig())
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.producer.Close() })
	for i := range 4 {
		m.members = append(m.members, m.program(m.group, 1+i/2))
	}
	return m
}

// program is a member of the first group, in a group of Kafka.
func (m *mover) program(kafkaGroup string, version int) *consumerProcess {
	of := m.task(kafkaGroup, 5, "")
	of.Version, of.Defect, of.Refusing = version, m.defect, m.refusing
	return newConsumerProcess(m.t, of)
}

// kafka returns the addresses of a cluster that can be paused, behind a network with
// faults.
func (m *mover) kafka() []string {
	g := faultyKafka(m.t, 1)
	m.network, m.broker = g.network, func() int { return g.cluster.PID(0) }
	m.t.Cleanup(g.network.Heal)
	return g.cluster.Addrs()
}

// Times of a run.
const (
	movesStorm  = 7 * time.Second // between two quiet moments
	movesGap    = 600 * time.Millisecond
	fewestMoves = 5 // quiet moments
)

// run moves and looks, until the time is over or something is wrong.
func (m *mover) run(length time.Duration) {
	m.begin()
	for end := time.Now().Add(length); (time.Now().Before(end) || m.quiet < fewestMoves) && len(m.found) == 0; {
		began := time.Now()
		m.storm()
		if len(m.found) > 0 {
			return
		}
		stormed := time.Since(began)
		m.settle()
		m.t.Logf("quiet moment %d: %s of moves, %s until all was quiet and right", m.quiet, stormed.Round(time.Second), (time.Since(began) - stormed).Round(100*time.Millisecond))
	}
	for _, c := range m.members {
		m.stopMember(c)
	}
	if len(m.found) == 0 {
		m.found = m.check()
	}
}

func (m *mover) begin() {
	for _, c := range m.members {
		c.start()
	}
	m.firstRecords()
	m.publish(200)
	eventually(m.t, "events are applied", time.Minute, func() bool { return scalar[int](m.w, `SELECT count(*) FROM effects`) > 50 })
	m.began = time.Now()
	if m.bag()["snapshot taken"] != nil { // one to restore is there from the beginning
		m.snapshotTaken()
	}
}

// storm makes random moves, and publishes between them.
func (m *mover) storm() {
	for end := time.Now().Add(movesStorm); time.Now().Before(end) && len(m.found) == 0; {
		m.publish(20 + m.rng.IntN(150))
		m.pass(time.Duration(m.rng.Int64N(int64(movesGap))))
		kind, move := m.deal()
		at := time.Since(m.began)
		switch {
		case move():
			m.counts[kind]++
			m.note(at, kind)
		case !m.unfit[kind]: // what it needs may come
			m.unfit[kind], m.deck = true, append(m.deck, kind)
		}
	}
}

// deal draws a move; no kind comes again before all others have.
func (m *mover) deal() (kind string, move func() bool) {
	bag := m.bag()
	for {
		if len(m.deck) == 0 {
			m.deck, m.unfit = slices.Sorted(maps.Keys(bag)), map[string]bool{}
			m.rng.Shuffle(len(m.deck), func(i, j int) { m.deck[i], m.deck[j] = m.deck[j], m.deck[i] })
		}
		kind, m.deck = m.deck[0], m.deck[1:]
		if bag[kind] != nil { // what it needs is there still
			return kind, bag[kind]
		}
	}
}

func (m *mover) note(at time.Duration, what string) {
	m.diary = append(m.diary, fmt.Sprintf("%8s %s", at.Round(10*time.Millisecond), what))
}

// pass lets time go by, in which what is due is done and members that have ended
// are started again.
func (m *mover) pass(d time.Duration) {
	for end := time.Now().Add(d); ; {
		m.doDue(time.Now())
		m.watch()
		if time.Now().After(end) {
			return
		}
		require.NoError(m.t, wait(m.t.Context(), 50*time.Millisecond))
	}
}

func (m *mover) doDue(now time.Time) {
	if m.halted {
		return
	}
	m.due = slices.DeleteFunc(m.due, func(l later) bool {
		if l.at.After(now) {
			return false
		}
		l.do()
		return true
	})
}

// settle ends all faults, waits until all is finished, and looks: what is missing
// may come still for a while, what is too much will not go. The while begins anew
// whenever less is left than ever since the storm.
func (m *mover) settle() {
	m.doDue(time.Now().Add(time.Hour))
	m.strayTaken()
	// What is left may grow, too: after a restore the groups are set back to their marks.
	before, end := int64(math.MaxInt64), time.Now().Add(10*m.limit)
	for deadline := time.Now().Add(m.limit); ; {
		m.watch()
		left := m.lags() + int64(m.undecided())
		if left < before {
			deadline = time.Now().Add(m.limit)
		}
		before = left
		if left == 0 {
			if m.found = m.check(); len(m.found) == 0 {
				m.quiet++
				return
			}
		}
		if now := time.Now(); now.After(deadline) || now.After(end) {
			m.found = append(m.check(), fmt.Sprintf("nothing has moved for %s after the last move: lag %d, %d letters and effects are undecided; at quiet moment %d, seed %d", m.limit, m.lags(), m.undecided(), m.quiet+1, m.seed))
			return
		}
		require.NoError(m.t, wait(m.t.Context(), 200*time.Millisecond))
	}
}

// undecided counts letters that are being redriven, and effects under way whose
// event has no letter.
func (m *mover) undecided() int {
	return scalar[int](m.w, `SELECT (SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'requested') + (SELECT count(*) FROM onceward.fences f
		WHERE expires_at IS NULL AND NOT EXISTS (SELECT FROM onceward.consumer_dead_letters l WHERE l.event_id = f.event_id AND l.consumer_group = f.consumer_group AND l.state = 'open'))`)
}

// watch starts members again that have ended, as an orchestrator does. One of the
// first version that was given an event type it does not know is deployed anew.
func (m *mover) watch() {
	for _, c := range m.members {
		if c.process != nil {
			select {
			case <-c.process.Done():
			default:
				continue
			}
			if c.task.Version == 1 && c.says("no handler for the event type") {
				c.task.Version = 2
			}
			m.counts["member ended"]++
		}
		c.task.Seed = m.rng.Uint64()
		c.start()
	}
}

// report is the evidence: what happened how often.
func (m *mover) report() string {
	var kinds []string
	total := 0
	for _, kind := range slices.Sorted(maps.Keys(m.counts)) {
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, m.counts[kind]))
		total += m.counts[kind]
	}
	return fmt.Sprintf("seed %d, PostgreSQL %d, %s: %d events, %d effects, letters %v; %d quiet moments; %d moves of %d kinds: %s; violations: %d",
		m.seed, m.w.server.Version(), m.fastSays()+m.handledAgain(), len(m.told), scalar[int](m.w, `SELECT count(*) FROM effects`), m.letters(), m.quiet, total, len(m.counts), strings.Join(kinds, ", "), len(m.found))
}
