package sink

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// A payload is JSON, as services write it: the event's number, counted over all of a stage from
// 0, and beside it names that are the same in each and identifiers that are not, so that it is
// compressed as such things are. What belongs to one key follows from the number, so that a
// reader can tell what is missing, doubled or out of order without having seen what was written.
// Its parts are the same in [Payload] and in [Shape.PayloadSQL]; an identifier stands between two.
var parts = [...]string{
	`,"customer":"`,
	`","currency":"EUR","status":"changed","lines":[{"sku":"`,
	`","quantity":1,"cents":1999},{"sku":"`,
	`","quantity":2,"cents":500}],"warehouse":"north","priority":"normal","channel":"web","trace":"`,
	`"}`,
}

// before the number.
const before = `{"number":`

// PayloadBytes is the length of a payload, but for the digits of its number.
const PayloadBytes = 339

// Payload is the payload of an event without blocks.
func Payload(number int) []byte {
	text := strconv.AppendInt([]byte(before), int64(number), 10)
	for i, part := range parts {
		text = append(text, part...)
		if i < len(parts)-1 {
			text = fmt.Appendf(text, "%016x%016x", mix(number, 2*i), mix(number, 2*i+1))
		}
	}
	return text
}

// mix makes bits that nothing compresses (SplitMix64).
func mix(number, i int) uint64 {
	z := uint64(number)<<3 + uint64(i) + 1
	z *= 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// A payload with blocks has them in a member of their own. Half of a block is the same in each.
const (
	moreBlocks = `","more":"`
	blockWords = "words-that-stand-in-every-block-"
	blockBytes = 64
)

// PayloadSQL is an expression that PostgreSQL makes the payload of number n with, n being the name
// of a column. Its identifiers are others than those of [Payload].
func (s Shape) PayloadSQL(n string) string {
	terms := []string{"'" + before + "'", n}
	for i, part := range parts {
		if i == len(parts)-1 && s.Blocks > 0 {
			terms = append(terms, "'"+moreBlocks+"'", fmt.Sprintf(`(SELECT pg_catalog.string_agg('%s' || pg_catalog.md5(b || '-' || %s), '')
				FROM pg_catalog.generate_series(1, %d) b)`, blockWords, n, s.Blocks))
		}
		terms = append(terms, "'"+part+"'")
		if i < len(parts)-1 {
			terms = append(terms, fmt.Sprintf("pg_catalog.md5('%d-' || %s)", i, n))
		}
	}
	return "pg_catalog.convert_to(" + strings.Join(terms, " || ") + ", 'UTF8')"
}

// Number reads a payload's number.
func (s Shape) Number(payload []byte) (int, error) {
	rest, ok := bytes.CutPrefix(payload, []byte(before))
	digits, _, found := bytes.Cut(rest, []byte(parts[0]))
	if !ok || !found {
		return 0, fmt.Errorf("read a record: %.60q is no payload of the benchmark", payload)
	}
	want := len(before) + len(digits) + behind
	if s.Blocks > 0 {
		want += len(moreBlocks) + blockBytes*s.Blocks
	}
	if len(payload) != want || !bytes.HasSuffix(payload, []byte(parts[len(parts)-1])) {
		return 0, fmt.Errorf("read a record: the payload with number %s has %d bytes, of %d", digits, len(payload), want)
	}
	return strconv.Atoi(string(digits))
}

// behind is how many bytes stand behind the number of a usual payload.
var behind = len(Payload(0)) - len(before) - 1
