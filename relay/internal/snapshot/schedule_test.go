package snapshot

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/outbox"
)

func TestASnapshotIsDueWhenSomethingWasReadOrAsked(t *testing.T) {
	s := NewSchedule()
	require.True(t, s.Due(0, false), "the first of a run")
	s.Took(s.Next(0), Snapshot{Text: "a"})
	require.False(t, s.Due(0, false), "an idle database rests")
	require.True(t, s.Due(3, false))
	s.Took(s.Next(3), Snapshot{Text: "b"})
	require.False(t, s.Due(3, false))
	require.True(t, s.Due(3, true), "retention asks")
	require.True(t, s.Due(3, false), "and is not forgotten")
}

func TestTheNewestReachedSnapshotIsPublished(t *testing.T) {
	s := NewSchedule()
	for i := range 3 {
		s.Took(s.Next(uint64(i)), Snapshot{Text: fmt.Sprint("s", i+1)})
	}
	_, ok := s.Published(0)
	require.False(t, ok)
	got, ok := s.Published(2)
	require.True(t, ok)
	require.Equal(t, "s2", got.Text)
	_, ok = s.Published(2)
	require.False(t, ok, "once")
	got, ok = s.Published(3)
	require.True(t, ok)
	require.Equal(t, "s3", got.Text)
}

func TestPendingSnapshotsAreBounded(t *testing.T) {
	s := NewSchedule()
	n := 0
	for events := uint64(1); events < 1000; events++ {
		if s.Due(events, false) {
			s.Took(s.Next(events), Snapshot{})
			n++
		}
	}
	require.Equal(t, maxPending, n)
}

// The invariant, against a naive model: a published snapshot never covers a
// transaction whose events have not all ended.
func TestAPublishedSnapshotCoversOnlyWhatHasEnded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := ledger.NewProgress(1)
		s := NewSchedule()
		covers := map[string]uint64{} // events committed when the snapshot was taken
		var committed uint64          // events whose transaction has committed
		var stream []func()           // what the reader will read, in order
		ended := map[uint64]bool{}
		read := uint64(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0: // a transaction of one event commits
				committed++
				stream = append(stream, func() { p.Read(); read++ })
			case 1: // a tick takes a snapshot
				if !s.Due(p.Events(), false) {
					continue
				}
				m := s.Next(p.Events())
				text := fmt.Sprint(m.ID)
				covers[text] = committed
				s.Took(m, Snapshot{Text: text})
				stream = append(stream, func() { p.Mark(m.ID) })
			case 2: // the reader reads on
				if len(stream) > 0 {
					stream[0]()
					stream = stream[1:]
				}
			case 3: // Kafka acknowledges any one
				for tag := range read {
					if !ended[tag] && rapid.Bool().Draw(t, "this one") {
						ended[tag] = true
						require.NoError(t, p.End(tag))
						break
					}
				}
			case 4:
				got, ok := s.Published(p.Marked())
				if !ok {
					continue
				}
				for tag := range covers[got.Text] {
					if !ended[tag] {
						t.Fatalf("snapshot %s is published, but event %d has not ended", got.Text, tag)
					}
				}
			}
		}
	})
}

// server is a model of a database whose commits can be read before they are
// visible.
type server struct {
	next    uint64
	open    []uint64 // not visible
	visible map[uint64]bool
}

// snapshot is a pg_snapshot in text form. Its end is behind the last transaction
// that is visible, as PostgreSQL's is.
func (s *server) snapshot() string {
	xmax := uint64(3)
	for id := range s.visible {
		xmax = max(xmax, id+1)
	}
	xmin, list := xmax, ""
	for _, id := range s.open {
		if id < xmax {
			xmin = min(xmin, id)
			list += fmt.Sprintf(",%d", id)
		}
	}
	return fmt.Sprintf("%d:%d:%s", xmin, xmax, strings.TrimPrefix(list, ","))
}

func (s *server) sees(snapshot string, id uint64) bool {
	return len(left([]uint64{id}, snapshot)) == 0
}

// TestWhatWasReadIsSeenByASnapshotAtLast: commits are read before they are
// visible, in any order, beside transactions that stay open and relays that are
// started again. Once a commit is visible, the next tick takes a snapshot that
// sees it; with nothing new to see none is taken.
func TestWhatWasReadIsSeenByASnapshotAtLast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		db := &server{next: 3, visible: map[uint64]bool{}}
		s := NewSchedule()
		var read, sinceTick []uint64 // transactions
		var events uint64
		published := ""
		tick := func() (took bool) {
			text := db.snapshot()
			s.Sees(text, sinceTick)
			sinceTick = nil
			if s.Due(events, false) {
				m := s.Next(events)
				s.Took(m, Snapshot{Text: text})
				got, ok := s.Published(m.ID) // everything read has ended
				require.True(t, ok)
				published, took = got.Text, true
			}
			return took
		}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0: // a transaction begins; most are nobody's business
				db.open = append(db.open, db.next)
				db.next++
			case 1: // a commit is read
				if len(db.open) > 0 {
					id := rapid.SampledFrom(db.open).Draw(t, "read")
					read, sinceTick = append(read, id), append(sinceTick, id)
					events++
				}
			case 2: // one becomes visible
				if len(db.open) > 0 {
					i := rapid.IntRange(0, len(db.open)-1).Draw(t, "visible")
					db.visible[db.open[i]] = true
					db.open = slices.Delete(db.open, i, i+1)
				}
			case 3:
				tick()
			case 4: // the relay is started again, and reads nothing a second time
				if db.next-3 < aheadAtStart {
					s, sinceTick, events = NewSchedule(), nil, 0
				}
			}
		}
		tick()
		for _, id := range read {
			if db.visible[id] && !db.sees(published, id) {
				t.Fatalf("transaction %d was read, is visible, and %q does not see it", id, published)
			}
		}
		require.False(t, tick(), "nothing new to see")
	})
}

func TestForgedTransactionsAreNotWaitedFor(t *testing.T) {
	require.Empty(t, left([]uint64{1 << 40, 5}, "100:120:105"))
	require.Equal(t, []uint64{105, 120, 130}, left([]uint64{130, 105, 106, 120, 120}, "100:120:105"))
	require.Empty(t, left([]uint64{7}, "nonsense"))
	u := Unseen{}
	bad := cdc.Item{Kind: cdc.KindEvent, Row: &outbox.Row{TxID: 9}, Bad: errors.New("forged")}
	good := cdc.Item{Kind: cdc.KindEvent, Row: &outbox.Row{TxID: 10}}
	for _, it := range []cdc.Item{bad, good, good, {Kind: cdc.KindControl, Control: &cdc.Control{TxID: 11}}, {Kind: cdc.KindCommit}} {
		u.Add(&it)
	}
	require.Equal(t, []uint64{10, 11}, u.read)
}
