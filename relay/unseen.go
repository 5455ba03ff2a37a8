package relay

import (
	"slices"
	"strconv"
	"strings"

	"github.com/onceward/onceward/cdc"
)

// unseen are the transactions that were read and that no snapshot has seen yet.
// A commit can be read before it is visible: one that waits for its synchronous
// standby, or whose process has not come to run again. Its rows would be called
// pending until the next event comes, if no other snapshot were taken.
type unseen struct {
	read []uint64 // since the last snapshot, or left over by it
}

// maxAhead is how far beyond a snapshot's end a transaction id can be that is not
// forged: further than all transactions that are open at a time.
const maxAhead = 1 << 31

// add notes the transaction of an item. Of one that was forged nothing is to be
// believed.
func (u *unseen) add(it *cdc.Item) {
	var id uint64
	switch {
	case it.Bad != nil:
		return
	case it.Control != nil:
		id = it.Control.TxID
	case it.Row != nil:
		id = it.Row.TxID
	}
	if n := len(u.read); id != 0 && (n == 0 || u.read[n-1] != id) {
		u.read = append(u.read, id)
	}
}

// left returns those of the transactions that are not visible in a snapshot, each
// once. It is exact: a long transaction of somebody else, which keeps the
// snapshot's xmin down, is none of them.
func left(read []uint64, snapshot string) []uint64 {
	xmin, xmax, open := parseSnapshot(snapshot)
	if open == nil {
		return nil
	}
	out := read[:0]
	for _, id := range read {
		if id >= xmin && id < xmax+maxAhead && (id >= xmax || open[id]) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// aheadAtStart is how many transactions that wait for a standby may have begun
// after the last one that has ended, when a session begins.
const aheadAtStart = 16

// openAt returns the transactions that may be open at a snapshot.
func openAt(snapshot string) (ids []uint64) {
	_, xmax, open := parseSnapshot(snapshot)
	for id := range open {
		ids = append(ids, id)
	}
	for id := xmax; id < xmax+aheadAtStart && xmax > 0; id++ {
		ids = append(ids, id)
	}
	return ids
}

// parseSnapshot reads the text of a pg_snapshot: xmin:xmax:xid,xid,…
func parseSnapshot(text string) (xmin, xmax uint64, open map[uint64]bool) {
	parts := strings.SplitN(text, ":", 3)
	if len(parts) < 3 {
		return 0, 0, nil
	}
	xmin, _ = strconv.ParseUint(parts[0], 10, 64) // PostgreSQL made it
	xmax, _ = strconv.ParseUint(parts[1], 10, 64)
	open = make(map[uint64]bool)
	for xid := range strings.SplitSeq(parts[2], ",") {
		if id, err := strconv.ParseUint(xid, 10, 64); err == nil {
			open[id] = true
		}
	}
	return xmin, xmax, open
}

// takeUnseen returns what was read since the last call.
func (b *books) takeUnseen() []uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	read := b.unseen.read
	b.unseen.read = nil
	return read
}
