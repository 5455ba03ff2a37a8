package sink

import (
	"fmt"
	"strconv"
)

// Shape is how the events of a stage are spread.
type Shape struct {
	// Keys is how many keys (aggregates) they have. The events of one are those whose numbers have
	// one remainder.
	Keys int
	// Topics is how many topics a side writes: the aggregate's type chooses, which follows from its
	// key. 0 is one topic whatever the type.
	Topics int
	// Partitions of each topic.
	Partitions int
	// Blocks of 64 bytes that a payload has beside the usual ones.
	Blocks int
}

// Usual is the shape of every stage but those of curves and of large payloads.
var Usual = Shape{Keys: 10_000, Partitions: 12}

// Key is the key of an event.
func (s Shape) Key(number int) string { return "a-" + strconv.Itoa(number%s.Keys) }

// KeySQL is an expression for the key of number n, n being the name of a column.
func (s Shape) KeySQL(n string) string { return fmt.Sprintf(`'a-' || (%s %% %d)`, n, s.Keys) }

// aggregateType is that of every aggregate where there is one topic, and what all begin with.
const aggregateType = "order"

// TypeSQL is an expression for the aggregate type of number n.
func (s Shape) TypeSQL(n string) string {
	if s.Topics == 0 {
		return "'" + aggregateType + "'"
	}
	return fmt.Sprintf(`'%s-' || (%s %% %d %% %d)`, aggregateType, n, s.Keys, s.Topics)
}

// All is how many partitions a side writes.
func (s Shape) All() int { return max(1, s.Topics) * s.Partitions }

// names are the topics of a side.
func (s Shape) names(side string) []string {
	if s.Topics == 0 {
		return []string{side}
	}
	names := make([]string, s.Topics)
	for i := range names {
		names[i] = fmt.Sprintf("%s.%s-%d", side, aggregateType, i)
	}
	return names
}
