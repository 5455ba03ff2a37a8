//go:build e2e

package letters

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/relay/internal/testoutbox"
)

// The model: a log of events, replays and controls is read to its end, with
// crashes anywhere, by a relay that has Kafka's transactions. An event is poison
// as long as its payload says so. What Kafka holds in the end, and every letter,
// is a function of the log alone: it must be what a plain interpretation of the
// log in memory says, which knows of no session, no checkpoint and no table.

// logItem is one row of the log.
type logItem struct {
	event   *Dead
	control *cdc.Control
	skip    bool // the operator said so before it was read
}

// logTx is one transaction; its commit record starts at commit and ends at end.
type logTx struct {
	commit, end pglogrepl.LSN
	items       []logItem
}

var poisonPayload = []byte("poison")

func isPoison(payload []byte) bool { return bytes.Equal(payload, poisonPayload) }

// policy: the aggregate L is parked letter by letter, the others as a whole.
func parksWhole(c *Dead) bool { return c.Replay == nil && string(c.Row.AggregateID) != "L" }

// drawLog makes a log of up to 14 transactions over three aggregates.
func drawLog(t *rapid.T) (log []logTx) {
	n, lsn := 0, pglogrepl.LSN(0x100)
	for range rapid.IntRange(3, 14).Draw(t, "transactions") {
		tx := logTx{commit: lsn, end: lsn + 8}
		lsn += pglogrepl.LSN(rapid.SampledFrom([]int{8, 40}).Draw(t, "distance")) // 8: the next record follows at once
		for range rapid.IntRange(1, 5).Draw(t, "items") {
			n++
			tx.items = append(tx.items, drawItem(t, n, tx.commit))
		}
		log = append(log, tx)
	}
	// In the end somebody mends and releases everything.
	last := logTx{commit: lsn, end: lsn + 8}
	for i := range n {
		last.items = append(last.items, logItem{control: &cdc.Control{ID: testoutbox.ID(2_000_000 + i), Action: cdc.ActionEdit, LetterID: testoutbox.ID(i + 1), Payload: []byte("mended")}})
	}
	for i, a := range []string{"A", "B", "L"} {
		last.items = append(last.items, logItem{control: wordOf(900_000+i, cdc.ActionRetry, a)})
	}
	return append(log, last)
}

func drawItem(t *rapid.T, n int, commit pglogrepl.LSN) logItem {
	aggregate := rapid.SampledFrom([]string{"A", "A", "B", "L"}).Draw(t, "aggregate")
	switch kind := rapid.IntRange(0, 9).Draw(t, "kind"); {
	case kind < 5 || n < 3:
		c := deadEvent(n, aggregate, func(c *Dead) { c.Commit, c.Row.Payload = commit, []byte(fmt.Sprint("event ", n)) })
		if rapid.IntRange(0, 2).Draw(t, "poison") == 0 {
			c.Row.Payload = poisonPayload
		}
		if rapid.IntRange(0, 7).Draw(t, "replay") == 0 {
			replayOf(rapid.IntRange(1, n).Draw(t, "of"))(&c)
		}
		c.Holds = parksWhole(&c)
		return logItem{event: &c, skip: rapid.IntRange(0, 11).Draw(t, "skip") == 0}
	default:
		action := rapid.SampledFrom([]string{cdc.ActionRetry, cdc.ActionRetry, cdc.ActionRetry, cdc.ActionDiscard, cdc.ActionEdit, cdc.ActionEdit}).Draw(t, "action")
		c := wordOf(n, action, rapid.IntRange(1, n).Draw(t, "letter"))
		switch {
		case action == cdc.ActionEdit:
			c.Payload = slices.Clone(rapid.SampledFrom([][]byte{poisonPayload, []byte("mended"), []byte("mended")}).Draw(t, "payload"))
		case rapid.Bool().Draw(t, "whole"):
			c = wordOf(n, action, aggregate)
		}
		return logItem{control: c}
	}
}

// lettersOutcome is what both sides must agree on.
type lettersOutcome struct {
	published []string             // by aggregate's order: see record
	letters   map[uuid.UUID]string // state, payload, attempts
	words     map[uuid.UUID]int64  // letters on which each acted
}

