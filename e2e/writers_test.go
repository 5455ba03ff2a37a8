//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/outbox"
)

// payload is what a written event holds. N counts the events of the aggregate,
// under a lock of the aggregate's row, so the order of commits is known without
// trusting any position of the log.
type payload struct {
	Writer    int    `json:"writer"`
	Aggregate string `json:"aggregate"`
	N         int    `json:"n"`
	Pad       string `json:"pad"`
}

// writers is the load of the main job: interleaved transactions of 1 to 50 rows,
// a fifth of them rolled back, savepoints rolled back inside others.
type writers struct {
	pool       *pgxpool.Pool
	seed       uint64
	count      int // goroutines
	aggregates int
	target     int64       // committed events
	enough     atomic.Bool // ends them before the target
	namespace  string

	committed atomic.Int64
	mu        sync.Mutex
	ghosts    map[string]string // keys that were rolled back, and how

	// outside is an injected defect: Enqueue in a transaction of its own.
	outside bool
	// twoPhase makes an eighth of the transactions prepared ones; restarts lets
	// the writers ride through restarts of the server. See settle_test.go.
	twoPhase, restarts bool
	// wild makes the load of the tests under faults; see faults_load_test.go.
	wild  bool
	tally tally
}

func (w *writers) run(ctx context.Context) error {
	w.ghosts = make(map[string]string)
	if _, err := w.pool.Exec(ctx, `CREATE TABLE counters (aggregate text PRIMARY KEY, n int NOT NULL);
		CREATE TABLE business (key text PRIMARY KEY)`); err != nil {
		return err
	}
	for a := range w.aggregates {
		if _, err := w.pool.Exec(ctx, `INSERT INTO counters VALUES ($1, 0)`, fmt.Sprintf("a-%d", a)); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for i := range w.count {
		group.Go(func() error {
			random := rand.New(rand.NewPCG(w.seed, uint64(i)))
			for w.committed.Load() < w.target && !w.enough.Load() {
				var a attempt
				err := w.transaction(ctx, random, i, &a)
				if err != nil && w.restarts {
					err = w.settle(ctx, &a, err)
				}
				if err != nil {
					return fmt.Errorf("writer %d: %w", i, err)
				}
				if w.wild {
					w.rest(ctx, random)
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// transaction writes one transaction, and remembers which of its keys must
// never be published. What it asks the server to commit is in a before it asks.
func (w *writers) transaction(ctx context.Context, random *rand.Rand, writer int, a *attempt) error {
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	rows := 1
	if random.IntN(2) == 0 {
		rows = 1 + random.IntN(50)
	}
	picks := make([]string, rows)
	for i := range picks {
		picks[i] = fmt.Sprintf("a-%d", random.IntN(w.aggregates))
	}
	if w.wild {
		picks = w.wildPicks(random, picks)
		rows = len(picks)
	}
	slices.Sort(picks) // locks in one order: no deadlock
	cut := rows
	if rows > 3 && random.IntN(4) == 0 {
		cut = random.IntN(rows)
	}
	kept, err := w.rows(ctx, tx, writer, picks[:cut])
	if err != nil {
		return err
	}
	if cut < rows {
		lost, err := w.savepoint(ctx, tx, writer, picks[cut:])
		if err != nil {
			return err
		}
		w.remember(lost, "savepoint rolled back")
	}
	if w.wild {
		if err := w.linger(ctx, random, picks); err != nil {
			return err
		}
	}
	if random.IntN(5) == 0 {
		w.remember(kept, "transaction rolled back")
		return tx.Rollback(ctx)
	}
	a.kept = kept
	if w.twoPhase && random.IntN(8) == 0 {
		return w.prepared(ctx, tx, random, a)
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	w.committed.Add(int64(len(kept)))
	return nil
}

func (w *writers) savepoint(ctx context.Context, tx pgx.Tx, writer int, aggregates []string) ([]outbox.Key, error) {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	keys, err := w.rows(ctx, inner, writer, aggregates)
	if err != nil {
		return nil, err
	}
	return keys, inner.Rollback(ctx)
}

func (w *writers) rows(ctx context.Context, tx pgx.Tx, writer int, aggregates []string) ([]outbox.Key, error) {
	var keys []outbox.Key
	for _, aggregate := range aggregates {
		key, err := w.row(ctx, tx, writer, aggregate)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func (w *writers) row(ctx context.Context, tx pgx.Tx, writer int, aggregate string) (outbox.Key, error) {
	key, err := outbox.NewKey(w.namespace)
	if err != nil {
		return key, err
	}
	p := payload{Writer: writer, Aggregate: aggregate, Pad: "…✓ padding to a size that is common"}
	if err := tx.QueryRow(ctx, `UPDATE counters SET n = n + 1 WHERE aggregate = $1 RETURNING n`, aggregate).Scan(&p.N); err != nil {
		return key, err
	}
	if _, err := tx.Exec(ctx, `INSERT INTO business VALUES ($1)`, key.String()); err != nil {
		return key, err
	}
	if w.wild {
		p.Pad = wildPad(p.N)
	}
	body, err := json.Marshal(p)
	if err != nil {
		return key, err
	}
	ev := outbox.Event{
		Key: key, AggregateType: "order", AggregateID: aggregate, Type: "OrderChanged", Payload: body,
		Headers: map[string]string{"writer": fmt.Sprint(writer), "tenant": "übung"}, Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	}
	if w.outside {
		return key, pgx.BeginFunc(ctx, w.pool, func(own pgx.Tx) error {
			_, err := outbox.Enqueue(ctx, own, ev)
			return err
		})
	}
	result, err := outbox.Enqueue(ctx, tx, ev)
	if err == nil && result != outbox.Enqueued {
		err = fmt.Errorf("enqueue %s: %s", key, result)
	}
	return key, err
}

func (w *writers) remember(keys []outbox.Key, how string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range keys {
		w.ghosts[k.String()] = how
	}
}
