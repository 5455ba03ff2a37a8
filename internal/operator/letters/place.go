package letters

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/onceward/onceward/internal/operator"
)

// Place is where the record of a letter was read.
type Place struct {
	Topic     string
	Partition int32
	Offset    int64
}

// String is what ParsePlace reads.
func (p Place) String() string { return fmt.Sprintf("%s/%d@%d", p.Topic, p.Partition, p.Offset) }

var placeForm = regexp.MustCompile(`^((?:from:)?[A-Za-z0-9._-]{1,249}(?:~[0-9a-f]{1,8})?)/([0-9]{1,10})@([0-9]{1,19})$`)

// PlaceExample says what a place looks like, for who gave something else.
const PlaceExample = "a place looks like orders.order/3@4711: topic, partition, offset; of an event from no topic like from:stripe/0@4711"

// ParsePlace reads TOPIC/PARTITION@OFFSET.
func ParsePlace(text string) (p Place, err error) {
	m := placeForm.FindStringSubmatch(text)
	if m == nil {
		return p, operator.Unclear("place %q: %s", text, PlaceExample)
	}
	partition, err1 := strconv.ParseInt(m[2], 10, 32)
	offset, err2 := strconv.ParseInt(m[3], 10, 64)
	if err1 != nil || err2 != nil {
		return p, operator.Unclear("place %q: partition or offset is out of range; %s", text, PlaceExample)
	}
	return Place{m[1], int32(partition), offset}, nil
}
