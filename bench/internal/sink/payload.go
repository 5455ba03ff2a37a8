package sink

import (
	"bytes"
	"fmt"
	"strconv"
)

// Payload is what every event of the benchmark holds: its number, counted over all of a stage
// from 0. What belongs to one key follows from it, so that a reader can tell what is missing,
// doubled or out of order without having seen what was written.
type Payload struct {
	Number int
	Pad    int // bytes that fill it up
}

// Bytes is the event's payload.
func (p Payload) Bytes() []byte {
	return append(append(append([]byte(before), strconv.Itoa(p.Number)...), between...),
		append(bytes.Repeat([]byte("x"), p.Pad), after...)...)
}

// The parts of a payload. [SQL] writes the same.
const (
	before  = `{"number":`
	between = `,"pad":"`
	after   = `"}`
)

// SQL is an expression that PostgreSQL makes the payload of number n with, n being the
// name of a column, and pad the number of bytes that fill it up.
func SQL(n string, pad int) string {
	return fmt.Sprintf(`pg_catalog.convert_to('%s' || %s || '%s%s%s', 'UTF8')`, before, n, between,
		bytes.Repeat([]byte("x"), pad), after)
}

// Number reads a payload's number.
func Number(payload []byte) (int, error) {
	rest, ok := bytes.CutPrefix(payload, []byte(before))
	digits, _, found := bytes.Cut(rest, []byte(between))
	if !ok || !found {
		return 0, fmt.Errorf("read a record: %.60q is no payload of the benchmark", payload)
	}
	return strconv.Atoi(string(digits))
}

// Keys is how many keys (aggregates) the events of a stage have.
const Keys = 10_000

// Key is the key of an event. Its events are those whose numbers have one remainder.
func Key(number int) string { return "a-" + strconv.Itoa(number%Keys) }

// KeySQL is an expression for the key of number n.
func KeySQL(n string) string { return fmt.Sprintf(`'a-' || (%s %% %d)`, n, Keys) }
