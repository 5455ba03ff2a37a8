//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// siege is one run of writers and relays under the faults of a plan.
type siege struct {
	version string
	brokers int
	relays  int // of one name: one holds the slot, the others stand by
	seed    uint64
	steps   []step
	config  []string // of the relays, to follow kafka.client_id
	defect  string
	// exactlyOnce demands statement 3 in the place of 4.
	exactlyOnce bool
	patience    time.Duration // of the nemesis, when its faults must find their moment

	a         *arena
	load      *writers
	nemesis   *nemesis
	watch     *positions
	kafka     *checkpoints // nil in idempotent mode
	truth     map[string]truth
	committed []*sarama.ConsumerMessage // what read_committed shows
	all       []*sarama.ConsumerMessage // what is there
	took      time.Duration
	recovery  time.Duration // from the end of the last fault until all is confirmed
	peak      float64       // MiB, the most that a relay that lives had resident
	starts    []pglogrepl.LSN
	producers int
	found     []violation
	copies    int
}

// smallQueue bounds what a relay under siege has in flight.
const smallQueue = "queue: {bytes: 512KiB}"

// seedOf returns SEED of the environment, or a random one, and logs it.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64N(1_000_000)
	if text := os.Getenv("SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "SEED")
	}
	t.Logf("SEED=%d", seed)
	return seed
}

// lengthOf returns FOR of the environment, or the default of the short or the
// long form.
func lengthOf(t *testing.T, short, long time.Duration) time.Duration {
	t.Helper()
	if text := os.Getenv("FOR"); text != "" {
		length, err := time.ParseDuration(text)
		require.NoError(t, err, "FOR")
		return length
	}
	if full() {
		return long
	}
	return short
}

// run writes under faults, heals, waits until all is confirmed, and verifies.
func (s *siege) run(t *testing.T) {
	began := time.Now()
	s.a = newArena(t, s.version, s.brokers)
	for i := range s.relays {
		s.a.relay(fmt.Sprintf("relay-%d", i), s.defect, append(slices.Clone(s.config), smallQueue)...)
	}
	s.a.streams(s.a.relays[0])
	for _, r := range s.a.relays[1:] {
		r.start()
	}
	s.nemesis = newNemesis(s.a)
	s.nemesis.patience = max(s.nemesis.patience, s.patience)
	s.watch = watchPositions(t, s.a.environment)
	if s.exactlyOnce {
		s.kafka = s.a.watchCheckpoints()
	}
	s.write(t, func() { s.nemesis.run(s.steps) })

	healed := time.Now()
	s.a.confirmed(90 * time.Second)
	s.recovery = time.Since(healed)
	for _, r := range s.a.relays {
		s.peak = max(s.peak, memory(t, r, "VmHWM"))
		r.stop()
	}
	s.check(t)
	s.took = time.Since(began)
}

// write has the writers at work until the faults are over.
func (s *siege) write(t *testing.T, faults func()) {
	s.load = &writers{
		pool: s.a.app, seed: s.seed, count: 5, aggregates: 200, target: math.MaxInt64, namespace: s.a.name,
		twoPhase: true, restarts: true, wild: true,
	}
	ctx, cancel := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	beside.Go(func() { unrelated(ctx, s.a.app) })
	written := make(chan error, 1)
	go func() { written <- s.load.run(ctx) }()
	eventually(t, "events are committed", 30*time.Second, func() bool { return s.load.committed.Load() > 100 })
	faults()
	s.load.enough.Store(true)
	require.NoError(t, <-written)
}

// check reads everything and compares it.
func (s *siege) check(t *testing.T) {
	a := s.a
	var err error
	s.truth, err = readTruth(t.Context(), a.pool)
	require.NoError(t, err)
	s.committed, s.all = a.read(kgo.ReadCommitted()), a.read(kgo.ReadUncommitted())
	s.found, s.copies = verify(s.committed, s.truth, s.load.ghosts, a.partitions)
	s.found = append(s.found, s.nemesis.found...)
	s.found = append(s.found, s.sampled()...)
	s.found = append(s.found, a.secrets()...)
	if s.exactlyOnce {
		s.onceEach()
	}
	// What was aborted is of committed rows, too.
	for _, r := range s.all {
		if _, ok := s.truth[headerOf(r, outbox.HeaderKey)]; !ok {
			s.found = append(s.found, violation{noInvention, fmt.Sprintf("read_uncommitted: %s at %d/%d", headerOf(r, outbox.HeaderKey), r.Partition, r.Offset)})
		}
	}
	if s.peak > memoryBar {
		s.found = append(s.found, violation{"memory", fmt.Sprintf("%.0f MiB were resident", s.peak)})
	}
	s.starts = a.sessionStarts()
	if !s.exactlyOnce {
		s.fewCopies(t)
	}
	for i := range a.relays {
		s.producers += a.producers(fmt.Sprintf("relay-%d", i))
	}
	// caughtUp adds one more.
	require.Len(t, s.truth, int(s.load.committed.Load())+1, "what was acknowledged to the writers, or settled, is in the table")
}