func recordLine(c *Dead, payload []byte) string {
	return fmt.Sprintf("%s %s %s", c.Row.AggregateID, c.ID(), payload)
}

// sortedByAggregate sorts what is in order per aggregate only.
func sortedByAggregate(published []string) []string {
	out := slices.Clone(published)
	slices.SortStableFunc(out, func(a, b string) int { return cmp.Compare(a[:1], b[:1]) })
	return out
}

// plainLetter is a letter of the plain interpretation.
type plainLetter struct {
	*Dead
	payload  []byte
	state    string
	attempts int
}

// readPlainly is the model.
func readPlainly(log []logTx) lettersOutcome {
	m := plainReading{out: lettersOutcome{words: make(map[uuid.UUID]int64)}}
	for _, tx := range log {
		for _, it := range tx.items {
			if it.control != nil {
				m.out.words[it.control.ID] = int64(m.word(it.control, tx.commit))
				continue
			}
			m.read(it)
		}
	}
	m.out.letters = make(map[uuid.UUID]string)
	for _, l := range m.letters {
		m.out.letters[l.ID()] = fmt.Sprintf("%s %s %d", l.state, l.payload, l.attempts)
	}
	return m.out
}

type plainReading struct {
	letters []*plainLetter
	out     lettersOutcome
}

func (m *plainReading) read(it logItem) {
	c := it.event
	given := func(state string, holds bool) {
		b := *c
		b.Holds = holds
		m.letters = append(m.letters, &plainLetter{Dead: &b, payload: c.Row.Payload, state: state, attempts: 1})
	}
	parked := slices.ContainsFunc(m.letters, func(l *plainLetter) bool { return l.Holds && l.state == letterOpen && sameAggregate(l.Dead, c) })
	switch {
	case it.skip:
		given(letterDiscarded, false)
	case c.Replay == nil && parked:
		given(letterOpen, true)
	case isPoison(c.Row.Payload):
		given(letterOpen, c.Holds)
	default:
		m.out.published = append(m.out.published, recordLine(c, c.Row.Payload))
	}
}

func sameAggregate(a, b *Dead) bool { return bytes.Equal(a.Row.AggregateID, b.Row.AggregateID) }

// word returns on how many letters it acts.
func (m *plainReading) word(c *cdc.Control, at pglogrepl.LSN) int {
	var mine []*plainLetter
	for _, l := range m.letters {
		if l.state == letterOpen && l.Commit < at && (l.ID() == c.LetterID || c.AggregateID != nil && bytes.Equal(c.AggregateID, l.Row.AggregateID)) {
			mine = append(mine, l)
		}
	}
	slices.SortFunc(mine, olderLetter)
	switch c.Action {
	case cdc.ActionDiscard:
		for _, l := range mine {
			l.state = letterDiscarded
		}
	case cdc.ActionEdit:
		for _, l := range mine {
			l.payload = c.Payload
		}
	default:
		if len(mine) == 1 && c.AggregateID == nil && mine[0].Holds && slices.ContainsFunc(m.letters, func(l *plainLetter) bool {
			return l.Holds && l.state == letterOpen && sameAggregate(l.Dead, mine[0].Dead) && olderLetter(l, mine[0]) < 0
		}) {
			return 0
		}
		m.retry(mine)
	}
	return len(mine)
}

func (m *plainReading) retry(mine []*plainLetter) {
	stuck := false
	for _, l := range mine {
		switch {
		case stuck && l.Holds:
		case isPoison(l.payload):
			l.attempts++
			stuck = stuck || l.Holds
		default:
			l.state = "replayed"
			m.out.published = append(m.out.published, recordLine(l.Dead, l.payload))
		}
	}
}

func olderLetter(a, b *plainLetter) int {
	x, y := a.ID(), b.ID()
	return cmp.Or(cmp.Compare(a.Commit, b.Commit), cmp.Compare(a.Row.Seq, b.Row.Seq), bytes.Compare(x[:], y[:]))
}

var errRelayDies = errors.New("the relay dies")

