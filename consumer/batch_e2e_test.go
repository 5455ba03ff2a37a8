//go:build e2e

package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/partition"
)

// line is a group that takes events in batches, and what its handler is to do
// with which of them.
type line struct {
	*env
	router  *consumer.Router
	timeout time.Duration // of a handler; 0: the default
	mu      sync.Mutex
	wrong   map[string]func(ctx context.Context, tx pgx.Tx) error // by key
	calls   map[string]int
	sets    [][]consumer.Event // of the set handler
}

func newLine(t *testing.T) *line {
	t.Helper()
	l := &line{env: newEnv(t, nil), wrong: make(map[string]func(context.Context, pgx.Tx) error), calls: make(map[string]int)}
	l.router = l.member(3)
	return l
}

// member is one more member of the same group.
func (l *line) member(maxAttempts int) *consumer.Router {
	l.t.Helper()
	p, err := consumer.New(l.t.Context(), consumer.Config{Group: "stock", DB: l.db, LockTimeout: 2 * time.Second,
		HandlerTimeout: l.timeout, Retry: consumer.Retry{MaxAttempts: maxAttempts}})
	require.NoError(l.t, err)
	r := consumer.NewRouter(p)
	r.Batch("Moved", consumer.BatchOptions{}, l.handle)
	r.BatchSet("Counted", consumer.BatchOptions{}, func(ctx context.Context, tx pgx.Tx, evs []consumer.Event) error {
		l.mu.Lock()
		l.sets = append(l.sets, evs)
		l.mu.Unlock()
		for _, ev := range evs {
			if err := l.handle(ctx, tx, ev); err != nil {
				return err
			}
		}
		return nil
	})
	return r
}

// narrow makes the pool one of a single connection.
func (l *line) narrow() {
	l.t.Helper()
	cfg := l.db.Config().Copy()
	cfg.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(l.t.Context(), cfg)
	require.NoError(l.t, err)
	l.t.Cleanup(pool.Close)
	l.db = pool
}

func (l *line) handle(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
	l.mu.Lock()
	l.calls[ev.Key.String()]++
	wrong := l.wrong[ev.Key.String()]
	l.mu.Unlock()
	if err := effect("stock")(ctx, tx, ev); err != nil {
		return err
	}
	if wrong != nil {
		return wrong(ctx, tx)
	}
	return nil
}

// events makes n events, each of its own aggregate.
func (l *line) events(n int, eventType string) []consumer.Event {
	evs := make([]consumer.Event, n)
	for i := range evs {
		evs[i] = newEvent(l.t)
		evs[i].Type, evs[i].AggregateID = eventType, fmt.Sprintf("sku-%d", i)
		evs[i].Source = consumer.Source{Topic: "stock", Offset: int64(i)}
	}
	return evs
}

// outcomes delivers a batch and returns what became of each event, in words.
func (l *line) outcomes(evs []consumer.Event) []string {
	l.t.Helper()
	var words []string
	for _, d := range l.router.HandleBatch(l.t.Context(), evs) {
		switch {
		case errors.Is(d.Err, consumer.ErrHeldBack):
			words = append(words, "held back")
		case d.Err != nil && consumer.IsInfrastructure(d.Err):
			words = append(words, "infrastructure")
		case d.Err != nil:
			words = append(words, "failed")
		default:
			words = append(words, d.Outcome.String())
		}
	}
	return words
}

func repeat(word string, n int) []string { return slices.Repeat([]string{word}, n) }

// consistent checks that claims are effects plus dead events, one each.
func (l *line) consistent(effects, dead int) {
	l.t.Helper()
	require.NoError(l.t, l.expect(effects, effects+dead))
	require.Equal(l.t, effects, count(l.t, l.db, "SELECT count(DISTINCT event) FROM effects"))
	require.Equal(l.t, dead, count(l.t, l.db, "SELECT count(*) FROM onceward.processed_events WHERE outcome = 'd'"))
}

var errTransient = errors.New("try again")

