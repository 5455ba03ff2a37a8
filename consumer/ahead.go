package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/onceward/onceward/consumer/internal/sqlstate"
	"github.com/onceward/onceward/internal/consumerdb"
)

// remember writes a row of onceward.ahead for each item that this transaction claims,
// that came from a topic, and whose claim a delivery after a crash, which begins at
// the mark, might not find: it is claimed by arrival, whose buckets go on with the clock.
//
// A claim of another member, which has the partition by now perhaps, may lie in other
// buckets when its transaction began much later or earlier. Both write the same row,
// also when one of them does not know the topic's id and the group has a mark of it:
// the slower one fails, as it does when a mark has passed the offset meanwhile, and
// finds a duplicate when it is tried again.
func (c claimant) remember(ctx context.Context, items []*item) error {
	row, before, err := c.aheadOf(ctx, items)
	if err != nil || len(row.Topics) == 0 {
		return err
	}
	written, err := c.q.RememberAhead(ctx, row)
	taken := written.Taken
	if err == nil && taken == 0 && slices.Contains(row.Fresh, "true") { // a statement of its own: it has to see what the first has waited for
		taken, err = c.q.PassedAmong(ctx, consumerdb.PassedAmongParams{
			ConsumerGroup: c.processor.group, Topics: row.Topics, TopicIds: row.TopicIds,
			KafkaPartitions: row.KafkaPartitions, KafkaOffsets: row.KafkaOffsets, Asked: row.Fresh,
		})
		taken -= before
	}
	switch locked := sqlstate.Is(err, "55P03"); {
	case (locked || taken > 0) && len(items) > 1:
		return errAlone
	case locked:
		return ErrInProgress
	case err != nil:
		return fmt.Errorf("remember offsets ahead of the mark: %w", err)
	case taken > 0:
		return errAppliedMeanwhile
	}
	return nil
}

// aheadOf are the rows of items that are to be remembered, and how many marks had
// passed the offsets of those that are new, when that was asked.
func (c claimant) aheadOf(ctx context.Context, items []*item) (row consumerdb.RememberAheadParams, before int64,
	err error) {
	row = consumerdb.RememberAheadParams{ConsumerGroup: c.processor.group,
		LockTimeout: strconv.FormatInt(c.processor.lockTimeout.Milliseconds(), 10)}
	var places map[Source]*item // made for what is claimed by arrival only: this runs for every transaction
	for _, it := range items {
		src := it.ev.Source
		if len(it.claim.ids) == 0 || src.Topic == "" || !it.byArrival() {
			continue
		}
		place := src
		place.TopicID = uuid.Nil // which may stand for any
		if other := places[place]; other != nil && (other.id != it.id || other.ev.Source != src) {
			return row, 0, errAlone
		} else if other != nil {
			continue // the same record twice
		}
		if places == nil {
			places = make(map[Source]*item, len(items))
		}
		places[place] = it
		if it.redrive != nil {
			if passed, err := c.processor.marks.passed(ctx, c.q, src); err != nil {
				return row, 0, err
			} else if passed {
				continue // the mark says it
			}
		}
		row.Topics, row.KafkaPartitions = append(row.Topics, src.Topic), append(row.KafkaPartitions,
			strconv.Itoa(int(src.Partition)))
		row.TopicIds = append(row.TopicIds, src.TopicID.String())
		row.KafkaOffsets, row.EventIds = append(row.KafkaOffsets,
			strconv.FormatInt(src.Offset, 10)), append(row.EventIds, it.id.String())
		fresh := it.fresh() && !it.ev.redriven
		row.Fresh, row.Content = append(row.Fresh, strconv.FormatBool(fresh)), append(row.Content,
			strconv.FormatBool(it.content))
		switch {
		case fresh && it.ev.accepted: // its handler has run since
			before += it.passed
		case fresh:
			before += it.plan.passed
		}
	}
	return row, before, nil
}

var errAppliedMeanwhile error = &infrastructureError{errors.New("another member has finished the offset of the event meanwhile; it is delivered again, and is a duplicate then")}

// stateOf looks for the offset of an event. Without one, nothing is ahead of a mark.
func (l *look) stateOf(ctx context.Context, ev *Event) (consumerdb.IsAheadRow, error) {
	if ev.Source.Topic == "" || ev.redriven {
		return consumerdb.IsAheadRow{}, nil
	}
	is, err := l.q.IsAhead(ctx, consumerdb.IsAheadParams{
		ConsumerGroup: l.processor.group, Topic: ev.Source.Topic, TopicID: ev.Source.TopicID,
		KafkaPartition: ev.Source.Partition, KafkaOffset: ev.Source.Offset,
		EventID: l.processor.claimID(*ev), Content: l.processor.windows.byContent(ev.Type),
	})
	if err != nil {
		return is, fmt.Errorf("look for the offset ahead of the mark: %w", err)
	}
	return is, nil
}
