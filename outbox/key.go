package outbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// DefaultKeySkew is how far the event time of a key may lie ahead of the
// clock that judges it: 5 minutes.
const DefaultKeySkew = 5 * time.Minute

// NoSkewLimit, given to [ParseKeyAt], accepts any event time from 2015 on.
// The consumer uses it, because there a time in the future is an outcome of
// its own and not a malformed key.
const NoSkewLimit = time.Duration(1<<63 - 1)

// maxNamespace is the longest namespace in bytes.
const maxNamespace = 63

// firstEventTime is the oldest event time that a key may carry. It catches
// seconds taken for milliseconds and clocks that were never set.
var firstEventTime = time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC)

// Key is an idempotency key: the namespace of the producing service and a UUID
// whose first 48 bits are the event time in Unix milliseconds. Its text form is
// `<namespace>:<uuid>`, e.g. `payments:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a`.
//
// The zero Key is not valid; make one with [NewKey], [ParseKey] or [KeyFrom].
// Keys are comparable with ==.
type Key struct {
	namespace string
	id        uuid.UUID
}

// KeyRule names the rule of the key format that an input broke.
type KeyRule string

// The rules of the key format, in the order in which they are checked.
const (
	RuleSeparator KeyRule = "separator" // one colon between namespace and UUID
	RuleNamespace KeyRule = "namespace" // [a-z][a-z0-9._-]{0,62}
	RuleUUID      KeyRule = "uuid"      // 36 characters, lower case, 8-4-4-4-12
	RuleVariant   KeyRule = "variant"   // RFC 9562
	RuleVersion   KeyRule = "version"   // 7 or 8
	RulePast      KeyRule = "past"      // event time not before 2015
	RuleFuture    KeyRule = "future"    // event time at most the skew ahead
)

// KeyError says which rule of the key format an input broke, and how.
type KeyError struct {
	Input  string  // what was given, cut to 120 bytes
	Rule   KeyRule // the first rule that failed
	Detail string  // what was found and what is wanted
}

// Error implements error.
func (e *KeyError) Error() string {
	return fmt.Sprintf("key %q: %s: %s", e.Input, e.Rule, e.Detail)
}

// ErrKey is matched, through [errors.Is], by every [KeyError].
var ErrKey = errors.New("malformed idempotency key")

// Is reports whether target is [ErrKey].
func (e *KeyError) Is(target error) bool { return target == ErrKey }

