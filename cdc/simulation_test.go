package cdc

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/ledger"
)

// TestSimulation runs the reader and the progress against a scripted server that
// breaks off anywhere: after any message, with a slot that may have gone back,
// while the caller acknowledges in any order, confirms when it likes, stops, and
// begins again either where it had got to or at its last checkpoint.
//
// What must hold: a session delivers the rows behind the position that it was
// given, each once, in commit order, without a hole, and none of a transaction
// that it was told to skip; the server is never told to forget a row that has
// not ended; and in the end every row has.
//
// SEEDS is how many to try (default 150), SEED the first one.
func TestSimulation(t *testing.T) {
	seeds, first := number(t, "SEEDS", 150), number(t, "SEED", 1)
	var total tally
	for seed := first; seed < first+seeds; seed++ {
		synctest.Test(t, func(t *testing.T) {
			s := newSimulation(t, seed)
			defer func() {
				if t.Failed() {
					t.Logf("failed with SEED=%d SEEDS=1", seed)
				}
			}()
			s.run()
			total.add(s.tally)
		})
	}
	t.Logf("%d seeds from %d: %+v", seeds, first, total)
	require.True(t, seeds < 100 || total.again > 0 && total.skipped > 0 && total.full > 0 && total.bad > 0 && total.incomplete > 0, "nothing to see: %+v", total)
}

func number(t *testing.T, name string, otherwise uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, name)
	return n
}

// tally says what the seeds came across.
type tally struct {
	sessions, rows, again, skipped, bad, incomplete, full int
}

func (t *tally) add(o tally) {
	t.sessions, t.rows, t.again, t.skipped = t.sessions+o.sessions, t.rows+o.rows, t.again+o.again, t.skipped+o.skipped
	t.bad, t.incomplete, t.full = t.bad+o.bad, t.incomplete+o.incomplete, t.full+o.full
}

// simulation is the log of one server, and what one relay made of it.
type simulation struct {
	*testing.T
	rng   *rand.Rand
	tally tally

	log  []loggedTx
	rows []loggedRow // of the whole log, in commit order
	last pglogrepl.LSN

	mu      sync.Mutex    // the server's goroutine looks on
	ended   []bool        // by row: acknowledged in any session
	durable pglogrepl.LSN // the checkpoint
	reached pglogrepl.LSN // what this process knows to have ended
	slots   []pglogrepl.LSN
}

// loggedTx is one transaction and the log after it up to the next.
type loggedTx struct {
	xid         uint32
	commit, end pglogrepl.LSN
	from, to    int           // its rows
	after       pglogrepl.LSN // an end of the log that a keepalive may tell
}

// loggedRow is one row with the layout that its table had then.
type loggedRow struct {
	table           *table
	id              uuid.UUID
	cols            []column
	values          testRow
	bad, incomplete bool
	end             pglogrepl.LSN // commit end of its transaction
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	s := &simulation{T: t, rng: rand.New(rand.NewPCG(seed, 0)), last: 0x1000, durable: 0x1000, reached: 0x1000, slots: []pglogrepl.LSN{0x1000}}
	for xid := range uint32(1 + s.rng.IntN(12)) {
		tx := loggedTx{xid: 100 + xid, commit: s.last + pglogrepl.LSN(8*s.rng.IntN(3)), from: len(s.rows)}
		tx.end = tx.commit + 8
		for range s.rng.IntN(5) * s.rng.IntN(5) { // some have no row that the relay sees
			row := s.row(tx.xid)
			row.end = tx.end
			s.rows = append(s.rows, row)
		}
		tx.to = len(s.rows)
		tx.after = tx.end + pglogrepl.LSN(8*s.rng.IntN(3))
		s.last = tx.after
		s.log = append(s.log, tx)
	}
	s.ended = make([]bool, len(s.rows))
	s.tally.rows = len(s.rows)
	return s
}

// row makes a row of any table, sometimes a bad one, sometimes of a table that
// lacks a column just then.
func (s *simulation) row(xid uint32) loggedRow {
	r := loggedRow{table: publishedTables[s.rng.IntN(3)]}
	binary.BigEndian.PutUint64(r.id[:], s.rng.Uint64())
	of := uint64(xid) | 1<<32
	if r.bad = s.rng.IntN(8) == 0; r.bad {
		of++
	}
	switch r.table {
	case &replaysTable:
		r.values = newTestReplay(r.id, of, ModeRedeliver, "")
	case &controlsTable:
		r.values = newTestControl(r.id, of, ActionDiscard, testID)
	default:
		r.values = newTestRow(r.id, of, "")
	}
	if s.rng.IntN(4) == 0 {
		r.values["payload"] = make([]byte, s.rng.IntN(30_000))
	}
	r.cols = columnsOf(r.table)
	if !r.bad && s.rng.IntN(8) == 0 {
		r.incomplete = true
		r.cols = without(r.cols, "payload")
	}
	return r
}

