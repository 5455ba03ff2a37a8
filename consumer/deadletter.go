package consumer

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/internal/memory"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// reason is the column of the same name: why a message was not applied.
type reason string

const (
	reasonMalformed  reason = "malformed"
	reasonMismatch   reason = "mismatch"
	reasonHandler    reason = "handler"
	reasonCrash      reason = "crash"
	reasonLate       reason = "late"
	reasonReplay     reason = "replay"
	reasonFromFuture reason = "from-future"
	reasonNoHandler  reason = "no-handler"
	reasonParked     reason = "parked"
)

// claims: what was given up for it was claimed.
func (r reason) claims() bool { return r == reasonHandler || r == reasonCrash || r == reasonNoHandler }

// What consumer_dead_letters.state says of a letter.
const (
	stateOpen     = "open"
	stateParked   = "parked"
	stateRedriven = "redriven"
)

// letter is a message that could not be applied, and why. The event is the
// zero Event when the record holds none.
type letter struct {
	record Record
	event  Event
	reason reason
	cause  error
	// attempts of the handler; 0 when it was not called
	attempts int32
	parked   bool        // it waits for another letter of its key
	topic    string      // under which it is kept, which may be aside
	until    int64       // the offset behind an unreadable range; else 0
	claimed  []uuid.UUID // of an event that is known by its content
}

// letters are the group's, and what is parked behind them.
type letters struct {
	*member
	windows  *windows
	brake    memory.Brake
	clock    func() time.Time // of this process
	most     int              // letters behind a key, less in tests
	mostKeys int
}

// Record is the record that the event was read from: what a [RecordReader] has left out of
// Payload is in its Value. Of an event of another origin it is what the fields say.
func (e *Event) Record() Record {
	rec := Record{Source: e.Source, Value: e.Payload, Headers: e.RecordHeaders}
	switch {
	case e.raw != nil:
		rec.Key, rec.Value = e.raw.Key, e.raw.Value
	case e.AggregateID != "":
		rec.Key = []byte(e.AggregateID)
	}
	return rec
}

// end writes the letter of an item, and of one that was redriven what became of it.
func (ls *letters) end(ctx context.Context, tx pgx.Tx, it *item) error {
	if it.end.letter != nil {
		switch written, err := ls.keep(ctx, tx, it.end.letter, it.end.dead); {
		case err != nil:
			return err
		case !written:
			it.end.letter = nil // it is there, and was announced
		default:
			if err := ls.fits(ctx, tx, it); err != nil {
				return err
			}
		}
	}
	if it.redrive != nil {
		return ls.settle(ctx, tx, it.redrive)
	}
	return nil
}

// keep writes the letter. One that is there already, from an earlier delivery, at its
// place or aside, is left as it is, unless the event was given up again and it is
// decided, or knows no event. A decided
// letter of another record gives its place up, unless it says what became of an event;
// beside one that stays this one is kept under a topic's name that Kafka does not allow.
func (ls *letters) keep(ctx context.Context, tx pgx.Tx, l *letter, again bool) (written bool, err error) {
	row, err := l.row(ls.group)
	if err != nil {
		return false, err
	}
	row.Again, row.Content = again, ls.windows.byContent(l.event.Type)
	if !l.event.Key.IsZero() {
		id, sum := ls.claimID(l.event), l.event.Fingerprint()
		row.ClaimID, row.Fingerprint = &id, sum[:]
	}
	q, topic := consumerdb.New(tx), row.Topic
	for n := 1; ; n++ {
		kept, err := q.PlaceOfLetter(ctx, consumerdb.PlaceOfLetterParams{
			RecordKey: row.RecordKey, RecordValue: row.RecordValue, RecordHeaders: row.RecordHeaders,
			UnreadableUntil: row.UnreadableUntil,
			ConsumerGroup:   row.ConsumerGroup, Topic: topic, TopicID: row.TopicID, KafkaPartition: row.KafkaPartition,
			KafkaOffset: row.KafkaOffset, Content: row.Content,
		})
		if err != nil {
			return false, fmt.Errorf("look for the record's letter: %w", err)
		}
		switch {
		case kept != "":
			row.Topic = kept
		case n > 1:
			row.Topic = topic + asideMark + strconv.Itoa(n)
		}
		if row.Topic != topic {
			row.State = stateOpen // what is parked, and its order, is looked for under the topic's own name
		}
		written, err := q.PutDeadLetter(ctx, row)
		if err != nil {
			return false, fmt.Errorf("write dead letter: %w", err)
		}
		if written > 0 || kept != "" {
			l.topic = row.Topic
			return written > 0, nil
		}
	}
}

