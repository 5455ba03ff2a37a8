package letters

import (
	"encoding/json"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/outbox"
)

// Limits of what Enqueue takes; an edited event keeps to them.
const (
	MaxHeaders    = 64 << 10 // bytes of names and values
	maxHeaderName = 255
)

// Edit is new content for a letter; what is nil stays as it is.
type Edit struct {
	Payload     []byte // at most outbox.MaxPayload
	PayloadNull bool   // the event becomes a tombstone
	Headers     []byte // as ParseHeaders returns them
}

// ParseHeaders reads the headers of a producer, a JSON object of strings from a source, by
// the rules of Enqueue.
func ParseHeaders(source string, data []byte) ([]byte, error) {
	var headers map[string]string
	if err := json.Unmarshal(data, &headers); err != nil || headers == nil {
		return nil, operator.Unclear("%s is no JSON object of strings", source)
	}
	total := 0
	for k, v := range headers {
		total += len(k) + len(v)
		switch {
		case k == "" || len(k) > maxHeaderName:
			return nil, operator.Unclear("a name has 1 to %d bytes, %q has %d", maxHeaderName, k, len(k))
		case outbox.ReservedHeader(k):
			return nil, operator.Unclear("%q is reserved by the wire contract", k)
		}
	}
	if total > MaxHeaders {
		return nil, operator.Unclear("more than %s in names and values", terminal.Size(MaxHeaders))
	}
	return json.Marshal(headers)
}
