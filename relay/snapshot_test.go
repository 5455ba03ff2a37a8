package relay

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/cdc"
)

func TestASnapshotIsDueWhenSomethingWasReadOrAsked(t *testing.T) {
	s := newSnapshots()
	require.True(t, s.due(0, false), "the first of a run")
	s.took(s.next(0), snapshot{text: "a"})
	require.False(t, s.due(0, false), "an idle database rests")
	require.True(t, s.due(3, false))
	s.took(s.next(3), snapshot{text: "b"})
	require.False(t, s.due(3, false))
	require.True(t, s.due(3, true), "retention asks")
	require.True(t, s.due(3, false), "and is not forgotten")
}

func TestTheNewestReachedSnapshotIsPublished(t *testing.T) {
	s := newSnapshots()
	for i := range 3 {
		s.took(s.next(uint64(i)), snapshot{text: fmt.Sprint("s", i+1)})
	}
	_, ok := s.published(0)
	require.False(t, ok)
	got, ok := s.published(2)
	require.True(t, ok)
	require.Equal(t, "s2", got.text)
	_, ok = s.published(2)
	require.False(t, ok, "once")
	got, ok = s.published(3)
	require.True(t, ok)
	require.Equal(t, "s3", got.text)
}

func TestPendingSnapshotsAreBounded(t *testing.T) {
	s := newSnapshots()
	n := 0
	for events := uint64(1); events < 1000; events++ {
		if s.due(events, false) {
			s.took(s.next(events), snapshot{})
			n++
		}
	}
	require.Equal(t, maxPending, n)
}

// The invariant, against a naive model: a published snapshot never covers a
// transaction whose events have not all ended.
func TestAPublishedSnapshotCoversOnlyWhatHasEnded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := cdc.NewProgress(1)
		s := newSnapshots()
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
				if !s.due(p.Events(), false) {
					continue
				}
				m := s.next(p.Events())
				text := fmt.Sprint(m.ID)
				covers[text] = committed
				s.took(m, snapshot{text: text})
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
				got, ok := s.published(p.Marked())
				if !ok {
					continue
				}
				for tag := range covers[got.text] {
					if !ended[tag] {
						t.Fatalf("snapshot %s is published, but event %d has not ended", got.text, tag)
					}
				}
			}
		}
	})
}
