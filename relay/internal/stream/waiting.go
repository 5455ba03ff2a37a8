package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/relay/internal/state"
)

// Bounds of one page of what waits.
const (
	waitingRows  = 500
	waitingBytes = 1 << 20
)

// Table is onceward.waiting and the tables beside it. Every write counts only
// for the session that owns the slot, and is counted as those of letters are: a
// database that lacks one is found out.
type Table struct {
	state *state.State                    // of the pump's connection
	fit   func(ctx context.Context) error // the table is as it must be, else a value may show with other bytes
	start *ledger.Checkpoint              // of the session
}

// NewTable returns the table of a session that starts from a checkpoint.
func NewTable(st *state.State, start *ledger.Checkpoint) *Table {
	return &Table{state: st, fit: outboxRows{st}.fit, start: start}
}

// TakeUp brings the tables to where a session starts: what is read again is
// forgotten, and what the release had ended, and what an operator gave up. It comes before letters are taken
// back: those of a control that is forgotten have ended.
func (s *Table) TakeUp(ctx context.Context, q *outboxdb.Queries) error {
	start := s.start
	from := start.UpTo.Item()
	if _, err := q.DeleteWaitingBeyond(ctx, outboxdb.DeleteWaitingBeyondParams{
		Slot: s.state.Slot, OrderPosition: start.Order.String(), Position: from.Commit.String(),
		Ordinal: int32(from.Ordinal),
	}); err != nil {
		return err
	}
	if err := s.endRelease(ctx, q); err != nil {
		return err
	}
	if _, err := q.DeleteWaitingDead(ctx, s.state.Slot); err != nil {
		return err
	}
	_, err := q.DeleteEmptyLanes(ctx, s.state.Slot)
	return err
}

// BeginAnew brings the tables to where a relay begins anew at a position: what is
// visible in the end of the gap, as all that waits is, the stream leaves out from
// there on. So events stay, before everything that it brings, and orders about
// letters in their place among them, which is left out by its id. Replays and bad
// rows are forgotten like all that is read again. A lane that was held again before a
// checkpoint knew of its release is one with what that had released, which waits again.
func (s *Table) BeginAnew(ctx context.Context, q *outboxdb.Queries, at pglogrepl.LSN) error {
	if err := s.endRelease(ctx, q); err != nil {
		return err
	}
	if _, err := q.DeleteWholeBeyond(ctx, outboxdb.DeleteWholeBeyondParams{Slot: s.state.Slot,
		OrderPosition: at.String()}); err != nil {
		return err
	}
	if err := q.JoinLanes(ctx, s.state.Slot); err != nil {
		return err
	}
	place := (at - 1).String()
	last, err := q.LastOrdinal(ctx, outboxdb.LastOrdinalParams{Slot: s.state.Slot, Position: place})
	if err != nil {
		return err
	}
	if err := q.MoveWaiting(ctx, outboxdb.MoveWaitingParams{Slot: s.state.Slot, OrderPosition: at.String(),
		Place: place, Last: last}); err != nil {
		return err
	}
	return q.RestartRetries(ctx, []string{s.state.Slot})
}

// endRelease forgets what a release has ended as far as the start knows, and the
// release: what is left waits.
func (s *Table) endRelease(ctx context.Context, q *outboxdb.Queries) error {
	row, err := q.LoadRelease(ctx, s.state.Slot)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	// A release that the checkpoint does not know has ended nothing.
	if row.Release == s.start.Release {
		if err := s.forgetLanes(ctx, q, row.Lanes, s.start.Cursor); err != nil {
			return err
		}
	}
	_, err = q.EndRelease(ctx, s.state.Slot)
	return err
}

// forgetLanes deletes what a release has ended.
func (s *Table) forgetLanes(ctx context.Context, q *outboxdb.Queries, lanes []int32, at ledger.Cursor) error {
	done, present := lanes[:min(at.Lane, len(lanes))], int32(0)
	if at.Lane < len(lanes) {
		present = lanes[at.Lane]
	}
	if _, err := q.SettleWaited(ctx, outboxdb.SettleWaitedParams{
		Slot: s.state.Slot, Lanes: done, Lane: present, Position: at.From.Commit.String(),
		Ordinal: int32(at.From.Ordinal), Letter: int64(at.From.Letter),
	}); err != nil {
		return err
	}
	if len(done) > 0 {
		if _, err := q.DeleteWaitingOf(ctx, done); err != nil {
			return err
		}
	}
	if present == 0 || at.From == (ledger.Place{}) {
		return nil
	}
	before := outboxdb.DeleteWaitingBeforeParams{Lane: present, Position: at.From.Commit.String(),
		Ordinal: int32(at.From.Ordinal)}
	if _, err := q.DeleteWaitingBefore(ctx, before); err != nil {
		return err
	}
	if at.From.Letter == 0 {
		return nil
	}
	_, err := q.MarkCopy(ctx, outboxdb.MarkCopyParams{Letter: int64(at.From.Letter), Lane: before.Lane,
		Position: before.Position, Ordinal: before.Ordinal})
	return err
}

