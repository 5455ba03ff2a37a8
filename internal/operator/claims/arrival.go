package claims

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/windows"
	"github.com/onceward/onceward/internal/partition"
)

// candidates are the ids under which the event can be claimed: its own, and
// those of every arrival that has a partition, for the windows that groups have.
func (r *Report) candidates(ctx context.Context, db *operator.Database, id uuid.UUID, group string) ([]uuid.UUID,
	error) {
	rows, err := consumerdb.New(db).ListWindows(ctx, group)
	if err != nil {
		return nil, err
	}
	var rest *partition.DefaultError
	days, err := partition.List(ctx, db, windows.ClaimsTable)
	switch {
	case errors.As(err, &rest):
		r.Notes = append(r.Notes, "claims of the event may be hidden: "+rest.Error())
	case err != nil:
		return nil, err
	}
	ids := []uuid.UUID{id}
	first, last, ok := partition.Extent(days)
	if at := r.EventTime; ok && at.After(first) && at.Before(last.AddDate(0, 0, 1)) && !partition.Has(days, at) {
		r.Notes = append(r.Notes, "no partition takes its day, so that its claim is not seen: `outboxctl audit` says what to do")
	}
	var done []time.Duration
	for _, v := range rows {
		r.windows = append(r.windows, window{
			group: v.ConsumerGroup, class: v.Class, floor: v.Floor, keyed: consumer.Keying(v.Keyed),
			replay: consumer.ReplayPolicy(v.Replay), retired: v.RetiredAt != nil,
		})
		for _, length := range windows.BucketsOf(v).Lengths() {
			if ok && !slices.Contains(done, length) {
				done = append(done, length)
				ids = append(ids, arrivals(id, length, first, last.AddDate(0, 0, 1))...)
			}
		}
	}
	return ids, nil
}

// arrivals returns the ids at all edges of buckets from first to last. It is pure.
func arrivals(id uuid.UUID, length time.Duration, first, last time.Time) (ids []uuid.UUID) {
	for at := first.Add(-2 * length); length >= time.Millisecond && at.Before(last); at = at.Add(length) {
		ids = append(ids, claims.IDs(id, length, at)[0])
	}
	return ids
}
