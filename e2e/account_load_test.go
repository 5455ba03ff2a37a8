//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/outbox"
)

// The aggregate types of the mixed load, which are the last parts of topics.
// Those of kindsLate have no topic until a move makes it.
var (
	kindsThere = []string{"order", "narrow", "wide"}
	kindsLate  = []string{"late0", "late1", "late2", "late3"}
)

// mixedLoad writes small transactions over several aggregate types, rolls some
// back, and rides through restarts of the server. What it committed is what the
// table shows at a quiet moment: nobody takes rows away but retention.
type mixedLoad struct {
	pool      *pgxpool.Pool
	namespace string
	seed      uint64
	gate      sync.RWMutex // held by who wants it quiet
	old       openDays
}

func newMixedLoad(pool *pgxpool.Pool, namespace string, seed uint64) *mixedLoad {
	return &mixedLoad{pool: pool, namespace: namespace, seed: seed}
}

const mixedWriters, mixedAggregates = 3, 15

func (l *mixedLoad) prepare(ctx context.Context) error {
	_, err := l.pool.Exec(ctx, `CREATE TABLE turns (kind text, aggregate text, PRIMARY KEY (kind, aggregate))`)
	return err
}

// start writes until the returned function is called.
func (l *mixedLoad) start(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i := range mixedWriters {
		running.Go(func() {
			random := rand.New(rand.NewPCG(l.seed, uint64(i)))
			for ctx.Err() == nil {
				l.gate.RLock()
				_ = l.transaction(ctx, random) // a server that restarts loses it, and that is all
				l.gate.RUnlock()
				_ = wait(ctx, time.Duration(random.Int64N(int64(60*time.Millisecond))))
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// pause returns when no transaction of the load is open, and lets none begin.
func (l *mixedLoad) pause()  { l.gate.Lock() }
func (l *mixedLoad) resume() { l.gate.Unlock() }

type pick struct{ kind, aggregate string }

// transaction writes up to eight rows. The aggregate's turn is a lock, so that
// seq is the order of commits within it.
func (l *mixedLoad) transaction(ctx context.Context, random *rand.Rand) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	picks := make([]pick, 1+random.IntN(8))
	for i := range picks {
		picks[i] = pick{kind: kindsThere[random.IntN(len(kindsThere))], aggregate: fmt.Sprintf("a-%d", random.IntN(mixedAggregates))}
		if random.IntN(4) == 0 {
			picks[i].kind = kindsLate[random.IntN(len(kindsLate))]
		}
	}
	slices.SortFunc(picks, func(a, b pick) int {
		return slices.Compare([]string{a.kind, a.aggregate}, []string{b.kind, b.aggregate})
	})
	tx, err := l.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	for _, p := range picks {
		if err := l.row(ctx, tx, p, random); err != nil {
			return err
		}
	}
	if random.IntN(6) == 0 {
		return tx.Rollback(ctx)
	}
	return tx.Commit(ctx)
}

func (l *mixedLoad) row(ctx context.Context, tx pgx.Tx, p pick, random *rand.Rand) error {
	if _, err := tx.Exec(ctx, `INSERT INTO turns VALUES ($1, $2) ON CONFLICT (kind, aggregate) DO UPDATE SET aggregate = excluded.aggregate`, p.kind, p.aggregate); err != nil {
		return err
	}
	key, day, err := l.key(p.kind, random)
	if err != nil {
		return err
	}
	body := fmt.Appendf(nil, `{"n": %d, "pad": %q}`, random.Int(), wildPad(random.IntN(40)))
	ev := outbox.Event{Key: key, AggregateType: p.kind, AggregateID: p.aggregate, Type: "Moved", Payload: body}
	if random.IntN(10) > 0 {
		if _, err = outbox.Enqueue(ctx, tx, ev); errors.Is(err, outbox.ErrOutOfWindow) {
			l.old.closed(day)
		}
		return err
	}
	// A savepoint that is rolled back leaves no event behind.
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := outbox.Enqueue(ctx, inner, ev); err != nil {
		return err
	}
	return inner.Rollback(ctx)
}

// key is one of now, or of an old day, in which little waits for a topic: that keeps the
// day from being dropped.
func (l *mixedLoad) key(kind string, random *rand.Rand) (key outbox.Key, day time.Time, err error) {
	now := random.IntN(4) > 0 || slices.Contains(kindsLate, kind) && random.IntN(100) > 0
	if day = l.old.some(random); day.IsZero() || now {
		key, err = outbox.NewKey(l.namespace)
		return key, day, err
	}
	key, err = outbox.ParseKey(l.namespace + ":" + idOf(day, random).String())
	return key, day, err
}

// mistake commits a row that is somebody's mistake, in an aggregate of the load.
func (a *accounting) mistake(kind string, payload []byte, version byte) bool {
	id := idWith(outbox.FirstID(time.Now()), version, a.random)
	ctx, cancel := context.WithTimeout(a.t.Context(), 10*time.Second)
	defer cancel()
	_, err := a.app.Exec(ctx, `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $2, $3, $4, 'Moved', $5)`,
		id, a.name, kind, fmt.Sprintf("a-%d", a.random.IntN(mixedAggregates)), payload)
	return err == nil
}
