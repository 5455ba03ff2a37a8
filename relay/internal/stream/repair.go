package stream

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/relay/internal/state"
)

// Bounds of a page of a repair: so many events are read at once, and, unless one
// is larger, so many bytes of payload.
const (
	repairRows  = 256
	repairBytes = 1 << 20
)

// Gap is one that is not over.
type Gap struct {
	ID     uuid.UUID
	Cause  string
	Cursor int64 // its events up to this seq were published
	Events int64
	First  bool // of the first start: its records do not name it
}

// gapStore reads the events of gaps, and writes down how far their repair has
// come. [gapRows] is the one, over the pump's own connection.
type gapStore interface {
	// open begins to read the events of a gap behind the cursor, in the order of
	// seq; next returns the next of them, none at the end, and whether none of the
	// same seq as the last one follows.
	open(ctx context.Context, g Gap) error
	next(ctx context.Context) (page []*outbox.Row, whole bool, err error)
	move(ctx context.Context, to ledger.Repair, done bool) error

	// behind counts the events of a gap up to the cursor that still have a row.
	behind(ctx context.Context, g Gap) (int64, error)
}

// repair publishes the gaps, before anything else; how far it has come is in the reading.
type repair struct {
	p       *Pump
	gaps    gapStore
	repairs []Gap       // to be published before the stream
	streams atomic.Bool // that is over
}

// Repaired reports whether the gaps are published, and the stream is read.
func (r *repair) Repaired() bool { return r.streams.Load() }

// Repair publishes the events of the gaps, page by page, before anything of the
// stream: aggregates keep the order of their events' seq, which is that of their
// commits where the writers of an aggregate wait for one another. What meets a route
// that is held waits there; nothing is released meanwhile.
func (r *repair) Repair(ctx context.Context) error {
	defer r.streams.Store(true)
	if err := r.p.whilePaused(ctx); err != nil {
		return err
	}
	if len(r.repairs) > 1 { // what only Kafka says of one is gone with the first commit of another's
		for _, g := range r.repairs {
			if err := r.gaps.move(ctx, ledger.Repair{Gap: g.ID, Cursor: g.Cursor}, false); err != nil {
				return err
			}
		}
	}
	for _, g := range r.repairs {
		before, err := r.p.status()
		if err != nil {
			return err
		}
		var n repaired
		if n.dealt, n.earlier, err = r.repairGap(ctx, g); err != nil {
			return err
		}
		now, err := r.p.status()
		if err != nil {
			return err
		}
		n.letters = int64(now.Ends[ledger.Letter] - before.Ends[ledger.Letter])
		n.waiting = int64(now.Ends[ledger.Waiting] - before.Ends[ledger.Waiting])
		r.sayRepaired(ctx, g, n)
	}
	return nil
}

// repairGap returns how many events it dealt with, and how many earlier sessions had.
func (r *repair) repairGap(ctx context.Context, g Gap) (dealt, earlier int64, err error) {
	p := r.p
	if err := p.held.placeRepair(ctx); err != nil {
		return 0, 0, err
	}
	args := []any{"gap", g.ID, "cause", g.Cause, "events", g.Events}
	if g.Cursor > math.MinInt64 { // else from its beginning
		args = append(args, "after_seq", g.Cursor)
	}
	p.log.WarnContext(ctx, "repairing a gap", args...)
	if earlier, err = r.gaps.behind(ctx, g); err != nil {
		return 0, 0, err
	}
	if err := r.gaps.open(ctx, g); err != nil {
		return 0, 0, err
	}
	p.reading.repaired = ledger.Repair{Gap: g.ID, Cursor: g.Cursor}
	for {
		page, whole, err := r.gaps.next(ctx)
		if err != nil {
			return 0, 0, err
		}
		if len(page) == 0 {
			break
		}
		if err := r.repairPage(ctx, g, page, whole); err != nil {
			return 0, 0, err
		}
		dealt += int64(len(page))
	}
	if err := p.held.sortRepaired(ctx); err != nil {
		return 0, 0, err
	}
	fault.Crash(fault.BeforeRepaired)
	if err := r.gaps.move(ctx, p.reading.repaired, true); err != nil {
		return 0, 0, err
	}
	p.reading.repaired = ledger.Repair{}
	return dealt, earlier, nil
}

