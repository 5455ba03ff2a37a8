package fingerprint

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/record"
)

// Config says what tells the events of a source from one another.
type Config struct {
	// Namespace names the source, as in [record.TimelessKey]: [a-z][a-z0-9._-]{0,62}.
	// Required; never change it.
	Namespace string
	// Type is the event type of all that the source says. Required.
	Type string
	// Fields are the members of a message by which an event is known, as JSON pointers
	// (RFC 6901) through objects: /order/id. Each must be there, if only with null,
	// because a name that is nowhere would make one event of all. Choose what every
	// copy of an event has, and no other event: leave out when it was sent, and how
	// often. Default none: the whole message.
	Fields []string
	// Unicode is the form in which names and strings are compared. Default [AsWritten].
	Unicode Form
}

// Source makes events of messages without a key. It does not change, and is safe for
// concurrent use.
type Source struct {
	config Config
	fields [][]string
}

// New checks the configuration.
func New(cfg Config) (*Source, error) {
	s := &Source{config: cfg}
	if _, err := record.TimelessKey(cfg.Namespace, "any"); err != nil {
		return nil, fmt.Errorf("config: Namespace: %w", err)
	}
	if n := len(cfg.Type); n == 0 || n > record.MaxType || !utf8.ValidString(cfg.Type) ||
		strings.Contains(cfg.Type, "\x00") {
		return nil, fmt.Errorf("config: Type %.120q: want 1 to %d bytes of UTF-8 text without NUL", cfg.Type, record.MaxType)
	}
	if f := cfg.Unicode; f != AsWritten && f != NFC && f != NFKC {
		return nil, fmt.Errorf("config: Unicode %q: want %q, %s or %s", f, AsWritten, NFC, NFKC)
	}
	for i, field := range cfg.Fields {
		path, err := pointer(field)
		if err != nil {
			return nil, fmt.Errorf("config: Fields[%d]: %q: %w", i, field, err)
		}
		for j := range path {
			path[j] = cfg.Unicode.of(path[j])
		}
		s.fields = append(s.fields, path)
	}
	return s, nil
}

// What stands for / and ~ in a name, and for nothing where it is looked for others.
var (
	unescape = strings.NewReplacer("~1", "/", "~0", "~")
	removed  = strings.NewReplacer("~1", "", "~0", "")
)

// pointer is the path of a JSON pointer.
func pointer(text string) ([]string, error) {
	path, ok := strings.CutPrefix(text, "/")
	if !ok || strings.Contains(removed.Replace(path), "~") {
		return nil, errors.New("want a JSON pointer, /order/id; / in a name is ~1, and ~ is ~0")
	}
	names := strings.Split(path, "/")
	for i, name := range names {
		names[i] = unescape.Replace(name)
	}
	return names, nil
}

// Window is the class of event types that fingerprints tell: copies that arrive within
// one window of each other are one event, those that arrive two windows apart are two.
// Choose it longer than the source goes on sending copies, and shorter than it takes to
// say the same again and mean it. 1 minute to 31 days. Func handlers are refused for it: see
// the package comment.
func Window(pattern string, window time.Duration) consumer.Class {
	return consumer.Class{Pattern: pattern, Window: window, Keyed: consumer.ByArrival, Content: true}
}

// Event makes the event of a message. AggregateID is what it is about and the message
// does not say, such as the device behind a connection; it counts like a field, and may
// be empty. Payload is the chosen fields, each where it was, in their normal form: what
// is not in it may differ from copy to copy, so that no effect should hang on it. An
// error matches [consumer.ErrEvent]: the message has no normal form, or lacks a field.
func (s *Source) Event(aggregateID string, message []byte) (record.Event, error) {
	value, err := parse(message, s.config.Unicode)
	if err == nil {
		value, err = s.choose(value)
	}
	ev := record.Event{Type: s.config.Type, AggregateID: aggregateID, ContentType: "application/json"}
	if err == nil {
		ev.Payload, err = normal(value)
	}
	if err == nil {
		ev.Key, err = record.TimelessKey(s.config.Namespace, ev.Fingerprint().String())
	}
	if err != nil {
		return record.Event{}, fmt.Errorf("%w: message of %s: %w", consumer.ErrEvent, s.config.Namespace, err)
	}
	return ev, nil
}

// Read is a [consumer.RecordReader] that takes every record for its own: put it
// behind the others, and where a group reads several topics call it for this one's
// records only. AggregateID is the record's key; consumer.Event.Record has the record
// as it was.
func (s *Source) Read(rec record.Record) (ev record.Event, mine bool, err error) {
	ev, err = s.Event(string(rec.Key), rec.Value)
	return ev, true, err
}

// choose copies the chosen fields.
func (s *Source) choose(value any) (any, error) {
	if len(s.fields) == 0 {
		return value, nil
	}
	chosen := make(map[string]any)
	for i, path := range s.fields {
		if !choose(chosen, value, path) {
			return nil, fmt.Errorf("the field %s is not there", s.config.Fields[i])
		}
	}
	return chosen, nil
}

// choose copies what is at a path.
func choose(to map[string]any, value any, path []string) bool {
	from, _ := value.(map[string]any)
	member, there := from[path[0]]
	if !there {
		return false
	}
	if len(path) == 1 {
		to[path[0]] = member
		return true
	}
	inner, _ := to[path[0]].(map[string]any)
	inner = maps.Clone(inner) // it may be the message's own, of a shorter path
	if inner == nil {
		inner = make(map[string]any)
	}
	to[path[0]] = inner
	return choose(inner, member, path[1:])
}
