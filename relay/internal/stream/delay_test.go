package stream

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/relay/internal/letters"
)

// The delay is that of what was acknowledged, whatever is stuck before it; of a letter
// and of what waited nobody knows it here.
func TestTheDelayIsOfWhatWasAcknowledged(t *testing.T) {
	sink := newFakeSink()
	var gone atomic.Pointer[[]string]
	gone.Store(&[]string{"held"})
	sink.refuse = missing(&gone)
	p := testPump(sink)
	counts := tallyOf(p)
	stuck, flows, held := typed(200, "order"), typed(300, "order"), typed(400, "held")
	stuck.CommitTime, flows.CommitTime, held.CommitTime = time.Unix(1, 0), time.Unix(2, 0), time.Unix(3, 0)
	require.NoError(t, p.take(t.Context(), []cdc.Item{stuck, commitAt(200), flows, commitAt(300), held, commitAt(400)}))
	tags := sink.tags()
	p.Acknowledged(tags[1:])
	require.Equal(t, []time.Time{flows.CommitTime}, counts.commits)
	p.Acknowledged([]uint64{noTag})
	require.Equal(t, []time.Time{flows.CommitTime}, counts.commits)
	p.Acknowledged(tags[:1])
	require.Equal(t, []time.Time{flows.CommitTime, stuck.CommitTime}, counts.commits)
	sink.acked = len(tags)
	gone.Store(&[]string{})
	releaseAll(t, p)
	require.Len(t, sink.got, 3)
	require.Equal(t, 3, counts.publishedEvents)
	require.Len(t, counts.commits, 2)
}

func TestTheDelayIsOfWhatWasCommitted(t *testing.T) {
	g := quiet()
	g.missing["held"] = true
	p, _, _ := g.session(t)
	counts := tallyOf(p)
	held, flows := typed(200, "held"), typed(300, "order")
	held.CommitTime, flows.CommitTime = time.Unix(1, 0), time.Unix(2, 0)
	require.NoError(t, p.take(t.Context(), []cdc.Item{held, commitAt(200)}))
	delete(g.missing, "held")
	releaseAll(t, p)
	require.Equal(t, 1, counts.publishedEvents)
	require.Empty(t, counts.commits)
	require.NoError(t, p.take(t.Context(), []cdc.Item{flows, commitAt(300)}))
	require.NoError(t, p.Flush(t.Context()))
	require.Equal(t, []time.Time{flows.CommitTime}, counts.commits)
}

// A letter is published once Kafka has acknowledged or committed it.
func TestALetterCountsOnceItIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		transactional, _, _ := quiet().session(t)
		for _, p := range []*Pump{testPump(sink), transactional} {
			sink.answer = nil
			control, released := retryOf(letterOf(0, true))
			control.CommitTime = time.Unix(1, 0) // an operator's, and no event's
			p.letters.store = &fakeLetters{letters: map[uuid.UUID]letters.Dead{}, acted: func(*cdc.Control) pages { return released }}
			took := make(chan error, 1)
			go func() { took <- p.take(t.Context(), []cdc.Item{control, commitAt(300)}) }()
			synctest.Wait()
			require.Zero(t, tallyOf(p).letters)
			if p.sink == sink {
				p.Acknowledged(sink.tags())
			}
			require.NoError(t, <-took)
			require.NoError(t, p.Flush(t.Context()))
			require.Equal(t, 1, tallyOf(p).letters)
			for _, since := range tallyOf(p).commits {
				require.Zero(t, since)
			}
		}
	})
}
