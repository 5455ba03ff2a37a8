//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/internal/kafkaproxy"
)

// TestAccount: while writers write, everything that can happen happens at random:
// faults of processes and networks, an operator's commands, changes of the
// environment, users' mistakes. At quiet moments each row is in exactly one state,
// and the state is true: what is called published is in a topic; what is waiting,
// parked or before the relay's time is not; nothing is pending; what retention has
// dropped had ended. SEED draws the moves and, in the short form, the mode; FOR
// is their length.
func TestAccount(t *testing.T) {
	seed := seedOf(t)
	modes := []string{"idempotent", "exactly-once"}
	if !full() {
		modes = modes[seed%2:][:1]
	}
	for i, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			a := newAccounting(t, mode, seed+uint64(i), "")
			a.run(lengthOf(t, 75*time.Second, 10*time.Minute))
			t.Log(a.report())
			for _, v := range a.found[:min(40, len(a.found))] {
				t.Log(v.statement, v.detail)
			}
			require.Empty(t, summary(a.found), strings.Join(a.nemesis.diary, "\n"))
			require.GreaterOrEqual(t, len(a.nemesis.counts), map[bool]int{true: 25, false: 8}[full()], "kinds of moves")
		})
	}
}

// accounting is one run of moves.
type accounting struct {
	*arena
	histories
	network *kafkaproxy.Network // of standbys
	mode    string              // of the relays; a move changes it
	random  *rand.Rand
	nemesis *nemesis
	load    *mixedLoad
	bag     []pack
	policy  string           // for gaps: repair, or ask, and then calm decides
	start   string           // of a relay that finds rows: all or now
	kafka   *kgo.Client      // past the faults
	wide    int32            // partitions of the topic that grows
	made    map[string]bool  // kinds whose topics are there, listed by the broker yet or not
	widths  map[string]int32 // their partitions, as they were made

	rows     map[string]accountRow // every committed row that was seen, by key
	dropped  map[string]bool       // of them, those that retention has taken
	loose    map[string]bool       // those that may have been published twice: idempotent mode was among their times
	copies   bool                  // it is among those since the last quiet moment
	all      bool                  // since then, nothing counts as proved any more
	again    map[string]bool       // rows of the time before that
	leaves   int                   // that were filled
	opened   int                   // old days
	madeDays map[string]bool       // their partitions
	fates    map[string]string     // states of rows of old days, before the last round of retention that saw them
	routes   int                   // of routesOf
	read     *archive
	quiet    int
	found    []violation
	said     map[string]string // what a command said of rows that it called published, since the last quiet moment
	refused  string            // the last command that failed, and what it said
}

func newAccounting(t *testing.T, mode string, seed uint64, defect string) *accounting {
	a := &accounting{
		mode: mode, random: rand.New(rand.NewPCG(seed, 0xacc0)),
		rows: map[string]accountRow{}, dropped: map[string]bool{}, loose: map[string]bool{}, again: map[string]bool{}, read: newArchive(), wide: mixedPartitions, made: map[string]bool{}, widths: map[string]int32{}, fates: map[string]string{}, said: map[string]string{}, madeDays: map[string]bool{},
	}
	a.born, a.lost, a.ghosts, a.causes = map[string]int{}, map[string]int{}, map[string]bool{}, map[string]string{}
	a.arena = newArenaOn(t, accountServer(t, &a.histories, versions[seed%2]), 1, 6)
	a.network = kafkaproxy.New()
	t.Cleanup(func() { require.NoError(t, a.network.Close()) })
	a.policy, a.start = []string{"repair", "ask"}[seed/2%2], []string{"all", "now"}[seed/4%2]
	a.kafka, a.copies = a.ground.behind(t), mode == "idempotent"
	for _, kind := range kindsThere {
		if kind != "order" { // is there
			require.True(t, a.makeTopic(kind))
		}
	}
	t.Cleanup(a.removeTopics)
	for i := range 2 {
		r := a.relay(fmt.Sprintf("relay-%d", i), defect, smallQueue, "topics: {partitions: 3, replication_factor: 1}")
		r.env = slices.DeleteFunc(r.env, func(s string) bool { return s == exitOnHalt })
		r.env = append(r.env, "ONCEWARD_KAFKA_MODE="+mode, "ONCEWARD_KAFKA_TRANSACTION_TIMEOUT=3s", "ONCEWARD_GAP="+a.policy, "ONCEWARD_OUTBOX_START="+a.start)
	}
	a.nemesis = newNemesis(a.arena)
	a.nemesis.standsStill = a.standsStill
	a.nemesis.moves = a.moves()
	a.bag = slices.Sorted(maps.Keys(a.nemesis.moves))
	a.bag = slices.Concat(a.bag, storms,
		[]pack{storageRestored, storageRestored, standbyMade, standbyPromoted, standbyPromoted}, // they rarely fit
		[]pack{dayOpened, partitionsMaintained, partitionsMaintained, oldRowsDropped})           // a day goes by the second round
	return a
}

