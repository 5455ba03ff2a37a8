package replay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/label"
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

// Request writes the orders, paced and in the order of the rows. The context's
// end comes between two transactions, so that what was asked for is known; the
// report says how far it came, also with an error; asked is told after each.
func (p *Plan) Request(ctx context.Context, db *operator.Database, asked func(events int)) error {
	w := replayWriter{db: db, order: p.order, plan: p}
	pace := pacer{rate: p.order.Rate}
	chunk := min(max(1, p.order.Rate/chunksASecond), maxChunk)
	for at := 0; at < len(p.events); at += chunk {
		part := p.events[at:min(at+chunk, len(p.events))]
		if err := pace.wait(ctx, len(part)); err != nil {
			return err
		}
		if err := w.write(context.WithoutCancel(ctx), part); err != nil {
			return fmt.Errorf("replay: %w", operator.ExplainWrite(err))
		}
		asked(p.Report.Requested)
	}
	return nil
}

// replayWriter writes chunks of a plan.
type replayWriter struct {
	db    *operator.Database
	order *Order
	plan  *Plan
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
		if again := (&pacer{rate: 1, next: time.Now().Add(time.Duration(try) * chunkRetry)}).wait(ctx,
			1); again != nil {
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
	r := w.plan.Report
	r.Requested += int(count)
	r.Gone += len(events) - int(count)
	last := events[len(events)-1]
	r.After = Place{last.Seq, last.ID}.String()
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
	return fmt.Errorf("%w; whether the last %s asked for is not known: look in onceward.replays for replay_id %s before going on", err, label.Count(len(ids), "event was", "events were"), ids[0])
}

func (w *replayWriter) params(events []outboxdb.EventsForReplayRow) (outboxdb.InsertReplaysParams, error) {
	o := w.order
	p := outboxdb.InsertReplaysParams{
		Mode: w.plan.Report.Mode, ReplayGroup: operator.Optional(o.Group), Topic: operator.Optional(o.Topic),
		Reason: o.Reason,
		Dead:   o.Dead, States: []string{states.LetterReplayed},
	}
	if o.Dead {
		p.States = []string{states.LetterDiscarded, states.LetterOpen}
		if o.Topic == "" {
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