// load returns what is held, and the controls among it.
func (s *Table) load(ctx context.Context) (held []*heldLane, controls map[uuid.UUID]bool, err error) {
	rows, err := s.state.Queries.LoadLanes(ctx, s.state.Slot)
	if err != nil {
		return nil, nil, fmt.Errorf("load what is held of slot %s: %w", s.state.Slot, err)
	}
	for _, r := range rows {
		held = append(held, &heldLane{
			of: ledger.Lane{Namespace: r.Namespace, AggregateType: r.AggregateType, Topic: r.Topic}, id: r.ID,
			events: int(r.Events),
			first:  r.EventType, known: r.EventType != "" || r.Topic != "",
		})
	}
	ids, err := s.state.Queries.WaitingControls(ctx, s.state.Slot)
	if err != nil {
		return nil, nil, fmt.Errorf("load held controls of slot %s: %w", s.state.Slot, err)
	}
	controls = make(map[uuid.UUID]bool, len(ids))
	for _, id := range ids {
		controls[id] = true
	}
	return held, controls, nil
}

// change runs work in one transaction and counts it.
func (s *Table) change(ctx context.Context, what string, work func(*outboxdb.Queries) error) error {
	return s.state.Count(ctx, what, func(q *outboxdb.Queries) (state.Counted, error) {
		return state.Counted{Writes: 1},
			work(q)
	})
}

func (s *Table) write(ctx context.Context, items []heldItem) error {
	ids := make(map[*heldLane]int32)
	err := s.change(ctx, "write down what is held", func(q *outboxdb.Queries) error {
		var all outboxdb.InsertWaitingParams
		for i := range items {
			h := &items[i]
			id, err := s.laneID(ctx, q, h.lane, ids)
			if err != nil {
				return err
			}
			if h.at.Ordinal > math.MaxInt32 {
				return fmt.Errorf("transaction at %s: more than %d items", h.at.Commit, math.MaxInt32)
			}
			all.Lanes = append(all.Lanes, id)
			all.Positions = append(all.Positions, h.at.Commit.String())
			all.Ordinals = append(all.Ordinals, int32(h.at.Ordinal))
			all.TxIds = append(all.TxIds, strconv.FormatUint(h.txID, 10))
			all.Ids = append(all.Ids, h.id)
			if err := s.whole(ctx, q, h, id); err != nil {
				return err
			}
		}
		_, err := q.InsertWaiting(ctx, all)
		return err
	})
	if err != nil {
		return err
	}
	for w, id := range ids {
		w.id = id
	}
	return nil
}

// laneID makes the row of a lane that has none.
func (s *Table) laneID(ctx context.Context, q *outboxdb.Queries, w *heldLane, fresh map[*heldLane]int32) (int32,
	error) {
	if w.id != 0 {
		return w.id, nil
	}
	if id, ok := fresh[w]; ok {
		return id, nil
	}
	id, err := q.InsertLane(ctx, outboxdb.InsertLaneParams{Slot: s.state.Slot, Namespace: w.of.Namespace,
		AggregateType: w.of.AggregateType, Topic: w.of.Topic})
	fresh[w] = id
	return id, err
}

// whole keeps an item that cannot be read back equal, and takes back the letters
// of a retry that waits.
func (s *Table) whole(ctx context.Context, q *outboxdb.Queries, h *heldItem, id int32) error {
	kind, item := wholeRepair, h.repair[:]
	switch {
	case h.whole != nil:
		var err error
		if kind, item, err = encodeItem(h.whole); err != nil {
			return err
		}
	case !h.repairing:
		return nil
	}
	if h.reopen != uuid.Nil {
		if _, err := q.ReopenReleased(ctx, outboxdb.ReopenReleasedParams{Slot: s.state.Slot, ControlID: &h.reopen,
			FromIndex: int64(h.at.Letter)}); err != nil {
			return err
		}
	}
	return q.InsertWaitingCopy(ctx, outboxdb.InsertWaitingCopyParams{
		Lane: id, Position: h.at.Commit.String(), Ordinal: int32(h.at.Ordinal), Kind: kind, Letter: int64(h.at.Letter),
		Item: item,
	})
}

