package snapshot

import (
	"slices"

	"github.com/onceward/onceward/cdc"
)

// Unseen are the transactions that were read and that no snapshot has seen yet.
// A commit can be read before it is visible: one that waits for its synchronous
// standby, or whose process has not come to run again. Its rows would be called
// pending until the next event comes, if no other snapshot were taken.
type Unseen struct {
	read []uint64 // since the last snapshot, or left over by it
}

// maxAhead is how far beyond a snapshot's end a transaction id can be that is not
// forged: further than all transactions that are open at a time.
const maxAhead = 1 << 31

// Add notes the transaction of an item. Of one that was forged nothing is to be
// believed.
func (u *Unseen) Add(it *cdc.Item) {
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

// Take returns what was read since the last call.
func (u *Unseen) Take() []uint64 {
	read := u.read
	u.read = nil
	return read
}

// left returns those of the transactions that are not visible in a snapshot, each
// once. It is exact: a long transaction of somebody else, which keeps the
// snapshot's xmin down, is none of them.
func left(read []uint64, snapshot string) []uint64 {
	v, err := Parse(snapshot)
	if err != nil {
		return nil
	}
	out := read[:0]
	for _, id := range read {
		if !v.Sees(id) && id < v.xmax+maxAhead {
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
	v, _ := Parse(snapshot) // PostgreSQL made it
	ids = v.running
	for id := v.xmax; id < v.xmax+aheadAtStart && v.xmax > 0; id++ {
		ids = append(ids, id)
	}
	return ids
}
