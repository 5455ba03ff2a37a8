package stream

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/outbox"
)

// madeRows are the rows that tests made: the outbox.
var madeRows sync.Map

// table is onceward.waiting in memory, which outlives sessions.
type table struct {
	most    int // items of a page; 3 at least
	crash   func(where string) error
	dead    func(id uuid.UUID) bool
	hidden  map[uuid.UUID]bool // committed and not visible
	settled func(control uuid.UUID, letters uint32)
	reopen  func(control uuid.UUID, from uint32)
	lanes   map[int32]ledger.Lane
	lastID  int32
	rows    []tableRow
	release int64 // under way; 0: none is
	set     []int32

	writes, pages, sorted int
	largest               int // rows at a time
}

type tableRow struct {
	lane   int32
	at     ledger.Place // letter: of a retry, those that are out
	id     uuid.UUID
	whole  *cdc.Item
	letter uint32

	mending bool
	repair  uuid.UUID
}

func newTable() *table {
	return &table{lanes: make(map[int32]ledger.Lane), crash: func(string) error { return nil }, dead: func(uuid.UUID) bool { return false }, settled: func(uuid.UUID, uint32) {}, reopen: func(uuid.UUID, uint32) {}}
}

func (k *table) write(_ context.Context, items []heldItem) error {
	if err := k.crash("before what is held is written"); err != nil {
		return err
	}
	k.writes++
	for _, h := range items {
		if h.lane.id == 0 {
			k.lastID++
			h.lane.id = k.lastID
			k.lanes[k.lastID] = h.lane.of
		}
		if slices.ContainsFunc(k.rows, func(r tableRow) bool { return r.lane == h.lane.id && r.at == h.at.Item() }) {
			panic("written twice: " + h.at.String())
		}
		if h.reopen != uuid.Nil {
			k.reopen(h.reopen, h.at.Letter)
		}
		k.rows = append(k.rows, tableRow{lane: h.lane.id, at: h.at.Item(), id: h.id, whole: h.whole, letter: h.at.Letter, mending: h.repairing, repair: h.repair})
	}
	k.largest = max(k.largest, len(k.rows))
	return k.crash("after what is held is written")
}

func (k *table) begin(_ context.Context, release int64, lanes []*heldLane) error {
	if err := k.crash("before a release"); err != nil {
		return err
	}
	if k.release != 0 {
		panic("two releases at a time")
	}
	k.release, k.set = release, laneIDs(lanes)
	return k.crash("after the begin of a release")
}

func (k *table) page(_ context.Context, w *heldLane, from ledger.Place) ([]heldItem, error) {
	k.pages++
	slices.SortFunc(k.rows, func(a, b tableRow) int { return a.at.Compare(b.at) })
	var items []heldItem
	for _, r := range k.rows {
		if r.lane != w.id || r.at.Before(from.Item()) || len(items) == max(3, k.most) {
			continue
		}
		h := heldItem{lane: w, at: r.at, id: r.id, whole: r.whole, repairing: r.mending, repair: r.repair}
		h.at.Letter = r.letter
		if row, ok := madeRows.Load(r.id); ok && r.whole == nil {
			h.row = row.(*outbox.Row)
		}
		switch {
		case k.dead(r.id):
			h.status = heldDead
		case r.whole == nil && k.hidden[r.id]:
			h.status = heldInvisible
		case r.whole == nil && h.row == nil:
			h.status = heldErased
		}
		items = append(items, h)
	}
	return items, nil
}

func (k *table) forget(_ context.Context, lanes []*heldLane, at ledger.Cursor) error {
	k.remove(laneIDs(lanes), at)
	return k.crash("after some is forgotten")
}

func (k *table) remove(lanes []int32, at ledger.Cursor) {
	k.rows = slices.DeleteFunc(k.rows, func(r tableRow) bool {
		i := slices.Index(lanes, r.lane)
		gone := i >= 0 && (i < at.Lane || i == at.Lane && r.at.Before(at.From.Item()))
		if gone && r.whole != nil && r.whole.Kind == cdc.KindControl {
			k.settled(r.id, math.MaxUint32)
		}
		return gone
	})
	for i := range k.rows {
		if r := &k.rows[i]; at.Lane < len(lanes) && r.lane == lanes[at.Lane] && r.at == at.From.Item() {
			r.letter = max(r.letter, at.From.Letter)
			k.settled(r.id, at.From.Letter)
		}
	}
}

