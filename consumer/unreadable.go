package consumer

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/onceward/onceward/internal/consumerdb"
)

// reasonUnreadable: the client could not read the messages from Kafka.
const reasonUnreadable reason = "unreadable"

// Unreadable is a range of a topic partition that the group cannot read: one
// batch, of whose messages nobody knows more than their offsets.
type Unreadable struct {
	// From is the place of the first message; Topic must be set.
	From Source
	// Until is the offset behind the last one, greater than that of From.
	Until int64
	// Why says what was wrong, and what to do next. It must not be nil.
	Why error
}

// text is what the letter says: which range it is, and why nobody could read it.
func (u Unreadable) text() error {
	return fmt.Errorf("offsets from %d until %d of %s/%d: %w", u.From.Offset, u.Until, u.From.Topic, u.From.Partition, u.Why)
}

// KeepUnreadable keeps a range as one dead letter with the reason "unreadable",
// which has the place of the first message, and neither key, value nor headers.
// Once it returns nil the group may go on behind the range. A range that is kept
// already, or is the rest of such a one, stays as it is. What the group's mark of this
// very topic proves finished, so that it could be read then, is passed over; what is
// left of the range on either side has a letter. A letter can be discarded; a redrive
// has nothing to handle, and is not taken. Safe for concurrent use; saramagroup.Run
// calls it.
func (r *Router) KeepUnreadable(ctx context.Context, u Unreadable) error {
	if u.From.Topic == "" || u.Until <= u.From.Offset || u.Why == nil {
		return fmt.Errorf("%w: unreadable range of %s until %d: it wants a topic, at least one offset and a cause", ErrEvent, u.From, u.Until)
	}
	rest, err := r.unfinished(ctx, u)
	for _, part := range rest {
		if err == nil {
			err = r.keepRange(ctx, part)
		}
	}
	return err
}

// unfinished is what of a range the group's mark does not prove finished. In between
// may be what nobody could read at first: that has a letter of its own, which stays.
func (r *Router) unfinished(ctx context.Context, u Unreadable) ([]Unreadable, error) {
	mark, ok, err := r.processor.marks.highMark(ctx, consumerdb.New(r.processor.db), u.From)
	switch {
	case err != nil:
		return nil, unusable(err)
	case !ok, u.From.TopicID == uuid.Nil, u.From.TopicID != mark.TopicID, mark.HighOffset < mark.LowOffset:
		return []Unreadable{u}, nil
	}
	before, behind := u, u
	before.Until, behind.From.Offset = min(u.Until, mark.LowOffset), max(u.From.Offset, mark.HighOffset+1)
	if before.Until < behind.From.Offset {
		r.processor.log.WarnContext(ctx, "of a range that cannot be read something was finished when it could be, or has its letter; that is passed over",
			"source", u.From.String(), "until", u.Until, "low", mark.LowOffset, "high", mark.HighOffset, "error", u.Why.Error())
	}
	return slices.DeleteFunc([]Unreadable{before, behind}, func(part Unreadable) bool { return part.From.Offset >= part.Until }), nil
}

func (r *Router) keepRange(ctx context.Context, u Unreadable) error {
	kept, err := consumerdb.New(r.processor.db).RangeIsKept(ctx, consumerdb.RangeIsKeptParams{
		ConsumerGroup: r.Group(), Topic: u.From.Topic, TopicID: u.From.TopicID, KafkaPartition: u.From.Partition, KafkaOffset: u.From.Offset, Until: u.Until,
	})
	switch {
	case err != nil:
		return fmt.Errorf("look whether range %s is kept: %w", u.From, unusable(err))
	case kept:
		return nil
	}
	return r.quarantine(ctx, letter{record: Record{Source: u.From}, reason: reasonUnreadable, cause: u.text(), until: u.Until}).Err
}