// NewKey returns a new random key (UUIDv7) of the namespace with the current
// time as event time. Make one per logical event, once, before the
// transaction, and keep it when the transaction is tried again: that is what
// makes the second try a [Duplicate]. The error is a [*KeyError] when the
// namespace is not valid, or the failure of the system's random source.
func NewKey(namespace string) (Key, error) {
	if err := checkNamespace(namespace, namespace); err != nil {
		return Key{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Key{}, fmt.Errorf("make key: %w", err)
	}
	return Key{namespace: namespace, id: id}, nil
}

// ParseKey parses the text form of a key against the clock of this machine
// with [DefaultKeySkew]. It is strict: see [KeyRule]. The error is a [*KeyError].
func ParseKey(s string) (Key, error) {
	return ParseKeyAt(s, time.Now(), DefaultKeySkew)
}

// ParseKeyAt is [ParseKey] against the given clock reading and skew. It is
// pure. With [NoSkewLimit] no event time is too far ahead.
func ParseKeyAt(s string, now time.Time, skew time.Duration) (Key, error) {
	namespace, text, ok := strings.Cut(s, ":")
	if !ok {
		return Key{}, keyError(s, RuleSeparator, "no colon found; the form is <namespace>:<uuid>")
	}
	if err := checkNamespace(s, namespace); err != nil {
		return Key{}, err
	}
	if len(text) != 36 || strings.ToLower(text) != text {
		return Key{}, keyError(s, RuleUUID, "want 36 lower-case characters in the form 8-4-4-4-12 after the colon")
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return Key{}, keyError(s, RuleUUID, "want hexadecimal digits in the form 8-4-4-4-12 after the colon")
	}
	if err := checkID(s, id, now, skew); err != nil {
		return Key{}, err
	}
	return Key{namespace: namespace, id: id}, nil
}

// KeyFrom puts a key together from its two stored parts, as an outbox row
// holds them, under the same rules as [ParseKeyAt].
func KeyFrom(namespace string, id uuid.UUID, now time.Time, skew time.Duration) (Key, error) {
	k := Key{namespace: namespace, id: id}
	if err := checkNamespace(k.String(), namespace); err != nil {
		return Key{}, err
	}
	if err := checkID(k.String(), id, now, skew); err != nil {
		return Key{}, err
	}
	return k, nil
}

// Namespace returns the producing service's name.
func (k Key) Namespace() string { return k.namespace }

// UUID returns the part that the outbox table has as its primary key.
func (k Key) UUID() uuid.UUID { return k.id }

// Time returns the event time, in UTC, to the millisecond.
func (k Key) Time() time.Time { return IDTime(k.id) }

// IsZero reports whether k is the zero Key, which no event may carry.
func (k Key) IsZero() bool { return k == Key{} }

// String returns the text form.
func (k Key) String() string { return k.namespace + ":" + k.id.String() }

// MarshalText implements [encoding.TextMarshaler] with the text form.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler] with [ParseKey].
func (k *Key) UnmarshalText(text []byte) error {
	parsed, err := ParseKey(string(text))
	if err != nil {
		return err
	}
	*k = parsed
	return nil
}

// IDTime returns the event time in the first 48 bits of a key's UUID, in UTC.
func IDTime(id uuid.UUID) time.Time {
	ms := int64(binary.BigEndian.Uint64(id[:8]) >> 16)
	return time.UnixMilli(ms).UTC()
}

// FirstID returns the smallest UUID whose event time is at or after t: the
// bound between the partitions that meet at t.
func FirstID(t time.Time) uuid.UUID {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(t.UnixMilli())<<16)
	return id
}

func checkNamespace(input, namespace string) error {
	if namespace == "" {
		return keyError(input, RuleNamespace, "the namespace is empty; name the producing service")
	}
	if len(namespace) > maxNamespace {
		return keyError(input, RuleNamespace, fmt.Sprintf("%d bytes long, at most %d are allowed", len(namespace), maxNamespace))
	}
	for i := range len(namespace) {
		c := namespace[i]
		lower := c >= 'a' && c <= 'z'
		inner := c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
		if !lower && (i == 0 || !inner) {
			return keyError(input, RuleNamespace, fmt.Sprintf("byte %d (%q) is not allowed; want [a-z][a-z0-9._-]{0,62}", i, c))
		}
	}
	return nil
}

func checkID(input string, id uuid.UUID, now time.Time, skew time.Duration) error {
	if id.Variant() != uuid.RFC4122 {
		return keyError(input, RuleVariant, fmt.Sprintf("variant %s found, want that of RFC 9562", id.Variant()))
	}
	if v := id.Version(); v != 7 && v != 8 {
		return keyError(input, RuleVersion, fmt.Sprintf("version %d found, want 7 (NewKey) or 8 (a derived key)", v))
	}
	at := IDTime(id)
	if at.Before(firstEventTime) {
		return keyError(input, RulePast, fmt.Sprintf("event time %s is before 2015; are these milliseconds?", at.Format(time.RFC3339)))
	}
	if skew != NoSkewLimit && at.After(now.Add(skew)) {
		return keyError(input, RuleFuture, fmt.Sprintf("event time %s is more than %s ahead of %s", at.Format(time.RFC3339), skew, now.UTC().Format(time.RFC3339)))
	}
	return nil
}

func keyError(input string, rule KeyRule, detail string) *KeyError {
	if len(input) > 120 {
		input = input[:120]
	}
	return &KeyError{Input: input, Rule: rule, Detail: detail}
}
