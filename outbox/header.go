package outbox

import "fmt"

// Names of the Kafka record headers of the wire contract (header style
// onceward). Values are UTF-8 text.
const (
	HeaderKey           = "idempotency-key" // the full key
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

// OccurredAtLayout is the layout of [HeaderOccurredAt] for [time.Time.Format].
const OccurredAtLayout = "2006-01-02T15:04:05.000000Z"

// ReservedHeader reports whether a header name belongs to the wire contract
// (any of the three header styles), so that a user's header may not have it.
func ReservedHeader(name string) bool {
	switch name {
	case HeaderKey, HeaderEventType, HeaderAggregateType, HeaderContentType, HeaderOccurredAt,
		HeaderTraceparent, HeaderPosition, HeaderReplayID, HeaderReplayMode, HeaderReplayGroup, HeaderRepairID,
		"id", "eventType":
		return true
	}
	return len(name) >= 3 && name[:3] == "ce_"
}

// maxHeaderName is the longest name of a user's header in bytes.
const maxHeaderName = 255

// maxHeaders bounds names and values of all the user's headers in bytes.
const maxHeaders = 64 << 10

func validateHeaders(headers map[string]string) error {
	size := 0
	for name, value := range headers {
		size += len(name) + len(value)
		field := fmt.Sprintf("Headers[%q]", name)
		if name == "" || len(name) > maxHeaderName {
			return &EventError{Field: field, Detail: fmt.Sprintf("a header's name has 1 to %d bytes", maxHeaderName)}
		}
		if ReservedHeader(name) {
			return &EventError{Field: field, Detail: "reserved by the wire contract; choose another name"}
		}
		if err := checkText(name); err != nil {
			return &EventError{Field: field, Detail: "name " + err.Error()}
		}
		if err := checkText(value); err != nil {
			return &EventError{Field: field, Detail: "value " + err.Error() + "; encode binary values as text"}
		}
	}
	if size > maxHeaders {
		return &EventError{Field: "Headers", Detail: fmt.Sprintf("%d bytes in names and values, at most %d are allowed", size, maxHeaders)}
	}
	return nil
}