// run has sessions until everything has ended.
func (s *simulation) run() {
	for range 6 {
		s.session(true)
	}
	s.session(false)
	for i, ended := range s.ended {
		require.True(s, ended, "row %d is lost", i)
	}
	require.Equal(s, s.last, s.durable, "the whole log is checkpointed")
}

// session is one replication session, which the server cuts if told to.
func (s *simulation) session(cut bool) {
	s.tally.sessions++
	if s.rng.IntN(2) == 0 {
		s.reached = s.durable // another process
	}
	w := &walsender{t: s.T, started: make(chan struct{}), watch: func(u pglogrepl.StandbyStatusUpdate) { s.confirmed(u.WALFlushPosition) }}
	cfg := w.config()
	cfg.QueueBytes = 1 << 16
	r, err := Open(s.Context(), cfg)
	require.NoError(s, err)
	<-w.started
	r.Resume(s.reached, s.durable)
	script := s.script()
	if cut {
		script = script[:s.rng.IntN(len(script)+1)]
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		w.stream(script...)
		if cut {
			_ = w.conn.Close()
		}
	}()
	run := &running{Reader: r, server: w, ended: make(chan error, 1)}
	s.consume(run, cut)
	<-sent
	synctest.Wait()
}

// confirmed checks what the server is told to forget, and notes where the slot
// may stand at the next start.
func (s *simulation) confirmed(flush pglogrepl.LSN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if flush > s.durable {
		s.Errorf("the slot is at %s, ahead of the checkpoint %s", flush, s.durable)
	}
	s.slots = append(s.slots, flush)
}

// script is what a walsender sends from any position at which the slot once
// stood: transactions that commit there or later, a table's description whenever
// it is new or has changed.
func (s *simulation) script() [][]byte {
	s.mu.Lock()
	from := s.slots[s.rng.IntN(len(s.slots))]
	s.mu.Unlock()
	var out [][]byte
	say := func(m []byte) { out = append(out, xlogData(m)) }
	known := map[*table]int{}
	for _, tx := range s.log {
		if tx.commit < from {
			continue
		}
		say(beginMessage(tx.commit, tx.xid))
		for _, row := range s.rows[tx.from:tx.to] {
			if known[row.table] != len(row.cols) {
				known[row.table] = len(row.cols)
				say(relationMessage(oids[row.table], row.table.name, row.cols))
			}
			if s.rng.IntN(10) == 0 {
				out = append(out, keepaliveData(tx.after, s.rng.IntN(2) == 0)) // means nothing inside a transaction
			}
			say(insertMessage(oids[row.table], row.cols, row.values))
			if row.end <= s.reached {
				s.tally.skipped++
			}
		}
		if s.rng.IntN(10) == 0 {
			say(logicalMessage(true, AskPrefix, nil))
		}
		say(commitMessage(tx.commit, tx.end))
		if s.rng.IntN(4) == 0 { // a marker of all rows so far
			say(logicalMessage(false, markerPrefix, new(message).u64(1).u64(uint64(tx.to)).b))
		}
		if s.rng.IntN(3) == 0 {
			out = append(out, keepaliveData(tx.after, s.rng.IntN(2) == 0))
		}
	}
	return append(out, keepaliveData(s.last, true))
}