// repaired is what a repair came to: of the events that this session dealt with, those
// that became dead letters and those that wait are not published.
type repaired struct{ dealt, letters, waiting, earlier int64 }

// sayRepaired says what a repair came to: the gap's count is of when it was found, and
// rows may be gone since. What earlier sessions published of it is known by its rows.
func (r *repair) sayRepaired(ctx context.Context, g Gap, n repaired) {
	args := []any{"gap", g.ID, "events", n.dealt - n.letters - n.waiting, "earlier_sessions", n.earlier, "counted", g.Events}
	if n.letters > 0 {
		args = append(args, "letters", n.letters)
	}
	if n.waiting > 0 {
		args = append(args, "waiting", n.waiting)
	}
	log := r.p.log.With(args...)
	switch missing := g.Events - n.dealt - n.earlier; {
	case missing > 0:
		log.WarnContext(ctx, "the gap is repaired, but not all events that were counted in it: the others have no row any more, by retention or a DELETE, "+
			"or became dead letters or waiting events meanwhile; those that have no row were not published, unless earlier sessions of this repair did", "missing", missing)
	case n.letters > 0:
		log.WarnContext(ctx, "the gap is repaired, but some of its events became dead letters: see `outboxctl dead list`")
	default:
		log.WarnContext(ctx, "the gap is repaired")
	}
}

// repairPage publishes a page, and makes it durable that it did. Rows that somebody
// wrote with a seq of his own may share it: the cursor does not pass one before the
// last of them is published. A session that ends among them repeats them.
func (r *repair) repairPage(ctx context.Context, g Gap, page []*outbox.Row, whole bool) error {
	p := r.p
	for i, row := range page {
		if err := r.repairRow(ctx, g, row); err != nil {
			return err
		}
		if i+1 < len(page) && page[i+1].Seq > row.Seq || i+1 == len(page) && whole {
			p.reading.repaired.Cursor = row.Seq
		}
		if err := p.settleAmid(ctx, i); err != nil {
			return err
		}
	}
	fault.Crash(fault.InRepair)
	if err := p.Flush(ctx); err != nil {
		return err
	}
	fault.Crash(fault.BeforeCursor)
	if err := r.gaps.move(ctx, p.reading.repaired, false); err != nil {
		return err
	}
	p.held.show(time.Now())
	return p.settle(ctx, false)
}

func (r *repair) repairRow(ctx context.Context, g Gap, row *outbox.Row) error {
	p := r.p
	s := &step{it: &cdc.Item{Kind: cdc.KindEvent, Row: row, Commit: p.reading.began.Order}, repairing: true,
		tag: p.reading.open()}
	if !g.First {
		s.repair = g.ID
	}
	at, err := p.letters.place(ctx, row, p.reading.began.Order, true)
	if err != nil {
		return err
	}
	s.at.Commit = at
	p.counts.Read(1)
	return p.deal(ctx, s)
}

// keepPlace is the graceful stop in the middle of a repair.
func (r *repair) keepPlace(ctx context.Context) error {
	p := r.p
	if p.reading.repaired.Gap == uuid.Nil {
		return nil
	}
	return r.gaps.move(ctx, p.reading.repaired, false)
}

// gapRows is [gapStore]. The ids are sorted once, by a cursor that outlives
// its transaction: a page costs its own rows, however large the gap is, and no
// snapshot is held meanwhile.
type gapRows struct {
	pumps *state.State
	ahead []placeInGap // fetched, and not yet read
	page  int          // how many the last page had
}

type placeInGap struct {
	ID  uuid.UUID
	Seq int64
}

const repairCursor = `DECLARE onceward_repair NO SCROLL CURSOR WITH HOLD FOR
SELECT o.id, o.seq FROM onceward.gaps g
JOIN onceward.outbox o ON o.tx_id >= pg_catalog.pg_snapshot_xmin(g.from_snapshot) AND o.tx_id < pg_catalog.pg_snapshot_xmax(g.to_snapshot)
  AND pg_catalog.pg_visible_in_snapshot(o.tx_id, g.to_snapshot) AND NOT pg_catalog.pg_visible_in_snapshot(o.tx_id, g.from_snapshot)
WHERE g.gap_id = '%[1]s' AND (o.seq > '%[2]d'::bigint OR '%[2]d'::bigint = '-9223372036854775808')
  AND NOT EXISTS (SELECT FROM onceward.dead_letters d WHERE d.slot = g.slot AND d.letter_id = o.id)
  AND NOT EXISTS (SELECT FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane WHERE l.slot = g.slot AND w.id = o.id)
ORDER BY o.seq, o.id`

