package consumer

import (
	"context"
	"fmt"

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
// already, or is the rest of such a one, stays as it is. The letter can be discarded;
// a redrive has nothing to handle, and is not taken. Safe for concurrent use;
// saramagroup.Run calls it.
func (r *Router) KeepUnreadable(ctx context.Context, u Unreadable) error {
	if u.From.Topic == "" || u.Until <= u.From.Offset || u.Why == nil {
		return fmt.Errorf("%w: unreadable range of %s until %d: it wants a topic, at least one offset and a cause", ErrEvent, u.From, u.Until)
	}
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