// simulatedRelay is a relay with Kafka's transactions that reads the log with the real
// letters. crash says at every step whether it dies there.
type simulatedRelay struct {
	t     *rapid.T
	lb    *letterbox
	log   []logTx
	crash func(where string) error

	// Durable in Kafka.
	topic []string
	order pglogrepl.LSN // every transaction with end ≤ order has ended
	upto  []int         // transaction, item, letter: everything before it has ended

	open []string // of the Kafka transaction
	here []int    // the first place that has not been dealt with
}

func (s *simulatedRelay) run(ctx context.Context) error {
	s.open, s.here = nil, []int{0, 0, 0}
	for i, tx := range s.log {
		if tx.end <= s.order {
			continue
		}
		for j, it := range tx.items {
			if err := s.item(ctx, tx, it, []int{i, j, 0}); err != nil {
				return err
			}
			s.here = []int{i, j + 1, 0}
			if rapid.IntRange(0, 5).Draw(s.t, "commit inside") == 0 {
				if err := s.commit(ctx, s.order); err != nil {
					return err
				}
			}
		}
		s.here = []int{i + 1, 0, 0}
		if rapid.IntRange(0, 2).Draw(s.t, "commit") == 0 || i == len(s.log)-1 {
			if err := s.commit(ctx, tx.end); err != nil {
				return err
			}
		}
	}
	return nil
}

// commit commits the Kafka transaction with the checkpoint in it.
func (s *simulatedRelay) commit(ctx context.Context, order pglogrepl.LSN) error {
	if err := s.crash("before the Kafka commit"); err != nil {
		return err
	}
	s.topic, s.open, s.order = append(s.topic, s.open...), nil, order
	if slices.Compare(s.upto, s.here) < 0 {
		s.upto = slices.Clone(s.here)
	}
	if err := s.crash("after the Kafka commit"); err != nil {
		return err
	}
	if err := s.lb.Settle(ctx, order); err != nil {
		return err
	}
	return s.crash("after settling")
}

func (s *simulatedRelay) done(at []int) bool { return slices.Compare(at, s.upto) < 0 }

func (s *simulatedRelay) item(ctx context.Context, tx logTx, it logItem, at []int) error {
	if it.control != nil {
		return s.control(ctx, tx, it.control, at)
	}
	c := it.event
	if s.done(at) {
		return nil
	}
	ended, err := s.lb.Ended(ctx, c.ID(), c.Commit)
	if err != nil || ended {
		return err
	}
	given := *c
	switch {
	case it.skip:
		if _, err = s.lb.Owner.Exec(ctx, "UPDATE onceward.relay_state SET skip = ARRAY[$2::uuid] WHERE slot = $1", s.lb.Slot, given.ID()); err == nil {
			_, err = s.lb.Skip(ctx, given)
		}
	case c.Replay == nil && s.lb.Parked(c.Row, c.Commit):
		given.Class, given.Holds = ClassFollows, true
		err = s.lb.park(ctx, given)
	case isPoison(c.Row.Payload):
		err = s.lb.park(ctx, given)
	default:
		s.open = append(s.open, recordLine(c, c.Row.Payload))
	}
	if err != nil {
		return err
	}
	return s.crash("after an event")
}

func (s *simulatedRelay) control(ctx context.Context, tx logTx, c *cdc.Control, at []int) error {
	r, err := s.lb.Apply(ctx, c, nil, tx.commit, false)
	if err == nil {
		err = s.crash("after a word")
	}
	if err != nil || r == nil {
		return err
	}
	for stuck := false; ; {
		page, err := r.Next(ctx)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, l := range page {
			place := []int{at[0], at[1], int(l.Index)}
			if s.done(place) || stuck && l.Holds {
				continue
			}
			if isPoison(l.Row.Payload) {
				err = r.Fail(ctx, l, ClassRecord, "still poison")
				stuck = stuck || l.Holds
			} else {
				c := Dead{Row: l.Row, Replay: l.Replay}
				s.open = append(s.open, recordLine(&c, l.Row.Payload))
			}
			s.here = []int{at[0], at[1], int(l.Index) + 1}
			if err == nil && rapid.IntRange(0, 5).Draw(s.t, "commit between letters") == 0 {
				err = s.commit(ctx, s.order)
			}
			if err == nil {
				err = s.crash("after a letter")
			}
			if err != nil {
				return err
			}
		}
	}
}

