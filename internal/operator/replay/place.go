package replay

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Place is a place among the rows in the order in which they were written. Rows
// may share a seq, or have one that is not positive, where somebody named it.
type Place struct {
	seq int64
	id  uuid.UUID
}

// beforeAll is before every row.
var beforeAll = Place{seq: math.MinInt64}

// ParsePlace reads SEQ/ID, and SEQ alone as the place behind all rows of it.
func ParsePlace(text string) (Place, error) {
	if text == "" {
		return beforeAll, nil
	}
	number, id, both := strings.Cut(text, "/")
	seq, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return Place{}, fmt.Errorf("read the seq of %q: %w", text, err)
	}
	if !both {
		return Place{seq, uuid.Max}, nil
	}
	p := Place{seq: seq}
	if p.id, err = uuid.Parse(id); err != nil {
		return Place{}, fmt.Errorf("read the id of %q: %w", text, err)
	}
	return p, nil
}

// before reports whether the row comes behind the place.
func (p Place) before(seq int64, id uuid.UUID) bool {
	return p.seq < seq || p.seq == seq && bytes.Compare(p.id[:], id[:]) < 0
}

// String is what ParsePlace reads.
func (p Place) String() string {
	if p == beforeAll {
		return ""
	}
	return fmt.Sprintf("%d/%s", p.seq, p.id)
}
