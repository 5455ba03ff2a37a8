package snapshot

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/onceward/onceward/internal/label"
)

// None is a snapshot in which nothing is visible.
const None = "1:1:"

// Visible is a pg_snapshot that answers without the server: which transactions
// had ended when it was taken. The zero value sees none. It is pure.
type Visible struct {
	xmin, xmax uint64
	running    []uint64 // between the two, ascending
}

// Parse reads the text form, xmin:xmax:xip,xip,…
func Parse(text string) (Visible, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return Visible{}, fmt.Errorf("parse snapshot %q: want xmin:xmax:list", label.Short(text))
	}
	var v Visible
	var err error
	if v.xmin, err = strconv.ParseUint(parts[0], 10, 64); err != nil {
		return Visible{}, fmt.Errorf("parse snapshot %q: xmin: %w", label.Short(text), err)
	}
	if v.xmax, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		return Visible{}, fmt.Errorf("parse snapshot %q: xmax: %w", label.Short(text), err)
	}
	if parts[2] == "" {
		return v, nil
	}
	for part := range strings.SplitSeq(parts[2], ",") {
		xid, err := strconv.ParseUint(part, 10, 64)
		if err != nil {
			return Visible{}, fmt.Errorf("parse snapshot %q: list: %w", label.Short(text), err)
		}
		v.running = append(v.running, xid)
	}
	slices.Sort(v.running)
	return v, nil
}

// End is the first transaction id of which it sees nothing, as of any later one.
func (v Visible) End() uint64 { return v.xmax }

// Sees is pg_visible_in_snapshot.
func (v Visible) Sees(xid uint64) bool {
	if xid < v.xmin {
		return true
	}
	if xid >= v.xmax {
		return false
	}
	_, ran := slices.BinarySearch(v.running, xid)
	return !ran
}