func fails(err error) func(context.Context, pgx.Tx) error {
	return func(context.Context, pgx.Tx) error { return err }
}

func TestBatchSharesATransaction(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	evs := append(l.events(30, "Moved"), l.events(30, "Counted")...)
	require.Equal(t, repeat("processed", 60), l.outcomes(evs))
	require.Equal(t, 1, count(t, l.db, "SELECT count(DISTINCT xmin::text) FROM effects"))
	require.Len(t, l.sets, 1, "the set handler takes all that follow one another at once")
	require.Equal(t, repeat("duplicate", 60), l.outcomes(evs))
	l.consistent(60, 0)
}

// wrongs are what a handler must not do to its neighbours.
var wrongs = map[string]func(context.Context, pgx.Tx) error{
	"error":  fails(errTransient),
	"panic":  func(context.Context, pgx.Tx) error { panic("boom") },
	"Goexit": func(context.Context, pgx.Tx) error { runtime.Goexit(); return nil },
	"late": func(ctx context.Context, tx pgx.Tx) error { // it is left behind, and would have an effect then
		<-ctx.Done()
		<-time.After(6 * time.Second)
		_, err := tx.Exec(context.WithoutCancel(ctx), "INSERT INTO effects SELECT * FROM effects")
		return err
	},
	"swallowed": func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, "SELECT 1/0"); return nil },
	"rollback":  func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "ROLLBACK"); return err },
	"commit":    func(ctx context.Context, tx pgx.Tx) error { _ = tx.Commit(ctx); return nil },
	"a short context": func(ctx context.Context, tx pgx.Tx) error { // pgx closes the connection
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		_, err := tx.Exec(short, "SELECT pg_sleep(10)")
		return err
	},
	"rows left open": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Query(ctx, "SELECT generate_series(1, 3)")
		return err
	},
	"rows left open, and an error": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Query(ctx, "SELECT generate_series(1, 3)")
		return errors.Join(err, errTransient)
	},
	"own deadline": func(ctx context.Context, tx pgx.Tx) error {
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SET LOCAL statement_timeout = 5; SELECT pg_sleep(10)")
			return err
		})
	},
}

// TestBatchIsolates: whatever one handler does, its neighbours have their effect
// once, and it has none.
func TestBatchIsolates(t *testing.T) {
	for name, wrong := range wrongs {
		for _, eventType := range []string{"Moved", "Counted"} {
			if name == "rollback" && eventType == "Counted" {
				continue // what a set handler does after it has ended its transaction has none
			}
			t.Run(name+" "+eventType, func(t *testing.T) {
				t.Parallel()
				l := newLine(t)
				if name == "late" {
					l.timeout = 3 * time.Second
					l.router = l.member(3)
				}
				evs := l.events(120, eventType)
				bad := evs[70].Key.String()
				evs[90].AggregateID = evs[70].AggregateID
				l.wrong[bad] = wrong
				want := repeat("processed", 120)
				want[70], want[90] = "failed", "held back"
				require.Equal(t, want, l.outcomes(evs))
				if name == "late" {
					require.Positive(t, l.router.Processor().StuckHandlers())
					require.Eventually(t, func() bool { return l.router.Processor().StuckHandlers() == 0 }, time.Minute, time.Millisecond)
				}
				l.consistent(118, 0)
				require.Equal(t, 1, count(t, l.db, "SELECT count(*) FROM onceward.attempts WHERE attempts = 1"))
				delete(l.wrong, bad)
				want = repeat("duplicate", 120)
				want[70], want[90] = "processed", "processed"
				require.Equal(t, want, l.outcomes(evs))
				l.consistent(120, 0)
			})
		}
	}
}

// TestBatchGivesUp: whatever one handler does each time, it is given up in the end.
func TestBatchGivesUp(t *testing.T) {
	for name, wrong := range wrongs {
		if name == "late" { // see TestHandlerTimeout
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLine(t)
			bad := l.events(3, "Moved")[2]
			l.wrong[bad.Key.String()] = wrong
			for _, last := range []string{"failed", "failed", "dead-lettered", "dead-lettered"} {
				evs := l.events(5, "Moved")
				evs[2] = bad
				require.Equal(t, []string{"processed", "processed", last, "processed", "processed"}, l.outcomes(evs))
			}
			l.consistent(16, 1)
			require.Equal(t, 1, l.letters())
		})
	}
}

