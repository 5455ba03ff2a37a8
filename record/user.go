package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/onceward/onceward/outbox"
)

// appendUserHeaders adds the headers of a row, given as the text of a JSON
// object of strings, sorted by name. Names and values without escapes are
// slices of text, so that the common case allocates nothing. Whatever is not an
// object of strings is a [RowError] with its JSON path.
func appendUserHeaders[H Bytes](headers []H, text []byte) ([]H, error) {
	first := len(headers)
	headers, err := parseUserHeaders(headers, text)
	if err != nil {
		return nil, err
	}
	// jsonb keeps its keys by length first, other writers in any order.
	users := headers[first:]
	slices.SortFunc(users, func(a, b H) int { return bytes.Compare(pair(a).Key, pair(b).Key) })
	for i := 1; i < len(users); i++ {
		if name := pair(users[i]).Key; bytes.Equal(pair(users[i-1]).Key, name) {
			return nil, headerError(name, "this name appears twice")
		}
	}
	return headers, nil
}

func parseUserHeaders[H Bytes](headers []H, text []byte) ([]H, error) {
	s := jsonScanner{rest: text}
	if !s.accept('{') {
		return nil, headerError(nil, "want an object of strings, found "+s.kind())
	}
	if s.accept('}') {
		return headers, s.end()
	}
	for {
		name, ok := s.string()
		if !ok {
			return nil, headerError(nil, "malformed name")
		}
		if err := checkName(name); err != nil {
			return nil, err
		}
		if !s.accept(':') {
			return nil, headerError(name, "no colon after the name")
		}
		if kind := s.kind(); kind != "a string" {
			return nil, headerError(name, "want a string, found "+kind)
		}
		value, ok := s.string()
		if !ok {
			return nil, headerError(name, "malformed string")
		}
		headers = append(headers, H(pair{name, value}))
		if s.accept('}') {
			return headers, s.end()
		}
		if !s.accept(',') {
			return nil, headerError(name, "want a comma or the end of the object after the value")
		}
	}
}

func checkName(name []byte) error {
	if len(name) == 0 {
		return headerError(name, "a header needs a name")
	}
	if outbox.ReservedHeader(string(name)) {
		return headerError(name, "reserved by the wire contract; choose another name")
	}
	return nil
}

// headerError points at the header of this name; nil is the object itself.
func headerError(name []byte, detail string) error {
	path := "$"
	if name != nil {
		path = "$[" + quoted(name) + "]"
	}
	return &RowError{Field: "headers", Path: path, Detail: detail}
}

// quoted is the beginning of a text that a row has, for an error: without backquotes, since
// what stands between these is, to who reads it, a command of ours.
func quoted(text []byte) string {
	return strings.ReplaceAll(fmt.Sprintf("%.120q", text), "`", "'")
}

// jsonScanner reads the few tokens of a flat object of strings.
type jsonScanner struct{ rest []byte }

func (s *jsonScanner) space() {
	for len(s.rest) > 0 && (s.rest[0] == ' ' || s.rest[0] == '\t' || s.rest[0] == '\n' || s.rest[0] == '\r') {
		s.rest = s.rest[1:]
	}
}

// accept consumes c, and white space before it, when it comes next.
func (s *jsonScanner) accept(c byte) bool {
	s.space()
	if len(s.rest) == 0 || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

// kind names what comes next, for an error.
func (s *jsonScanner) kind() string {
	s.space()
	if len(s.rest) == 0 {
		return "nothing"
	}
	switch s.rest[0] {
	case '"':
		return "a string"
	case '{':
		return "an object"
	case '[':
		return "an array"
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	}
	return "a number"
}

// string consumes a string and returns its value.
func (s *jsonScanner) string() ([]byte, bool) {
	if !s.accept('"') {
		return nil, false
	}
	for i := 0; i < len(s.rest); i++ {
		switch c := s.rest[i]; {
		case c == '"':
			value := s.rest[:i:i]
			s.rest = s.rest[i+1:]
			return value, utf8.Valid(value)
		case c == '\\':
			return s.escaped()
		case c < ' ':
			return nil, false
		}
	}
	return nil, false
}

// escaped reads a string that has escapes, whose opening quote is consumed. The
// library knows about surrogates, and allocates.
func (s *jsonScanner) escaped() ([]byte, bool) {
	end := closingQuote(s.rest)
	if end < 0 || !utf8.Valid(s.rest[:end]) {
		return nil, false
	}
	token := make([]byte, 0, end+2)
	token = append(append(append(token, '"'), s.rest[:end]...), '"')
	var value string
	if err := json.Unmarshal(token, &value); err != nil {
		return nil, false
	}
	s.rest = s.rest[end+1:]
	return []byte(value), true
}

func closingQuote(text []byte) int {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++ // the next byte cannot end the string
		case '"':
			return i
		}
	}
	return -1
}

// end refuses text after the object.
func (s *jsonScanner) end() error {
	if s.space(); len(s.rest) > 0 {
		return headerError(nil, "text after the end of the object")
	}
	return nil
}