func laneIDs(lanes []*heldLane) []int32 {
	ids := make([]int32, len(lanes))
	for i, w := range lanes {
		ids[i] = w.id
	}
	return ids
}

func (s *Table) begin(ctx context.Context, release int64, lanes []*heldLane) error {
	return s.change(ctx, "begin a release", func(q *outboxdb.Queries) error {
		return q.BeginRelease(ctx, outboxdb.BeginReleaseParams{Slot: s.state.Slot, Release: release,
			Lanes: laneIDs(lanes)})
	})
}

func (s *Table) forget(ctx context.Context, lanes []*heldLane, at ledger.Cursor) error {
	return s.change(ctx, "forget what was released", func(q *outboxdb.Queries) error { return s.forgetLanes(ctx, q, laneIDs(lanes), at) })
}

func (s *Table) end(ctx context.Context, lanes []*heldLane, at ledger.Cursor) error {
	ids := laneIDs(lanes)
	return s.change(ctx, "end a release", func(q *outboxdb.Queries) error {
		if err := s.forgetLanes(ctx, q, ids, at); err != nil {
			return err
		}
		if _, err := q.DeleteLanes(ctx, outboxdb.DeleteLanesParams{Slot: s.state.Slot,
			Lanes: ids[:at.Lane]}); err != nil {
			return err
		}
		_, err := q.EndRelease(ctx, s.state.Slot)
		return err
	})
}

func (s *Table) drop(ctx context.Context, h *heldItem) error {
	return s.state.Count(ctx, "forget what was given up", func(q *outboxdb.Queries) (state.Counted, error) {
		_, err := q.DeleteWaitingOne(ctx, outboxdb.DeleteWaitingOneParams{Lane: h.lane.id,
			Position: h.at.Commit.String(), Ordinal: int32(h.at.Ordinal)})
		return state.Counted{Writes: 1, Skipped: &h.id}, err
	})
}

func (s *Table) open(ctx context.Context, lanes []*heldLane) error {
	return s.change(ctx, "forget lanes that are empty", func(q *outboxdb.Queries) error {
		_, err := q.DeleteLanes(ctx, outboxdb.DeleteLanesParams{Slot: s.state.Slot, Lanes: laneIDs(lanes)})
		return err
	})
}

