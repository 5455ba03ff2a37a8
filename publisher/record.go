package publisher

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/IBM/sarama"
	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher/internal/limit"
	"github.com/onceward/onceward/publisher/internal/produce"
	"github.com/onceward/onceward/record"
)

// Event is a row on its way to Kafka.
type Event struct {
	// Row is what is published. It is read until the event has ended.
	Row *outbox.Row
	// Tag is the caller's ordinal, given back when the event was acknowledged.
	Tag uint64
	// Position is the text of header `position`; no header when empty.
	Position string
	// Topic, when set, takes the place of the route: a replay goes to a topic
	// of its own. It is checked as a route's is: name and allow-list.
	Topic string
	// Replay is set on replays and becomes the headers replay-id, replay-mode
	// and replay-group.
	Replay *record.Replay
	// RepairID, when not zero, becomes header repair-id: a gap repair made this copy.
	RepairID uuid.UUID
	// More: another event is published at once. It need not wait for that one alone; where none
	// comes it leaves some milliseconds later.
	More bool
	// Late is how long ago it was committed. The longer, the longer what comes behind it in a flow may
	// wait for others: up to a 16th of that, and to 32 milliseconds. By two machines' clocks, where it is.
	Late  time.Duration
	Again bool // refused before; the limit of its topic may have been raised just now, and is asked first
}

const (
	// inlineHeaders is how many headers fit into a record without a second
	// allocation: the seven of the contract and three of the user's.
	inlineHeaders = 10
	// recordOverhead and headerOverhead are the most that lengths and deltas of
	// a record, and lengths of a header, take in a batch.
	recordOverhead = 5*binary.MaxVarintLen32 + binary.MaxVarintLen64 + 1
	headerOverhead = 2 * binary.MaxVarintLen32
	// companions estimates what is allocated beside each record until it is
	// acknowledged: its row, and what the texts of its headers leave unused.
	companions = 256
)

// pending is one event between Publish and its acknowledgement, in a single
// allocation, which the next event takes over.
type pending struct {
	produce.Record
	tag      uint64
	id       uuid.UUID // of the row, or of the replay
	topic    *topic
	serial   *atomic.Int64 // records in flight in the topic's partition, when no batch is shared
	headers  [inlineHeaders]sarama.RecordHeader
	pointers [inlineHeaders]*sarama.RecordHeader
}

// pendingOf returns the event of a record. There are no other records.
func pendingOf(r *produce.Record) *pending {
	p, _ := r.Owner.(*pending)
	return p
}

// pendings keeps records that have ended for those to come. Its zero value is
// ready; it is safe for concurrent use.
type pendings struct{ pool sync.Pool }

func (p *pendings) get() *pending {
	if r, ok := p.pool.Get().(*pending); ok {
		return r
	}
	return new(pending)
}

// put takes a record back. Nobody may hold it any more.
func (p *pendings) put(r *pending) {
	*r = pending{}
	p.pool.Put(r)
}

// fill makes a fresh record that of an event, without topic and partition. It is
// pure: the same event gives the same bytes. Its batch has the time of publishing,
// and not of the event: Kafka deletes at once what is stamped older than the
// retention, as the event time of a replay may be.
func (r *pending) fill(ev Event, style string) error {
	row := ev.Row
	r.Owner, r.tag, r.id, r.More, r.Late = r, ev.Tag, row.ID, ev.More, ev.Late
	r.Kafka.Key, r.Kafka.Value = row.AggregateID, row.Payload // no payload: a tombstone
	if r.Kafka.Key == nil {
		r.Kafka.Key = []byte{} // the empty key is a key; nil would have no order
	}
	published := record.Copy{Row: row, Position: ev.Position, RepairID: ev.RepairID}
	if ev.Replay != nil {
		if *ev.Replay == (record.Replay{}) {
			return &record.RowError{Field: "replay_mode", Detail: "a replay has an id and a mode"}
		}
		published.Replay, r.id = *ev.Replay, ev.Replay.ID
	}
	headers, err := record.AppendHeaders(r.headers[:0], published, style)
	if err != nil {
		return err
	}
	r.Bytes = recordOverhead + len(r.Kafka.Key) + len(r.Kafka.Value)
	r.Kafka.Headers = r.pointers[:0]
	for i := range headers {
		r.Kafka.Headers = append(r.Kafka.Headers, &headers[i])
		r.Bytes += headerOverhead + len(headers[i].Key) + len(headers[i].Value)
	}
	r.Cost = int64(r.Bytes) + int64(unsafe.Sizeof(*r)) + companions
	return nil
}

// size is how many bytes a batch of this record alone has at most, before
// compression.
func (r *pending) size() int { return r.Bytes + produce.BatchOverhead }

// sized is its size as that of an event, or of a copy of one.
func (r *pending) sized(ev *Event) limit.Record {
	return limit.Record{Size: r.size(), Copy: ev.Replay != nil || ev.RepairID != uuid.Nil}
}
