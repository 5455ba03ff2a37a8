package state

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/outboxdb"
)

// CommitGrace is how long a transaction that is under way may take when the session
// ends meanwhile.
const CommitGrace = 5 * time.Second

// Write runs work in one transaction that counts only while this session owns
// the slot; else the error is [ErrFenced] and nothing was changed. A graceful stop
// lets it end: it would close the connection, which the last flush needs.
func (s *State) Write(ctx context.Context, what string, work func(*outboxdb.Queries) error) error {
	ctx, cancel := Outlast(ctx, CommitGrace)
	defer cancel()
	err := pgx.BeginFunc(ctx, s.Conn, func(tx pgx.Tx) error {
		q := s.Queries.WithTx(tx)
		if _, err := q.LockEpoch(ctx, outboxdb.LockEpochParams{Slot: s.Slot, Epoch: s.Epoch}); err != nil {
			if errors.Is(err, pgx.ErrNoRows) {
				return ErrFenced
			}
			return err
		}
		return work(q)
	})
	if err != nil {
		return fmt.Errorf("%s of slot %s: %w", what, s.Slot, err)
	}
	return nil
}

// Counted is what a transaction of letters or of what waits adds to the counter that
// a checkpoint carries. Everything counts that a database which went back in time
// must not lack: a letter, an effect of a control, a retry that failed. What settles
// retries does not: it is done again.
type Counted struct {
	Writes  int
	Skipped *uuid.UUID // of the command that is carried out by it, and forgotten
}

// Count runs work as [State.Write] does, and raises the counter.
func (s *State) Count(ctx context.Context, what string, work func(*outboxdb.Queries) (Counted, error)) error {
	var written int64
	err := s.Write(ctx, what, func(q *outboxdb.Queries) error {
		c, err := work(q)
		if err != nil {
			return err
		}
		written, err = q.CountLetters(ctx, outboxdb.CountLettersParams{Slot: s.Slot, Added: int64(c.Writes),
			Skipped: c.Skipped})
		return err
	})
	if err == nil {
		s.Written = written
	}
	return err
}

// Outlast returns a context that ends the given time after ctx does.
func Outlast(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-out.Done():
		}
	})
	return out, func() { stop(); cancel() }
}