func TestLettersModel(t *testing.T) {
	for _, version := range []string{"15", "18"} {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			server := testdb.Server(t, pgserver.Options{Version: version})
			lb, runs, crashes, letters, released := newLetterbox(t, server), 0, 0, 0, 0
			rapid.Check(t, func(rt *rapid.T) {
				runs++
				lb.Slot = fmt.Sprintf("onceward_model_%d", runs)
				lb.AddRelay(lb.Slot)
				log := drawLog(rt)
				want := readPlainly(log)
				s := &simulatedRelay{t: rt, lb: lb, log: log, upto: []int{0, 0, 0}}
				left := rapid.IntRange(0, 12).Draw(rt, "crashes")
				s.crash = func(where string) error {
					if left == 0 || rapid.IntRange(0, 7).Draw(rt, where) > 0 {
						return nil
					}
					left--
					crashes++
					return errRelayDies
				}
				for err := errRelayDies; err != nil; {
					lb.reopen(s.order)
					lb.beyond.window = rapid.SampledFrom([]int32{1, 3, 1000}).Draw(rt, "window")
					if err = s.run(t.Context()); !errors.Is(err, errRelayDies) {
						require.NoError(rt, err)
					}
				}
				got := s.outcome()
				require.Equal(rt, sortedByAggregate(want.published), sortedByAggregate(got.published), "order of each aggregate, none lost, none twice")
				require.Equal(rt, want.letters, got.letters)
				require.Equal(rt, want.words, got.words)
				require.GreaterOrEqual(rt, lb.State.Written, int64(len(want.letters)+len(want.words)))
				requireConserved(rt, log, got)
				letters += len(want.letters)
				for _, state := range want.letters {
					if strings.HasPrefix(state, "replayed") {
						released++
					}
				}
			})
			t.Logf("%d logs, %d crashes, %d letters, %d of them released", runs, crashes, letters, released)
		})
	}
}

// requireConserved: in the end each event is in Kafka once or in a discarded letter, and
// aggregates that are parked as a whole are in commit order.
func requireConserved(t *rapid.T, log []logTx, got lettersOutcome) {
	seen := make(map[string]int)
	last := make(map[string]string)
	for _, r := range got.published {
		f := strings.Fields(r)
		seen[f[1]]++
	}
	for _, tx := range log {
		for _, it := range tx.items {
			if it.event == nil {
				continue
			}
			id := it.event.ID()
			n := seen[id.String()]
			if strings.HasPrefix(got.letters[id], letterDiscarded) {
				n++
			}
			require.Equal(t, 1, n, "event %s", id)
			if it.event.Replay != nil {
				delete(seen, id.String()) // outside the order
			}
		}
	}
	for _, r := range got.published {
		f := strings.Fields(r)
		if f[0] == "L" || seen[f[1]] == 0 {
			continue
		}
		require.Less(t, last[f[0]], f[1], "aggregate %s", f[0])
		last[f[0]] = f[1]
	}
}

// outcome reads what is there.
func (s *simulatedRelay) outcome() lettersOutcome {
	b := s.lb
	out := lettersOutcome{published: s.topic, letters: make(map[uuid.UUID]string), words: make(map[uuid.UUID]int64)}
	rows, err := b.Owner.Query(b.T.Context(), `SELECT letter_id, state || ' ' || convert_from(payload, 'UTF8') || ' ' || attempts FROM onceward.dead_letters WHERE slot = $1`, b.Slot)
	require.NoError(s.t, err)
	for rows.Next() {
		var id uuid.UUID
		var text string
		require.NoError(s.t, rows.Scan(&id, &text))
		out.letters[id] = text
	}
	require.NoError(s.t, rows.Err())
	rows, err = b.Owner.Query(b.T.Context(), `SELECT control_id, letters FROM onceward.control_results WHERE slot = $1`, b.Slot)
	require.NoError(s.t, err)
	for rows.Next() {
		var id uuid.UUID
		var n int64
		require.NoError(s.t, rows.Scan(&id, &n))
		out.words[id] = n
	}
	require.NoError(s.t, rows.Err())
	return out
}