func (k *table) end(_ context.Context, lanes []*heldLane, at ledger.Cursor) error {
	if err := k.crash("before the end of a release"); err != nil {
		return err
	}
	k.remove(laneIDs(lanes), at)
	for _, id := range laneIDs(lanes)[:at.Lane] {
		delete(k.lanes, id)
	}
	k.release = 0
	return k.crash("after the end of a release")
}

func (k *table) sort(_ context.Context, before pglogrepl.LSN) error {
	k.sorted++
	for lane := range k.lanes {
		var keys []int64
		var mine []*tableRow
		var upto int64
		slices.SortFunc(k.rows, func(a, b tableRow) int { return a.at.Compare(b.at) })
		for i := range k.rows {
			r := &k.rows[i]
			if r.lane != lane || r.at.Commit >= before {
				continue
			}
			var seq int64
			if row, ok := madeRows.Load(r.id); ok {
				seq = row.(*outbox.Row).Seq
			}
			if !r.mending {
				upto = max(upto, seq)
				seq = upto
			}
			keys, mine = append(keys, seq), append(mine, r)
		}
		order := make([]int, len(mine))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return int(keys[a] - keys[b]) })
		for rank, i := range order {
			mine[i].at = ledger.Place{Commit: before - 1, Ordinal: uint32(rank + 1)}
		}
	}
	return nil
}

func (k *table) drop(_ context.Context, h *heldItem) error {
	if err := k.crash("before what was given up is forgotten"); err != nil {
		return err
	}
	k.rows = slices.DeleteFunc(k.rows, func(r tableRow) bool { return r.lane == h.lane.id && r.at == h.at.Item() })
	return k.crash("after what was given up is forgotten")
}

func (k *table) open(_ context.Context, lanes []*heldLane) error {
	for _, id := range laneIDs(lanes) {
		delete(k.lanes, id)
	}
	return k.crash("after empty lanes are forgotten")
}

func (k *table) last(_ context.Context, at pglogrepl.LSN) (last uint32, err error) {
	for _, r := range k.rows {
		if r.at.Commit == at {
			last = max(last, r.at.Ordinal)
		}
	}
	return last, nil
}

func (k *table) find(_ context.Context, ids []uuid.UUID) (found []heldItem, err error) {
	for _, r := range k.rows {
		if slices.Contains(ids, r.id) && !k.dead(r.id) {
			h := heldItem{lane: &heldLane{id: r.lane}, at: r.at, id: r.id, whole: r.whole, status: heldErased}
			if row, ok := madeRows.Load(r.id); ok {
				h.row, h.status = row.(*outbox.Row), heldHere
			}
			if k.hidden[r.id] {
				h.status = heldInvisible
			}
			found = append(found, h)
		}
	}
	return found, nil
}

// restart is what [Table.TakeUp] does.
func (k *table) restart(start *ledger.Checkpoint) {
	from := start.UpTo.Item()
	k.rows = slices.DeleteFunc(k.rows, func(r tableRow) bool {
		return r.at.Commit >= start.Order && !r.at.Before(from)
	})
	if k.release != 0 && k.release == start.Release {
		k.remove(k.set, start.Cursor)
	}
	k.release = 0
	k.rows = slices.DeleteFunc(k.rows, func(r tableRow) bool { return k.dead(r.id) })
}

// takeUp is what [session.takeUpHeld] does.
func (k *table) takeUp(p *Pump) {
	start := &p.reading.began
	k.restart(start)
	p.reading.controls = make(map[uuid.UUID]bool)
	byLane := make(map[int32]*heldLane)
	for _, r := range k.rows {
		w := byLane[r.lane]
		if w == nil {
			w = &heldLane{of: k.lanes[r.lane], id: r.lane}
			if row, ok := madeRows.Load(r.id); ok {
				w.first, w.known = row.(*outbox.Row).Type, true
			}
			byLane[r.lane] = w
		}
		w.events++
		if r.whole != nil && r.whole.Kind == cdc.KindControl {
			p.reading.controls[r.id] = true
		}
	}
	var held []*heldLane
	for _, w := range byLane {
		held = append(held, w)
	}
	slices.SortFunc(held, func(a, b *heldLane) int { return int(a.id - b.id) })
	p.held.keeper = k
	p.held.takeUp(held)
}

func savedAt(c ledger.Checkpoint) *atomic.Pointer[ledger.Checkpoint] {
	p := new(atomic.Pointer[ledger.Checkpoint])
	p.Store(&c)
	return p
}