// fits refuses a letter that was written and has to wait: for the clock, or because
// too much is parked. One that was there before is no new one.
func (ls *letters) fits(ctx context.Context, tx pgx.Tx, it *item) error {
	if it.end.letter.reason == reasonFromFuture {
		if err := ls.fromFuture(it); err != nil {
			return err
		}
	}
	return ls.park(ctx, tx, it.end.letter)
}

// fromFuture refuses to make a dead letter of an event whose time would have come,
// were all clocks right.
func (ls *letters) fromFuture(it *item) error {
	c := memory.Clocks{Event: outbox.IDTime(it.id), Database: ls.windows.now(), Process: ls.clock(),
		Skew: ls.windows.skew}
	if err := c.Refusal(ls.brake.Full()); err != nil {
		return &infrastructureError{err}
	}
	return nil
}

// asideMark is in no topic's name. A number behind it makes a letter's name whose place is
// taken: the topic was made anew, or what could not be read as a whole is read after all.
const asideMark = "~"

// announce says so in the log, once the letter is committed.
func (ls *letters) announce(ctx context.Context, l letter) {
	if l.reason == reasonFromFuture {
		ls.brake.Letter()
	}
	at := l.record.Source
	at.Topic = l.topic
	log := ls.log.With("source", at.String())
	if !l.event.Key.IsZero() {
		log = log.With("event", l.event.Key.String())
	}
	if l.reason == reasonParked {
		log.DebugContext(ctx, "message parked")
		return
	}
	log.WarnContext(ctx, "message dead-lettered", "reason", string(l.reason), "error", l.cause.Error())
}

// fromMark begins the name under which letters of events from no topic are kept. No
// topic's name holds a colon.
const fromMark = "from:"

// published is the record of an event from no topic as a relay would have written it,
// at a place that follows from its key, and where that is made of content, from its first claim.
func (e *Event) published(claimed []uuid.UUID) (rec Record, err error) {
	row := outbox.Row{ID: e.Key.UUID(), Namespace: e.Key.Namespace(), AggregateType: e.AggregateType, Type: e.Type,
		ContentType: e.ContentType, CreatedAt: e.OccurredAt}
	if e.Traceparent != "" {
		row.Traceparent = []byte(e.Traceparent)
	}
	if len(e.Headers) > 0 {
		if row.Headers, err = json.Marshal(e.Headers); err != nil {
			return rec, fmt.Errorf("encode headers: %w", err)
		}
	}
	written, err := record.AppendHeaders[struct{ Key, Value []byte }](nil, record.Copy{Row: &row}, record.StyleOnceward)
	if err != nil {
		return rec, fmt.Errorf("write the event as a record: %w", err)
	}
	rec = e.Record()
	for _, h := range written {
		rec.Headers = append(rec.Headers, Header{Name: string(h.Key), Value: h.Value})
	}
	rec.Source.Topic = fromMark + row.Namespace
	place := row.ID
	if len(claimed) > 0 {
		place = uuid.NewSHA1(place, claimed[0][:])
	}
	rec.Source.Offset = int64(binary.BigEndian.Uint64(place[8:]) & (1<<62 - 1)) // behind the bits of the variant
	return rec, nil
}

func (l *letter) row(group string) (consumerdb.PutDeadLetterParams, error) {
	if l.record.Source.Topic == "" {
		var err error
		if l.record, err = l.event.published(l.claimed); err != nil {
			return consumerdb.PutDeadLetterParams{}, err
		}
	}
	headers, err := record.StoreHeaders(l.record.Headers)
	if err != nil {
		return consumerdb.PutDeadLetterParams{}, err
	}
	row := consumerdb.PutDeadLetterParams{
		ConsumerGroup:   group,
		Topic:           l.record.Source.Topic,
		TopicID:         l.record.Source.TopicID,
		KafkaPartition:  l.record.Source.Partition,
		KafkaOffset:     l.record.Source.Offset,
		RecordKey:       l.record.Key,
		RecordValue:     l.record.Value,
		RecordHeaders:   string(headers),
		Reason:          string(l.reason),
		Error:           consumerdb.Reason(l.cause),
		Attempts:        l.attempts,
		State:           stateOpen,
		UnreadableUntil: l.until,
	}
	if l.parked {
		row.State = stateParked
	}
	if !l.event.Key.IsZero() {
		id, namespace, eventType := l.event.Key.UUID(), l.event.Key.Namespace(), l.event.Type
		row.EventID, row.Namespace, row.EventType = &id, &namespace, &eventType
	}
	return row, nil
}
