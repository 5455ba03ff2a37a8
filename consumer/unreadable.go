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

// unfinished is what of a range the group's mark does not prove finished. In between
// may be what nobody could read at first: that has a letter of its own, which stays.
func (u Unreadable) unfinished(ctx context.Context, p *Processor) ([]Unreadable, error) {
	mark, ok, err := p.marks.highMark(ctx, consumerdb.New(p.db), u.From)
	switch {
	case err != nil:
		return nil, unusable(err)
	case !ok, u.From.TopicID == uuid.Nil, u.From.TopicID != mark.TopicID, mark.HighOffset < mark.LowOffset:
		return []Unreadable{u}, nil
	}
	before, behind := u, u
	before.Until, behind.From.Offset = min(u.Until, mark.LowOffset), max(u.From.Offset, mark.HighOffset+1)
	if before.Until < behind.From.Offset {
		p.log.WarnContext(ctx, "of a range that cannot be read something was finished when it could be, or has its letter; that is passed over",
			"source", u.From.String(), "until", u.Until, "low", mark.LowOffset, "high", mark.HighOffset, "error", u.Why.Error())
	}
	return slices.DeleteFunc([]Unreadable{before, behind},
		func(part Unreadable) bool { return part.From.Offset >= part.Until }), nil
}

func (u Unreadable) keep(ctx context.Context, s *steps) error {
	kept, err := consumerdb.New(s.processor.db).RangeIsKept(ctx, consumerdb.RangeIsKeptParams{
		ConsumerGroup: s.processor.group, Topic: u.From.Topic, TopicID: u.From.TopicID,
		KafkaPartition: u.From.Partition, KafkaOffset: u.From.Offset, Until: u.Until,
	})
	switch {
	case err != nil:
		return fmt.Errorf("look whether range %s is kept: %w", u.From, unusable(err))
	case kept:
		return nil
	}
	return s.quarantine(ctx, letter{record: Record{Source: u.From}, reason: reasonUnreadable, cause: u.text(),
		until: u.Until}).Err
}
