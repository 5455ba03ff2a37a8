package record

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// StoreHeaders writes headers, for a dead letter, as a JSON array of pairs, name and
// base64 value, in their order; a null value is null. A name that jsonb cannot hold, or that
// begins with a quotation mark, is written as a quoted string of Go, so that no
// record is too odd to be kept and none is read back as another.
func StoreHeaders(headers []Header) ([]byte, error) {
	pairs := make([][2]any, len(headers))
	for i, h := range headers {
		name := h.Name
		if !isText(name) || strings.HasPrefix(name, `"`) {
			name = strconv.QuoteToASCII(name)
		}
		pairs[i][0] = name
		if h.Value != nil {
			pairs[i][1] = h.Value
		}
	}
	b, err := json.Marshal(pairs)
	if err != nil {
		return nil, fmt.Errorf("encode record headers: %w", err)
	}
	return b, nil
}

// LoadHeaders reads what [StoreHeaders] has written.
func LoadHeaders(stored []byte) ([]Header, error) {
	var pairs [][]json.RawMessage
	if err := json.Unmarshal(stored, &pairs); err != nil {
		return nil, fmt.Errorf("decode record headers: %w", err)
	}
	headers := make([]Header, len(pairs))
	for i, pair := range pairs {
		if err := headers[i].decode(pair); err != nil {
			return nil, fmt.Errorf("decode record header %d: %w", i, err)
		}
	}
	return headers, nil
}

func (h *Header) decode(pair []json.RawMessage) error {
	if len(pair) != 2 {
		return fmt.Errorf("%d parts, want name and value", len(pair))
	}
	if err := json.Unmarshal(pair[0], &h.Name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	if err := json.Unmarshal(pair[1], &h.Value); err != nil {
		return fmt.Errorf("value of %q: %w", h.Name, err)
	}
	if !strings.HasPrefix(h.Name, `"`) {
		return nil
	}
	name, err := strconv.Unquote(h.Name)
	if err != nil {
		return fmt.Errorf("name %q: %w", h.Name, err)
	}
	h.Name = name
	return nil
}
