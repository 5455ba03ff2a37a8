//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/outbox"
)

// attempt is what a writer must know of its transaction when the answer is lost.
type attempt struct {
	kept []outbox.Key // what the commit would commit; empty before it was asked for
	gid  string       // of a prepared transaction
}

// tally counts what happened to transactions.
type tally struct {
	prepared, preparedRolledBack atomic.Int64
	lost, lostCommitted          atomic.Int64 // outcome unknown, and what it was
	gid                          atomic.Int64
}

// prepared ends the transaction in two phases. Between them others commit; a
// third of them is rolled back in the second.
func (w *writers) prepared(ctx context.Context, tx pgx.Tx, random *rand.Rand, a *attempt) error {
	a.gid = fmt.Sprintf("%s-%d", w.namespace, w.tally.gid.Add(1))
	if _, err := tx.Exec(ctx, "PREPARE TRANSACTION '"+a.gid+"'"); err != nil {
		return err
	}
	_ = tx.Rollback(ctx) // nothing is open any more: gives the connection back
	for range random.IntN(4) {
		if _, err := w.pool.Exec(ctx, "SELECT pg_sleep(0.002)"); err != nil { // others pass it
			return err
		}
	}
	if random.IntN(3) == 0 {
		if _, err := w.pool.Exec(ctx, "ROLLBACK PREPARED '"+a.gid+"'"); err != nil {
			return err
		}
		w.tally.preparedRolledBack.Add(1)
		w.remember(a.kept, "prepared transaction rolled back")
		return nil
	}
	if _, err := w.pool.Exec(ctx, "COMMIT PREPARED '"+a.gid+"'"); err != nil {
		return err
	}
	w.tally.prepared.Add(1)
	w.committed.Add(int64(len(a.kept)))
	return nil
}

// settle waits until the server is back after an outage, and finds out what
// became of the transaction: a prepared one that is still there is rolled back,
// and the business rows tell the rest. Any other error is returned.
func (w *writers) settle(ctx context.Context, a *attempt, cause error) error {
	if !outage(cause) {
		return cause
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := w.outcome(ctx, a)
		if err == nil || !outage(err) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(cause, err)
		}
	}
}

func (w *writers) outcome(ctx context.Context, a *attempt) error {
	if a.gid != "" {
		var there bool
		if err := w.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_prepared_xacts WHERE gid = $1)`, a.gid).Scan(&there); err != nil {
			return err
		}
		if there {
			if _, err := w.pool.Exec(ctx, "ROLLBACK PREPARED '"+a.gid+"'"); err != nil {
				return err
			}
		}
	}
	keys := make([]string, len(a.kept))
	for i, k := range a.kept {
		keys[i] = k.String()
	}
	var found int
	if err := w.pool.QueryRow(ctx, `SELECT count(*) FROM business WHERE key = ANY($1)`, keys).Scan(&found); err != nil {
		return err
	}
	w.tally.lost.Add(1)
	switch found {
	case 0:
		w.remember(a.kept, "lost in an outage, and not committed")
	case len(keys):
		w.tally.lostCommitted.Add(1)
		w.committed.Add(int64(len(keys)))
	default:
		return fmt.Errorf("of %d rows of one transaction %d were committed", len(keys), found)
	}
	return nil
}

// outage says whether the server was gone, rather than refused what was asked.
func outage(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return strings.HasPrefix(pg.Code, "57P") || strings.HasPrefix(pg.Code, "08")
	}
	var lost interface{ Timeout() bool } // net.Error, and what pgconn makes of one
	return errors.As(err, &lost) || strings.Contains(err.Error(), "conn closed") || strings.Contains(err.Error(), "unexpected EOF")
}
