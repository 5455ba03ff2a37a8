package relay

import (
	"fmt"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/cdc"
)

func lsn(n uint64) pglogrepl.LSN { return pglogrepl.LSN(n) }

func drawPlace(t *rapid.T) place {
	return place{commit: lsn(rapid.Uint64().Draw(t, "commit")), ordinal: rapid.Uint32().Draw(t, "ordinal"), letter: rapid.Uint32().Draw(t, "letter")}
}

func TestACheckpointIsReadAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := checkpoint{
			horizon:  horizon{order: lsn(rapid.Uint64().Draw(t, "order")), upto: drawPlace(t)},
			timeline: rapid.Int32().Draw(t, "timeline"), tick: rapid.Int64().Draw(t, "tick"),
			letters: rapid.Int64().Draw(t, "letters"), epoch: rapid.Int64().Draw(t, "epoch"),
		}
		for range rapid.IntRange(0, 5).Draw(t, "lanes") {
			of := lane{namespace: rapid.String().Draw(t, "namespace"), aggregateType: rapid.String().Draw(t, "type")}
			if rapid.Bool().Draw(t, "replay") {
				of = lane{topic: rapid.StringN(1, 20, 80).Draw(t, "topic")}
			}
			if want.held == nil {
				want.held = map[lane]place{}
			}
			want.held[of] = drawPlace(t)
		}
		got, err := parseCheckpoint(uint64(want.order), want.meta())
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}

func TestTheCheckpointsTextIsFixed(t *testing.T) {
	c := checkpoint{
		horizon: horizon{order: 0x16B3748, upto: place{0x16B3800, 12, 0}, held: map[lane]place{
			{namespace: "shop", aggregateType: "order line"}: {0x16B3748, 3, 2}, {topic: "again"}: {0x16B3750, 0, 0},
		}}, timeline: 2, tick: 77, letters: 5, epoch: 9,
	}
	require.Equal(t, "onceward/1 timeline=2 tick=77 letters=5 epoch=9 upto=0/16B3800,12,0 held=>again@0/16B3750,0,0 held=shop/order+line@0/16B3748,3,2", c.meta())
}

func FuzzACheckpointOfSomebodyElseIsRefusedOrUnderstood(f *testing.F) {
	for _, seed := range []string{
		"", "onceward/1", "onceward/2 timeline=1", "onceward/1 timeline=1 tick=1 letters=1 epoch=1 upto=0/1,2,3 held=a/b@0/1,2,3",
		"onceward/1 timeline=x", "onceward/1 timeline=1 tick=1 letters=1 epoch=1 upto=0/1", "onceward/1 timeline=1 tick=1 letters=1 epoch=1 upto=0/1,2,3 held=a@0/1,2,3",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, meta string) {
		c, err := parseCheckpoint(1, meta)
		if err != nil {
			return
		}
		again, err := parseCheckpoint(1, c.meta())
		require.NoError(t, err)
		require.Equal(t, c, again)
	})
}

// model is a relay in exactly-once mode without anything that is not of the
// resume rule: the stream, the lanes that are held, transactions and crashes.
type model struct {
	t      *rapid.T
	stream []cdc.Item
	out    map[string]int      // committed, by item
	order  map[string][]string // committed, by lane
	saved  checkpoint

	read     int
	pipeline *pipeline
	open     []step
}

func (m *model) start() {
	c, err := parseCheckpoint(uint64(m.saved.order), m.saved.meta())
	if err != nil {
		m.t.Fatal(err)
	}
	m.pipeline = newPipeline(c.horizon, 1<<30, newBooks(c.order, 7, newMetrics("test")), nil)
	m.read, m.open = 0, nil
	// The reader delivers a transaction whole or not at all.
	for m.read < len(m.stream) && m.stream[m.read].Commit < c.order {
		m.read++
	}
}

func (m *model) publish(s step) {
	m.open = append(m.open, s)
	if err := m.pipeline.progress.End(s.tag); err != nil {
		m.t.Fatal(err)
	}
}

// step reads one item.
func (m *model) step() {
	if m.read == len(m.stream) {
		return
	}
	p := m.pipeline
	batch := []cdc.Item{m.stream[m.read]}
	m.read++
	if err := p.read(batch); err != nil {
		m.t.Fatal(err)
	}
	for _, s := range p.steps {
		w := p.lanes.find(s.lane())
		if w == nil && rapid.IntRange(0, 9).Draw(m.t, "refused") == 0 {
			w = p.lanes.hold(s.lane(), serverNow())
		}
		if w != nil {
			p.lanes.add(w, s)
		} else {
			m.publish(s)
		}
		p.next = s.at.after()
	}
	p.next = p.at
}

// heal publishes some of what a lane holds.
func (m *model) heal(all bool) {
	p := m.pipeline
	for _, w := range append([]*waiting(nil), p.lanes.all...) {
		for len(w.steps) > 0 && (all || rapid.Bool().Draw(m.t, "released")) {
			m.publish(w.steps[0])
			p.lanes.pop(w)
		}
		if len(w.steps) == 0 {
			p.lanes.release(w)
		}
	}
}

func (m *model) commit() {
	m.saved = checkpoint{horizon: m.pipeline.horizon()}
	for _, s := range m.open {
		name := fmt.Sprint(s.at)
		m.out[name]++
		of := s.lane().String()
		m.order[of] = append(m.order[of], name)
	}
	m.open = nil
}

// For any stream, any lanes held at any time, any transactions and any crashes,
// every item is committed exactly once, and those of a lane in order.
func TestEveryItemIsCommittedExactlyOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{t: t, out: map[string]int{}, order: map[string][]string{}, saved: checkpoint{horizon: horizon{order: 100}}}
		want := map[string][]string{}
		end := uint64(100)
		for range rapid.IntRange(1, 12).Draw(t, "transactions") {
			commit := end + rapid.Uint64Range(0, 3).Draw(t, "gap") // a commit may begin where the last one ended
			for i := range rapid.IntRange(0, 6).Draw(t, "events") {
				it := typed(commit, string(rune('a'+rapid.IntRange(0, 3).Draw(t, "type"))))
				s := step{it: &it}
				want[s.lane().String()] = append(want[s.lane().String()], fmt.Sprint(place{commit: lsn(commit), ordinal: uint32(i)}))
				m.stream = append(m.stream, it)
			}
			end = commit + 8
			m.stream = append(m.stream, cdc.Item{Kind: cdc.KindCommit, Commit: lsn(commit), End: lsn(end), CommitTime: serverNow()})
		}
		m.start()
		for range rapid.IntRange(0, 120).Draw(t, "steps") {
			switch rapid.IntRange(0, 12).Draw(t, "what") {
			case 0:
				m.start() // a crash: what was open is aborted
			case 1, 2:
				m.heal(false)
			case 3, 4:
				m.commit()
			default:
				m.step()
			}
		}
		for m.read < len(m.stream) {
			m.step()
		}
		m.heal(true)
		m.commit()
		m.start()
		for m.read < len(m.stream) {
			m.step()
		}
		m.heal(true)
		require.Empty(t, m.open, "everything had ended")
		for name, n := range m.out {
			require.Equal(t, 1, n, name)
		}
		require.Equal(t, want, m.order)
		require.Equal(t, lsn(end), m.saved.order)
	})
}