// consume is the relay of one session: it ends when the session does, when it
// likes if the session would be cut, and otherwise with the log.
func (s *simulation) consume(r *running, cut bool) {
	ctx, stop := context.WithCancel(s.Context())
	go func() { r.ended <- r.Run(ctx) }()
	c := &consumer{simulation: s, reader: r.Reader, progress: ledger.NewProgress(s.reached), start: s.reached}
	c.next, _ = slices.BinarySearchFunc(s.rows, s.reached+1, func(row loggedRow, at pglogrepl.LSN) int { return cmp.Compare(row.end, at) })
	var batch []Item
	var err error
	for {
		c.acknowledge(!cut)
		if !cut && s.durable == s.last || cut && s.rng.IntN(40) == 0 {
			break
		}
		if batch, err = r.Next(s.Context(), batch); err != nil {
			require.True(s, cut, err)
			break
		}
		for i := range batch {
			c.take(&batch[i])
		}
		if s.rng.IntN(3) == 0 {
			<-time.After(time.Duration(s.rng.IntN(3000)) * time.Millisecond)
		}
		if r.QueueBytes() > 1<<15 {
			s.tally.full++
		}
	}
	stop()
	<-r.ended
	_ = r.Close(s.Context())
}

// consumer is what one session's relay remembers.
type consumer struct {
	*simulation
	reader   *Reader
	progress *ledger.Progress
	start    pglogrepl.LSN // told to Resume
	next     int           // the row that must come
	flying   map[int]int   // row by tag, read and not acknowledged
}

// take checks one item against the log.
func (c *consumer) take(it *Item) {
	switch it.Kind {
	case KindCommit:
		require.NoError(c, c.progress.Commit(it.End, it.CommitTime))
		require.True(c, c.next == 0 || c.rows[c.next-1].end <= it.End, "the end comes before its rows")
		require.True(c, c.next == len(c.rows) || c.rows[c.next].end > it.End, "the end comes before row %d", c.next)
	case KindIdle:
		require.NoError(c, c.progress.Commit(it.End, time.Time{}))
		require.True(c, c.next == len(c.rows) || c.rows[c.next].end > it.End, "the end of the log comes before row %d", c.next)
	case KindMarker:
		c.progress.Mark(it.Marker.ID)
		before := int(it.Marker.ID)
		require.True(c, c.next == before || c.next > before && c.rows[before].end <= c.start, "a marker of %d rows comes after %d", before, c.next)
	case KindAsk:
		require.GreaterOrEqual(c, it.Commit, c.start, "of a transaction that has ended")
	case KindEvent, KindReplay, KindControl:
		require.Less(c, c.next, len(c.rows), "a row that is not in the log")
		c.row(it, &c.rows[c.next])
		if c.flying == nil {
			c.flying = map[int]int{}
		}
		c.flying[int(c.progress.Read())] = c.next
		if c.ended[c.next] {
			c.tally.again++
		}
		c.next++
	default:
		require.Fail(c, "an item of no kind")
	}
}

func (c *consumer) row(it *Item, want *loggedRow) {
	require.Equal(c, want.table.kind, it.Kind)
	require.Equal(c, want.bad, it.Bad != nil)
	require.Equal(c, want.incomplete, it.Incomplete != nil)
	require.Equal(c, want.end-8, it.Commit)
	var id uuid.UUID
	var payload []byte
	switch it.Kind {
	case KindReplay:
		id, payload = it.Replay.ID, it.Row.Payload
	case KindControl:
		id, payload = it.Control.ID, it.Control.Payload
	default:
		id, payload = it.Row.ID, it.Row.Payload
	}
	require.Equal(c, want.id, id)
	if want.incomplete {
		c.tally.incomplete++
		return
	}
	if want.bad {
		c.tally.bad++
	}
	require.True(c, bytes.Equal(want.values["payload"], payload), "the row's bytes")
}

// acknowledge ends some of what is in flight, or all, in any order, and makes a
// checkpoint of what was reached, or not.
func (c *consumer) acknowledge(all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	tags := slices.Sorted(maps.Keys(c.flying))
	c.rng.Shuffle(len(tags), func(i, j int) { tags[i], tags[j] = tags[j], tags[i] })
	for _, tag := range tags {
		if all || c.rng.IntN(2) == 0 {
			require.NoError(c, c.progress.End(uint64(tag)))
			c.ended[c.flying[tag]] = true
			delete(c.flying, tag)
		}
	}
	position, marked := c.progress.Position(), int(c.progress.Marked())
	for i, row := range c.rows {
		require.True(c, c.ended[i] || i >= marked, "row %d has not ended, and a marker of %d is reached", i, marked)
		require.True(c, c.ended[i] || row.end > position, "row %d, of a transaction that ends at %s, has not ended, and the position is %s", i, row.end, position)
	}
	c.reached = max(c.reached, position)
	if all || c.rng.IntN(2) == 0 {
		c.durable = max(c.durable, c.reached)
		c.reader.Confirm(c.durable)
	}
}