// TestBatchDeadLetters: an event that can never succeed, and one that has used up
// its attempts on several members, become dead letters once and stay dead.
func TestBatchDeadLetters(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	evs := l.events(80, "Moved")
	for i := 5; i < 75; i++ { // more than the server keeps subtransactions
		l.wrong[evs[i].Key.String()] = fails(consumer.DeadLetter(errTransient))
	}
	l.wrong[evs[77].Key.String()] = fails(errTransient)
	want := slices.Concat(repeat("processed", 5), repeat("dead-lettered", 70), repeat("processed", 5))
	want[77] = "failed"
	require.Equal(t, want, l.outcomes(evs))
	l.consistent(9, 70)
	l.router = l.member(3)
	_, err := l.router.Handle(t.Context(), evs[77]) // alone: the count is the same
	require.ErrorIs(t, err, errTransient)
	l.router = l.member(3)
	require.Equal(t, "dead-lettered", l.outcomes(evs)[77])
	l.consistent(9, 71)
	clear(l.wrong)
	want = slices.Concat(repeat("duplicate", 5), repeat("dead-lettered", 70), repeat("duplicate", 5))
	want[77] = "dead-lettered"
	require.Equal(t, want, l.outcomes(evs))
	require.Equal(t, 71, l.letters())
	require.Equal(t, 1, count(t, l.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'handler' AND attempts = 3 AND error LIKE '%try again%'"))
}

// TestBatchBehindOneThatIsRefused: so is an aggregate whose event has no handler, or is none.
func TestBatchBehindOneThatIsRefused(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	for name, spoil := range map[string]func(*consumer.Event){
		"no handler": func(ev *consumer.Event) { ev.Type = "Forgotten" },
		"invalid":    func(ev *consumer.Event) { ev.Type = "" },
	} {
		evs := l.events(4, "Moved")
		evs[2].AggregateID = evs[1].AggregateID
		spoil(&evs[1])
		require.Equal(t, []string{"processed", "failed", "held back", "processed"}, l.outcomes(evs), name)
	}
}

// TestStreamTimeOfBatches: events from no topic move it, whichever way they come.
func TestStreamTimeOfBatches(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	evs := l.events(1, "Moved")
	evs[0].Source = consumer.Source{}
	require.Equal(t, []string{"processed"}, l.outcomes(evs))
	require.Equal(t, 1, count(t, l.db, "SELECT count(*) FROM onceward.progress WHERE topic = '' AND finished_time > now() - interval '1 minute'"))
}

func TestBatchWithAKeyTwice(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	evs := l.events(4, "Moved")
	evs[2] = evs[0]
	evs[3].Key, evs[3].Payload = evs[1].Key, []byte("other")
	require.Equal(t, []string{"processed", "processed", "duplicate", "dead-lettered"}, l.outcomes(evs))
	l.consistent(2, 0)
	require.Equal(t, 1, l.letters())
	l.wrong[evs[0].Key.String()] = fails(errTransient) // not asked any more
	require.Equal(t, []string{"duplicate", "duplicate", "duplicate", "dead-lettered"}, l.outcomes(evs))
	require.Equal(t, 1, l.letters())
	evs[3].Source = consumer.Source{}
	require.Equal(t, []string{"duplicate", "duplicate", "duplicate", "failed"}, l.outcomes(evs), "a mismatch without a place is the caller's")
}

func TestBatchWithAFailingKeyTwice(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	evs := l.events(3, "Moved")
	evs[2] = evs[0]
	l.wrong[evs[0].Key.String()] = fails(errTransient)
	require.Equal(t, []string{"failed", "processed", "held back"}, l.outcomes(evs), "a copy is not done before the first is")
	l.consistent(1, 0)
}

func TestBatchWithAKeyOfNoPartition(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	evs := l.events(5, "Moved")
	at := time.Now().AddDate(0, 0, -3)
	exec(t, l.db, "DROP TABLE onceward."+partition.OfDay("processed_events", at).Name)
	evs[2].Key = keyAt(t, at)
	deliveries := l.router.HandleBatch(t.Context(), evs)
	require.ErrorIs(t, deliveries[2].Err, consumer.ErrNoPartition)
	for _, i := range []int{0, 1, 3, 4} {
		require.True(t, deliveries[i].Finished())
	}
	l.consistent(4, 0)
}

func TestBatchLosesItsConnection(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	evs := l.events(10, "Moved")
	l.wrong[evs[6].Key.String()] = func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
		return err
	}
	require.Equal(t, repeat("infrastructure", 10), l.outcomes(evs))
	l.consistent(0, 0)
	require.Zero(t, count(t, l.db, "SELECT count(*) FROM onceward.attempts"), "no attempt is counted")
	clear(l.wrong)
	require.Equal(t, repeat("processed", 10), l.outcomes(evs))
	l.consistent(10, 0)
}

// TestReversedBatchesDoNotDeadlock: two members claim the same events in opposite
// orders, again and again.
func TestReversedBatchesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	before := count(t, l.db, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
	for range 20 {
		evs := l.events(50, "Moved")
		reversed := slices.Clone(evs)
		slices.Reverse(reversed)
		var group sync.WaitGroup
		for _, order := range [][]consumer.Event{evs, reversed} {
			group.Go(func() {
				for _, d := range l.router.HandleBatch(t.Context(), order) {
					if !d.Finished() {
						t.Error(d)
					}
				}
			})
		}
		group.Wait()
	}
	l.consistent(1000, 0)
	require.Equal(t, before, count(t, l.db, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))
}

// TestBatchesOfOverlappingMembers: four members read one log, with rewinds, in
// batches of random size, while handlers fail and connections are killed. Every
// event has one effect, or is dead once.
func TestBatchesOfOverlappingMembers(t *testing.T) {
	t.Parallel()
	const events = 3000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	l := newLine(t)
	evs := l.events(events, "Moved")
	dead := 0
	for i := range evs {
		evs[i].AggregateID = fmt.Sprintf("sku-%d", i%97)
		switch {
		case i%101 == 0:
			dead++
			l.wrong[evs[i].Key.String()] = fails(consumer.DeadLetter(errTransient))
		case i%37 == 0:
			l.wrong[evs[i].Key.String()] = l.sometimes(seed + uint64(i))
		}
	}
	var group sync.WaitGroup
	for m := range uint64(4) {
		group.Go(func() {
			reader := &reader{line: l, router: l.member(-1), rng: rand.New(rand.NewPCG(seed, m))}
			reader.run(t.Context(), evs)
		})
	}
	group.Wait()
	l.consistent(events-dead, dead)
	require.Equal(t, dead, l.letters())
}

// sometimes fails, or kills its own connection, at random.
func (l *line) sometimes(seed uint64) func(context.Context, pgx.Tx) error {
	rng := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex
	return func(ctx context.Context, tx pgx.Tx) error {
		mu.Lock()
		draw := rng.IntN(4)
		mu.Unlock()
		switch draw {
		case 0:
			return errTransient
		case 1:
			_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
			return err
		}
		return nil
	}
}

// reader is a member that moves over contiguous finished events only.
type reader struct {
	*line
	router *consumer.Router
	rng    *rand.Rand
}

func (r *reader) run(ctx context.Context, evs []consumer.Event) {
	for at := 0; at < len(evs); {
		deliveries := r.router.HandleBatch(ctx, evs[at:min(at+1+r.rng.IntN(200), len(evs))])
		for _, d := range deliveries {
			if !d.Finished() {
				break
			}
			at++
		}
		if r.rng.IntN(20) == 0 {
			at = max(0, at-r.rng.IntN(300))
		}
	}
}
