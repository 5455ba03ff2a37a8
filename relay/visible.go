package relay

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// visible is a pg_snapshot that answers without the server: which transactions
// had ended when it was taken. The zero value sees none. It is pure.
type visible struct {
	xmin, xmax uint64
	running    []uint64 // between the two, ascending
}

// parseVisible reads the text form, xmin:xmax:xip,xip,…
func parseVisible(text string) (visible, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return visible{}, fmt.Errorf("parse snapshot %q: want xmin:xmax:list", clipText(text))
	}
	var v visible
	var err error
	if v.xmin, err = strconv.ParseUint(parts[0], 10, 64); err != nil {
		return visible{}, fmt.Errorf("parse snapshot %q: xmin: %w", clipText(text), err)
	}
	if v.xmax, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		return visible{}, fmt.Errorf("parse snapshot %q: xmax: %w", clipText(text), err)
	}
	if parts[2] == "" {
		return v, nil
	}
	for part := range strings.SplitSeq(parts[2], ",") {
		xid, err := strconv.ParseUint(part, 10, 64)
		if err != nil {
			return visible{}, fmt.Errorf("parse snapshot %q: list: %w", clipText(text), err)
		}
		v.running = append(v.running, xid)
	}
	slices.Sort(v.running)
	return v, nil
}

// sees is pg_visible_in_snapshot.
func (v visible) sees(xid uint64) bool {
	if xid < v.xmin {
		return true
	}
	if xid >= v.xmax {
		return false
	}
	_, ran := slices.BinarySearch(v.running, xid)
	return !ran
}
