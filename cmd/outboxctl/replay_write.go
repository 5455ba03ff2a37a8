package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
)

const (
	// chunksASecond and maxChunk: small transactions, so that the stream is
	// never blocked for long and an interruption comes soon.
	chunksASecond = 10
	maxChunk      = 500
	chunkTimeout  = time.Minute
	chunkTries    = 5 // after a lost answer, with a pause that grows
	chunkRetry    = 500 * time.Millisecond
)

// request writes the orders, paced and in the order of the rows. The context's
// end comes between two transactions, so that what was asked for is known; the
// report says how far it came, also with an error.
func (o *replayOrder) request(c *cli.Context, db *operator.Database, plan *replayPlan) error {
	w := replayWriter{db: db, order: o, plan: plan}
	line := newProgress(c.App.ErrWriter, "asked for", len(plan.events))
	defer line.end()
	pace := pacer{rate: o.rate}
	chunk := min(max(1, o.rate/chunksASecond), maxChunk)
	for at := 0; at < len(plan.events); at += chunk {
		part := plan.events[at:min(at+chunk, len(plan.events))]
		if err := pace.wait(c.Context, len(part)); err != nil {
			return err
		}
		if err := w.write(context.WithoutCancel(c.Context), part); err != nil {
			return fmt.Errorf("replay: %w", operator.ExplainWrite(err))
		}
		line.show(plan.report.Requested)
	}
	return nil
}

// replayWriter writes chunks of a plan.
type replayWriter struct {
	db    *operator.Database
	order *replayOrder
	plan  *replayPlan
}

// write asks for one chunk, in one transaction. When the answer is lost it asks
// again under the same replay ids, which waits for the transaction that may
// still be under way: under new ids a group would reprocess its events twice.
func (w *replayWriter) write(ctx context.Context, events []outboxdb.EventsForReplayRow) error {
	ctx, cancel := context.WithTimeout(ctx, chunkTimeout)
	defer cancel()
	p, err := w.params(events)
	if err != nil {
		return err
	}
	q := outboxdb.New(w.db)
	done, err := q.InsertReplays(ctx, p)
	count := int64(len(done))
	for try := 1; lost(err); try++ {
		if again := (&pacer{rate: 1, next: time.Now().Add(time.Duration(try) * chunkRetry)}).wait(ctx, 1); again != nil {
			return unsettled(p.ReplayIds, err)
		}
		if _, err = q.InsertReplays(ctx, p); err == nil {
			count, err = q.CountReplays(ctx, p.ReplayIds)
		}
		if lost(err) && try == chunkTries {
			return unsettled(p.ReplayIds, err)
		}
	}
	if err != nil {
		return err
	}
	r := w.plan.report
	r.Requested += int(count)
	r.Gone += len(events) - int(count)
	last := events[len(events)-1]
	r.After = rowPlace{last.Seq, last.ID}.String()
	return nil
}

// lost tells whether the server may have done what it gave no answer to. What it
// refused it has not done, unless it was being shut down (class 57).
func lost(err error) bool {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return strings.HasPrefix(refused.Code, "57")
	}
	return err != nil
}

func unsettled(ids []uuid.UUID, err error) error {
	return fmt.Errorf("%w; whether the last %d events were asked for is not known: look in onceward.replays for replay_id %s before going on", err, len(ids), ids[0])
}

func (w *replayWriter) params(events []outboxdb.EventsForReplayRow) (outboxdb.InsertReplaysParams, error) {
	o := w.order
	p := outboxdb.InsertReplaysParams{
		Mode: w.plan.report.Mode, ReplayGroup: operator.Optional(o.group), Topic: operator.Optional(o.topic), Reason: o.reason,
		Dead: o.dead, States: []string{states.LetterReplayed},
	}
	if o.dead {
		p.States = []string{states.LetterDiscarded, states.LetterOpen}
		if o.topic == "" {
			p.States = []string{states.LetterDiscarded}
		}
	}
	for _, v := range events {
		id, err := uuid.NewV7()
		if err != nil {
			return p, fmt.Errorf("make a replay id: %w", err)
		}
		p.ReplayIds, p.Ids = append(p.ReplayIds, id), append(p.Ids, v.ID)
	}
	return p, nil
}
