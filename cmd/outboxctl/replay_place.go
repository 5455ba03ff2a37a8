package main

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// rowPlace is a place among the rows in the order in which they were written. Rows
// may share a seq, or have one that is not positive, where somebody named it.
type rowPlace struct {
	seq int64
	id  uuid.UUID
}

// beforeAll is before every row.
var beforeAll = rowPlace{seq: math.MinInt64}

// readRowPlace reads SEQ/ID, and SEQ alone as the place behind all rows of it.
func readRowPlace(text string) (rowPlace, error) {
	if text == "" {
		return beforeAll, nil
	}
	number, id, both := strings.Cut(text, "/")
	seq, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return rowPlace{}, fmt.Errorf("read the seq of %q: %w", text, err)
	}
	if !both {
		return rowPlace{seq, uuid.Max}, nil
	}
	p := rowPlace{seq: seq}
	if p.id, err = uuid.Parse(id); err != nil {
		return rowPlace{}, fmt.Errorf("read the id of %q: %w", text, err)
	}
	return p, nil
}

// before reports whether the row comes behind the place.
func (p rowPlace) before(seq int64, id uuid.UUID) bool {
	return p.seq < seq || p.seq == seq && bytes.Compare(p.id[:], id[:]) < 0
}

// String is what readRowPlace reads.
func (p rowPlace) String() string {
	if p == beforeAll {
		return ""
	}
	return fmt.Sprintf("%d/%s", p.seq, p.id)
}