// sampled is what was found while it went on: statements 8 and 9. In exactly-once
// mode the durable checkpoint is in Kafka, and relay_state may be behind it.
func (s *siege) sampled() []violation {
	found := s.watch.stop().found
	if s.exactlyOnce {
		found = slices.DeleteFunc(found, func(v violation) bool { return v.statement == confirmAfterDurable })
		found = append(found, s.kafka.stop().found...)
	}
	return found
}

// once is statement 3.
const once = "exactly once"

// onceEach adds a violation for each copy that read_committed shows.
func (s *siege) onceEach() {
	seen := map[string]*sarama.ConsumerMessage{}
	for _, r := range s.committed {
		key := headerOf(r, outbox.HeaderKey)
		if first := seen[key]; first != nil {
			s.found = append(s.found, violation{once, fmt.Sprintf("%s (%s, position %s) at %d/%d, and at offset %d again with position %s",
				key, r.Key, headerOf(first, record.HeaderPosition), r.Partition, first.Offset, r.Offset, headerOf(r, record.HeaderPosition))})
			continue
		}
		seen[key] = r
	}
}

// boundedCopies is statement 4.
const boundedCopies = "copies bounded"

// fewCopies adds a violation for each row that is there more often than there
// were sessions that began before it, and for more copies in all than every
// session but the first could have had in flight or unconfirmed.
func (s *siege) fewCopies(t *testing.T) {
	times, position := map[string]int{}, map[string]pglogrepl.LSN{}
	for _, r := range s.committed {
		key := headerOf(r, outbox.HeaderKey)
		times[key]++
		var err error
		position[key], err = pglogrepl.ParseLSN(headerOf(r, record.HeaderPosition))
		require.NoError(t, err)
	}
	for key, n := range times {
		could := 0
		for _, start := range s.starts {
			if start <= position[key] {
				could++
			}
		}
		if n > could {
			s.found = append(s.found, violation{boundedCopies, fmt.Sprintf("%s (position %s) is there %d times; only %d of %d sessions began before it",
				key, position[key], n, could, len(s.starts))})
		}
	}
	if bound := (len(s.starts) - 1) * s.window(); s.copies > bound {
		s.found = append(s.found, violation{boundedCopies, fmt.Sprintf("%d extra copies; %d sessions after the first, with at most %d events each that were not confirmed",
			s.copies, len(s.starts)-1, s.window())})
	}
}

// window is how many events a session may leave unconfirmed when it ends: what
// fits into the queue and the producer, and what is committed in the five seconds
// for which a fault of the plan, or the tick after it, can keep a checkpoint from
// being written while events still pass.
func (s *siege) window() int {
	const inFlight = 2 * (512 << 10) / 300 // both bounds, and the smallest event
	var times []time.Time
	for _, row := range s.truth {
		times = append(times, row.createdAt)
	}
	slices.SortFunc(times, time.Time.Compare)
	most := 0
	for i, j := 0, 0; j < len(times); j++ {
		for times[j].Sub(times[i]) > 5*time.Second {
			i++
		}
		most = max(most, j-i+1)
	}
	return inFlight + most
}

var slotTaken = regexp.MustCompile(`slot taken.* start=([0-9A-F]+/[0-9A-F]+)`)

// sessionStarts returns where each session began to publish, from the logs.
func (a *arena) sessionStarts() (starts []pglogrepl.LSN) {
	for _, path := range a.logs {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // never started
		}
		for _, m := range slotTaken.FindAllSubmatch(text, -1) {
			start, err := pglogrepl.ParseLSN(string(m[1]))
			require.NoError(a.t, err)
			starts = append(starts, start)
		}
	}
	return starts
}

// report is one line for the evidence.
func (s *siege) report() string {
	transactions := scalar[int](s.a.environment, `SELECT count(DISTINCT tx_id) FROM onceward.outbox`)
	samples := s.watch.samples
	if s.kafka != nil {
		samples += s.kafka.samples
	}
	return fmt.Sprintf("seed %d, PostgreSQL %s, %d broker(s), %s: %d events of %d transactions committed, %d rolled back (%d outcomes lost); %d faults (%s); "+
		"%d sessions, %d producers; %d records, %d of them committed, %d extra copies; confirmed %s after the last fault; %.0f MiB at most; %d samples of slot and checkpoint; %d violations",
		s.seed, s.version, s.brokers, s.took.Round(time.Second), len(s.truth), transactions, len(s.load.ghosts), s.load.tally.lost.Load(),
		s.nemesis.total(), s.nemesis, len(s.starts), s.producers, len(s.all), len(s.committed), s.copies, s.recovery.Round(100*time.Millisecond),
		s.peak, samples, len(s.found))
}

// verdict fails the test with what was found, and the diary of the faults.
func (s *siege) verdict(t *testing.T) {
	t.Helper()
	t.Log(s.report())
	if len(s.found) > 0 {
		t.Log("faults:\n" + strings.Join(s.nemesis.diary, "\n"))
	}
	require.Empty(t, summary(s.found))
}