// storms are the faults of processes and networks that a run draws beside its
// moves: what one broker can take.
var storms = []pack{
	relayKilled, relayTerminated, relayStopped, walsenderEnded, postgresFast, postgresCrashed, postgresCut, postgresShaped,
	brokerStopped, kafkaCut, kafkaRefused, kafkaShaped, requestHit, columnChanged,
}

// fewestQuiet is the least number of quiet moments of a run.
const fewestQuiet = 5

// stormLength is the time between two quiet moments.
const stormLength = 9 * time.Second

// run moves and looks, until the time is over or something is wrong.
func (a *accounting) run(length time.Duration) {
	defer a.begin()()
	for end := time.Now().Add(length); time.Now().Before(end) || a.quiet < fewestQuiet; {
		began := time.Now()
		a.storm()
		stormed := time.Since(began)
		a.settle()
		a.t.Logf("quiet moment %d: %s of moves, %s until all was quiet and read", a.quiet, stormed.Round(time.Second), (time.Since(began) - stormed).Round(time.Second))
		if len(a.found) > 0 {
			return
		}
	}
	a.dropStandby()
}

// begin starts the load, and the relays over what it has written by then.
func (a *accounting) begin() (stop func()) {
	a.load = newMixedLoad(a.app, a.name, a.random.Uint64())
	require.NoError(a.t, a.load.prepare(a.t.Context()))
	require.True(a.t, a.openDay(step{}))
	stop = a.load.start(a.t)
	eventually(a.t, "events are older than the relay", 30*time.Second, func() bool { return scalar[int](a.environment, `SELECT count(*) FROM onceward.outbox`) > 20 })
	a.arena.streams(a.relays[0])
	a.relays[1].start()
	a.nemesis.began = time.Now()
	return stop
}

// settle ends all faults, waits for a quiet moment, and looks.
func (a *accounting) settle() {
	a.load.pause()
	defer a.load.resume()
	a.nemesis.heal()
	if a.quiet%2 == 1 { // else what has no topic goes on waiting
		for _, kind := range kindsLate {
			a.makeTopic(kind)
		}
	}
	a.calm()
	a.look()
	a.removeTopic()
	if a.standby == nil || a.follows() {
		a.traces = nil
	}
}

// storm makes random moves.
func (a *accounting) storm() {
	n := a.nemesis
	for end := time.Now().Add(stormLength); time.Now().Before(end); {
		n.until(time.Now().Add(time.Duration(a.random.Int64N(int64(gapMax)))))
		n.watchRelays()
		s := step{
			at: time.Since(n.began), pack: a.bag[a.random.IntN(len(a.bag))], lasting: 50*time.Millisecond + time.Duration(a.random.Int64N(int64(2*time.Second))),
			target: a.random.Uint64(), key: keys[a.random.IntN(len(keys))], times: 1 + a.random.IntN(2), up: a.random.IntN(2) == 0, shape: a.random.IntN(4),
		}
		if s.pack == relayStopped {
			s.lasting += 2 * time.Second // past wal_sender_timeout, sometimes
		}
		if n.strike(s) {
			n.note(s)
		}
	}
}

