package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/relay/internal/state"
)

// rows reads events from the table.
type rows interface {
	event(ctx context.Context, id uuid.UUID) (*outbox.Row, error)
	// fit returns an error while the table is not as it must be: a column of
	// another type may show the value with other bytes.
	fit(ctx context.Context) error
}

// complete fills in the events whose table lacked a needed column when they were
// written: they have the column by now, or nothing can be done here. What the stream
// leaves out needs none, and may have been dropped by retention since.
func (r *reading) complete(ctx context.Context, batch []cdc.Item) error {
	for i := range batch {
		it := &batch[i]
		if it.Incomplete == nil {
			continue
		}
		if it.Kind != cdc.KindEvent {
			return it.Incomplete
		}
		if r.leavesOut(it) {
			continue
		}
		row, err := r.rows.event(ctx, it.Row.ID)
		if err != nil {
			return errors.Join(it.Incomplete, err)
		}
		row.TxID = it.Row.TxID
		it.Row, it.Incomplete = row, nil
	}
	return nil
}

// outboxRows is [rows] over the pump's connection.
type outboxRows struct{ pumps *state.State }

func (o outboxRows) fit(ctx context.Context) error { return cdc.CheckColumns(ctx, o.pumps.Conn) }

func (o outboxRows) event(ctx context.Context, id uuid.UUID) (*outbox.Row, error) {
	if err := o.fit(ctx); err != nil {
		return nil, err
	}
	r, err := o.pumps.Queries.FindOutboxRow(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("read event %s from onceward.outbox: it is not there any more", id)
	}
	if err != nil {
		return nil, fmt.Errorf("read event %s from onceward.outbox: %w", id, err)
	}
	return newRow(&r), nil
}

// newRow is a row of the table as the log would have brought it.
func newRow(r *outboxdb.OutboxRow) *outbox.Row {
	row := &outbox.Row{
		ID: r.ID, Namespace: r.Namespace, AggregateType: r.AggregateType, AggregateID: []byte(r.AggregateID),
		Type:    r.EventType,
		Payload: r.Payload, ContentType: r.ContentType, Headers: r.Headers, CreatedAt: r.CreatedAt.UTC(), TxID: r.TxID,
		Seq: r.Seq,
	}
	if r.Traceparent != nil {
		row.Traceparent = []byte(*r.Traceparent)
	}
	return row
}
