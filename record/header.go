package record

import "github.com/onceward/onceward/outbox"

// Names of the Kafka record headers of the wire contract, beside
// [outbox.HeaderKey]. Values are UTF-8 text. A user's header may have none of
// them, see [outbox.ReservedHeader].
const (
	HeaderEventType     = "event-type"
	HeaderAggregateType = "aggregate-type"
	HeaderContentType   = "content-type"
	HeaderOccurredAt    = "occurred-at" // created_at, RFC 3339 with microseconds, UTC
	HeaderTraceparent   = "traceparent" // present when the row has one
	HeaderPosition      = "position"    // replication position, for forensics; differs between copies
	HeaderReplayID      = "replay-id"   // on replays only
	HeaderReplayMode    = "replay-mode" // redeliver or reprocess
	HeaderReplayGroup   = "replay-group"
	HeaderRepairID      = "repair-id" // on gap repairs only
)

// Names that the other two header styles have in place of some of those above.
// Traceparent, position, replay-* and repair-id are the same in all styles.
const (
	// Style cloudevents: CloudEvents 1.0, Kafka protocol binding, binary mode.
	headerCESpecVersion   = "ce_specversion" // 1.0
	headerCEID            = "ce_id"          // the full key
	headerCESource        = "ce_source"      // the key's namespace
	headerCEType          = "ce_type"        // the event type
	headerCETime          = "ce_time"        // as occurred-at
	headerCESubject       = "ce_subject"     // the aggregate id; none when that is empty
	headerCEAggregateType = "ce_aggregatetype"
	headerCETraceparent   = "ce_traceparent" // the distributed tracing extension

	// Style debezium: what Debezium's Outbox Event Router writes.
	headerDebeziumID   = "id"        // the key's UUID
	headerDebeziumType = "eventType" // the event type
)

// OccurredAtLayout is the layout of [HeaderOccurredAt] for [time.Time.Format].
const OccurredAtLayout = "2006-01-02T15:04:05.000000Z"

// Header styles. All of them carry the whole event, so that a consumer finds the
// idempotency key in each.
const (
	// StyleOnceward is the contract's own.
	StyleOnceward = "onceward"
	// StyleCloudEvents is CloudEvents 1.0 by the Kafka protocol binding, binary
	// content mode. The trace context is written twice, as the distributed
	// tracing extension demands: ce_traceparent keeps the trace that the event
	// began in, and traceparent is what tracing libraries look for and replace.
	StyleCloudEvents = "cloudevents"
	// StyleDebezium is that of Debezium's Outbox Event Router: id and eventType
	// as it writes them, in front of the contract's own, which its consumers
	// ignore and ours need, because id has no namespace.
	StyleDebezium = "debezium"
)

// Header is one header of a Kafka record. A nil value is a null value.
type Header struct {
	Name  string
	Value []byte
}

// Bytes is a header as sarama has it, for [AppendHeaders], which fills in whatever
// type a Kafka client has for one without a copy.
type Bytes interface {
	~struct{ Key, Value []byte }
}

// pair is the header of no client.
type pair struct{ Key, Value []byte }

// The names as a client wants them: a conversion would allocate.
var (
	nameKey           = []byte(outbox.HeaderKey)
	nameEventType     = []byte(HeaderEventType)
	nameAggregateType = []byte(HeaderAggregateType)
	nameContentType   = []byte(HeaderContentType)
	nameOccurredAt    = []byte(HeaderOccurredAt)
	nameTraceparent   = []byte(HeaderTraceparent)
	namePosition      = []byte(HeaderPosition)
	nameReplayID      = []byte(HeaderReplayID)
	nameReplayMode    = []byte(HeaderReplayMode)
	nameReplayGroup   = []byte(HeaderReplayGroup)
	nameRepairID      = []byte(HeaderRepairID)

	nameCESpecVersion   = []byte(headerCESpecVersion)
	nameCEID            = []byte(headerCEID)
	nameCESource        = []byte(headerCESource)
	nameCEType          = []byte(headerCEType)
	nameCETime          = []byte(headerCETime)
	nameCESubject       = []byte(headerCESubject)
	nameCEAggregateType = []byte(headerCEAggregateType)
	nameCETraceparent   = []byte(headerCETraceparent)
	ceSpecVersion       = []byte("1.0")

	nameDebeziumID   = []byte(headerDebeziumID)
	nameDebeziumType = []byte(headerDebeziumType)
)