// quietLimit bounds the time from the end of all faults until nothing is pending; each
// row adds quietShare, because all of them may be in a gap that is repaired.
const (
	quietLimit = 90 * time.Second
	quietShare = 5 * time.Millisecond
)

// calm waits until the relay has dealt with everything that is committed: nothing
// is pending any more, and the letters' orders have acted.
func (a *accounting) calm() {
	a.t.Helper()
	limit := quietLimit + time.Duration(len(a.rows))*quietShare
	for deadline := time.Now().Add(limit); ; {
		a.decideGaps()
		a.skipHalts()
		a.adoptFilled()
		pending, ok := a.keysIn("pending")
		retrying := scalar[int](a.environment, `SELECT count(*) FROM onceward.dead_letters WHERE state = 'retrying' AND slot = $1`, a.slot())
		released, left := a.released(), a.leftWaiting()
		doubted := scalar[int](a.environment, `SELECT count(*) FROM onceward.gaps WHERE state IN ('open', 'repairing') AND slot = $1`, a.slot())
		if ok && len(pending)+retrying+doubted+left == 0 && released && a.streams() {
			return
		}
		if time.Now().After(deadline) {
			a.sayHalts()
			a.t.Fatalf("%s after the last fault %d events are pending, the first %v, %d letters are being retried, all that can be released is: %t, %d wait or are held that should not\n%s",
				limit, len(pending), pending[:min(1, len(pending))], retrying, released, left, strings.Join(a.nemesis.diary, "\n"))
		}
		require.NoError(a.t, wait(a.t.Context(), 100*time.Millisecond))
	}
}

// leftWaiting counts what waits though it has a letter, or was to be skipped, and
// lanes that are held for nothing.
func (a *accounting) leftWaiting() int {
	return scalar[int](a.environment, `SELECT (SELECT count(*) FROM onceward.lanes l WHERE l.slot = $1 AND NOT EXISTS (SELECT FROM onceward.waiting w WHERE w.lane = l.id))
		+ (SELECT count(*) FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane JOIN onceward.relay_state r ON r.slot = l.slot
			WHERE l.slot = $1 AND (w.id = ANY(r.skip) OR EXISTS (SELECT FROM onceward.dead_letters d WHERE d.slot = l.slot AND d.letter_id = w.id)))`, a.slot())
}

// released reports whether nothing waits but for topics that are missing.
func (a *accounting) released() bool {
	topics, err := a.admin.ListTopics()
	if err != nil {
		return false
	}
	missing := []string{} // no NULL, of which nothing is true
	for _, kind := range kindsLate {
		if kind == kindLed && a.routes == leads {
			continue
		}
		if _, listed := topics[a.topicOf(kind)]; !listed && !a.made[kind] {
			missing = append(missing, kind, a.topicOf(kind))
		}
	}
	return scalar[int](a.environment, `SELECT (SELECT count(*) FROM onceward.releases WHERE slot = $1)
		+ (SELECT count(*) FROM onceward.lanes WHERE slot = $1 AND NOT COALESCE(NULLIF(topic, ''), aggregate_type) = ANY($2))`, a.slot(), missing) == 0
}

// report is the evidence: what happened how often.
func (a *accounting) report() string {
	states := map[string]int{}
	for _, s := range a.read.lastStates {
		states[s]++
	}
	gone := 0
	for _, dropped := range a.dropped {
		if dropped {
			gone++
		}
	}
	return fmt.Sprintf("ends in mode %s, start: %s, gaps: %s, PostgreSQL %d: %d rows (%d dropped by retention), states at the end %v; %d records read; %d quiet moments; %s; %d moves of %d kinds: %s; %d violations",
		a.mode, a.start, a.policy, a.server.Version(), len(a.rows), gone, states, a.read.total, a.quiet, a.tally(), a.nemesis.total(), len(a.nemesis.counts), a.nemesis, len(a.found))
}