func (s *Table) page(ctx context.Context, w *heldLane, from ledger.Place) ([]heldItem, error) {
	if err := s.fit(ctx); err != nil {
		return nil, err
	}
	read, err := s.state.Queries.ReadWaiting(ctx, outboxdb.ReadWaitingParams{
		Slot: s.state.Slot, Lane: w.id, Position: from.Commit.String(), Ordinal: int32(from.Ordinal),
		RowLimit: int32(outboxdb.Ask(w.page, waitingRows)), ByteLimit: waitingBytes,
	})
	w.page = len(read)
	if err != nil {
		return nil, fmt.Errorf("read what waits in lane %s of slot %s: %w", w.of, s.state.Slot, err)
	}
	items := make([]heldItem, len(read))
	for i := range read {
		if items[i], err = readBack(w, &read[i]); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// readBack judges what was read. A row that is absent though its transaction is
// visible was deleted, and so was one whose id another transaction used again.
func readBack(w *heldLane, r *outboxdb.ReadWaitingRow) (heldItem, error) {
	commit, err := ledger.ParseLSN(r.Position)
	if err != nil {
		return heldItem{}, err
	}
	h := heldItem{lane: w, at: ledger.Place{Commit: commit, Ordinal: uint32(r.Ordinal)}, id: r.ID, txID: r.TxID}
	if r.Kind != nil && *r.Kind == wholeRepair {
		h.repairing = true
		if h.repair, err = uuid.FromBytes(r.Item); err != nil {
			return h, fmt.Errorf("read back the gap of event %s: %w", r.ID, err)
		}
	}
	switch {
	case r.Kind != nil && !h.repairing:
		h.at.Letter = uint32(*r.Letter)
		if h.whole, err = decodeItem(*r.Kind, r.Item); err != nil {
			return h, fmt.Errorf("read back item %s at %s: %w", r.ID, h.at, err)
		}
	case r.RowTxID.Valid && r.RowTxID.Uint64 == r.TxID:
		h.row = &outbox.Row{
			ID: r.ID, Namespace: *r.Namespace, AggregateType: *r.AggregateType, AggregateID: []byte(*r.AggregateID),
			Type:    *r.EventType,
			Payload: r.Payload, ContentType: *r.ContentType, Headers: r.Headers, CreatedAt: r.CreatedAt.UTC(),
			TxID: r.TxID, Seq: r.Seq,
		}
		if r.Traceparent != nil {
			h.row.Traceparent = []byte(*r.Traceparent)
		}
	case !r.RowTxID.Valid && !r.Written:
		h.status = heldInvisible
	default:
		h.status = heldErased
	}
	if r.Dead {
		h.status = heldDead
	}
	return h, nil
}

func (s *Table) last(ctx context.Context, at pglogrepl.LSN) (uint32, error) {
	last, err := s.state.Queries.LastOrdinal(ctx, outboxdb.LastOrdinalParams{Slot: s.state.Slot, Position: at.String()})
	if err != nil {
		return 0, fmt.Errorf("look for what a repair left waiting: %w", err)
	}
	return uint32(last), nil
}

func (s *Table) sort(ctx context.Context, before pglogrepl.LSN) error {
	place := (before - 1).String()
	return s.change(ctx, "sort what waits", func(q *outboxdb.Queries) error {
		if err := q.SortWaiting(ctx, outboxdb.SortWaitingParams{Slot: s.state.Slot, OrderPosition: before.String(),
			Place: place}); err != nil {
			return err
		}
		return q.PlaceSorted(ctx, outboxdb.PlaceSortedParams{Slot: s.state.Slot, Place: place})
	})
}

func (s *Table) find(ctx context.Context, ids []uuid.UUID) ([]heldItem, error) {
	rows, err := s.state.Queries.WaitingIDs(ctx, outboxdb.WaitingIDsParams{Slot: s.state.Slot, Ids: ids})
	if err != nil {
		return nil, fmt.Errorf("look for events that wait: %w", err)
	}
	var found []heldItem
	for _, r := range rows {
		commit, err := ledger.ParseLSN(r.Position)
		if err != nil {
			return nil, err
		}
		items, err := s.page(ctx, &heldLane{id: r.Lane}, ledger.Place{Commit: commit, Ordinal: uint32(r.Ordinal)})
		if err != nil {
			return nil, err
		}
		if len(items) > 0 && items[0].id == r.ID {
			found = append(found, items[0])
		}
	}
	return found, nil
}

// Kinds of what is kept whole, as the table has them.
const (
	wholeEvent   = "event"
	wholeReplay  = "replay"
	wholeControl = "control"
	// Not whole: the gap of an event that its repair met.
	wholeRepair = "repair"
)

// wholeItem is an item as it is kept whole.
type wholeItem struct {
	Row     *outbox.Row  `json:",omitempty"`
	Replay  *cdc.Replay  `json:",omitempty"`
	Control *cdc.Control `json:",omitempty"`
	Bad     string       `json:",omitempty"`
}

func encodeItem(it *cdc.Item) (kind string, text []byte, err error) {
	w := wholeItem{Row: it.Row, Replay: it.Replay, Control: it.Control}
	if it.Bad != nil {
		w.Bad = it.Bad.Error()
	}
	kind = map[cdc.Kind]string{cdc.KindEvent: wholeEvent, cdc.KindReplay: wholeReplay,
		cdc.KindControl: wholeControl}[it.Kind]
	if text, err = json.Marshal(w); err != nil {
		return "", nil, fmt.Errorf("keep item whole: %w", err)
	}
	return kind, text, nil
}

func decodeItem(kind string, text []byte) (*cdc.Item, error) {
	var w wholeItem
	if err := json.Unmarshal(text, &w); err != nil {
		return nil, err
	}
	it := &cdc.Item{
		Kind: map[string]cdc.Kind{wholeEvent: cdc.KindEvent, wholeReplay: cdc.KindReplay,
			wholeControl: cdc.KindControl}[kind],
		Row: w.Row, Replay: w.Replay, Control: w.Control,
	}
	if w.Bad != "" {
		it.Bad = errors.New(w.Bad)
	}
	return it, nil
}