// open locks the partitions before it takes its snapshot: to one that is older than
// the rewrite of a partition (ALTER TABLE … SET LOGGED) that looks empty, and DECLARE
// waits for locks with the snapshot that it reads by.
func (r *gapRows) open(ctx context.Context, g Gap) error {
	r.ahead = nil
	if _, err := r.pumps.Conn.Exec(ctx, "CLOSE ALL"); err != nil {
		return fmt.Errorf("close what was read of gaps: %w", err)
	}
	err := pgx.BeginTxFunc(ctx, r.pumps.Conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		for _, sql := range []string{"LOCK TABLE onceward.outbox IN ACCESS SHARE MODE", fmt.Sprintf(repairCursor, g.ID, g.Cursor)} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for the events of gap %s: %w", g.ID, err)
	}
	return nil
}

func (r *gapRows) next(ctx context.Context) (page []*outbox.Row, whole bool, err error) {
	for len(page) == 0 {
		if err := r.fetch(ctx); err != nil || len(r.ahead) == 0 {
			return nil, true, err
		}
		if page, err = r.read(ctx); err != nil {
			return nil, false, err
		}
	}
	if err := r.fetch(ctx); err != nil {
		return nil, false, err
	}
	return page, len(r.ahead) == 0 || r.ahead[0].Seq > page[len(page)-1].Seq, nil
}

// fetch looks at what comes next, unless it has; nothing is ahead at the end.
func (r *gapRows) fetch(ctx context.Context) (err error) {
	if len(r.ahead) > 0 {
		return nil
	}
	rows, _ := r.pumps.Conn.Query(ctx, fmt.Sprintf("FETCH %d FROM onceward_repair", repairRows)) // CollectRows returns its error
	if r.ahead, err = pgx.CollectRows(rows, pgx.RowToStructByPos[placeInGap]); err != nil {
		return fmt.Errorf("read the events of a gap: %w", err)
	}
	return nil
}

// read returns as many of the fetched as fit; those that are gone are left out.
func (r *gapRows) read(ctx context.Context) ([]*outbox.Row, error) {
	asked := outboxdb.Ask(r.page, repairRows)
	ids := make([]uuid.UUID, min(len(r.ahead), asked))
	for i := range ids {
		ids[i] = r.ahead[i].ID
	}
	rows, err := r.pumps.Queries.RowsOfGap(ctx, outboxdb.RowsOfGapParams{Ids: ids, Bytes: repairBytes})
	if err != nil {
		return nil, fmt.Errorf("read the events of a gap: %w", err)
	}
	if len(ids) == asked || len(rows) < len(ids) { // else more might have fitted
		r.page = len(rows)
	}
	page := make([]*outbox.Row, 0, len(rows))
	for i := range rows {
		page = append(page, newRow(&rows[i]))
	}
	if len(rows) == 0 {
		r.ahead = r.ahead[len(ids):]
		return nil, nil
	}
	r.ahead = r.ahead[slices.Index(ids, rows[len(rows)-1].ID)+1:]
	return page, nil
}

func (r *gapRows) behind(ctx context.Context, g Gap) (int64, error) {
	if g.Cursor == math.MinInt64 {
		return 0, nil // nothing of it is repaired
	}
	n, err := r.pumps.Queries.CountRepairedOfGap(ctx, outboxdb.CountRepairedOfGapParams{GapID: g.ID, Cursor: g.Cursor})
	if err != nil {
		return 0, fmt.Errorf("count what is repaired of gap %s: %w", g.ID, err)
	}
	return n, nil
}

func (r *gapRows) move(ctx context.Context, to ledger.Repair, done bool) error {
	n, err := r.pumps.Queries.MoveGap(ctx, outboxdb.MoveGapParams{GapID: to.Gap, Cursor: to.Cursor, Done: done,
		Epoch: r.pumps.Epoch})
	return r.pumps.Fenced("save how far the repair has come", n, err)
}
