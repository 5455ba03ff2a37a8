package produce

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPace(t *testing.T) {
	begin := time.Now()
	var p pace
	for _, c := range []struct {
		after   time.Duration
		bytes   int
		more    bool
		hurried bool
		late    time.Duration
		want    bool
	}{
		{0, 1, false, false, 0, true}, // after a silence, at once
		{1, 1, false, false, 0, false},
		{paceInterval - 1, paceBytes - 1, false, false, 0, false},
		{paceInterval, paceFlow - 1, false, false, 0, true},
		{2*paceInterval - 1, paceFlow, false, false, 0, false},
		{2 * paceInterval, paceFlow, false, false, 0, true},
		{2*paceInterval + paceFlowInterval - 1, paceBytes - 1, false, false, 0, false}, // a flow
		{2*paceInterval + paceFlowInterval, 1, false, false, 0, true},
		{time.Minute, 1, false, false, 0, true},
		{time.Minute + 1, paceBytes, true, false, 0, true}, // so much does not wait
		{time.Minute + 1, 1, true, false, 0, false},
		{time.Minute + 2, 2, false, false, 0, true}, // nor does the end of what that is a part of
		{time.Minute + 2, 1, false, false, 0, false},
		{time.Minute + 2, 1, true, true, 0, true}, // nor what somebody waits for
		{time.Minute + paceInterval, 1, false, false, 0, false},
		{time.Hour, 1, true, false, 0, false}, // what comes with it is waited for
		{time.Hour + 1, 2, true, false, 0, false},
		{time.Hour + 2, 3, false, false, 0, true},
		{time.Hour + 3, 1, false, false, 0, false},
		{2 * time.Hour, 1, true, false, 0, false},
		{2*time.Hour + paceInterval - 1, 1, true, false, 0, false},
		{2*time.Hour + paceInterval, 1, true, false, 0, true}, // but not for long
		{3 * time.Hour, 4 * paceFlow, false, false, time.Second / 4, true},
		{3*time.Hour + paceFlowInterval + 1, 1, false, false, time.Minute, false}, // it was late by a quarter of a second
		{3*time.Hour + time.Second/4/paceLate, paceFlow, false, false, time.Minute, true},
		{4 * time.Hour, 4 * paceFlow, false, false, time.Minute, true},
		{4*time.Hour + paceLateInterval - 1, paceBytes - 1, false, false, time.Minute, false},
		{4*time.Hour + paceLateInterval, 1, false, false, time.Minute, true},
		{4*time.Hour + paceLateInterval + paceInterval, 1, false, false, time.Minute, true}, // no flow any more
		{5 * time.Hour, paceFlow, false, false, time.Minute, true},                          // late or said to be: as long as it stays a flow
		{5*time.Hour + paceFlowInterval, 1, false, false, time.Minute, true},
	} {
		require.Equal(t, c.want, p.admits(begin.Add(c.after), c.bytes, c.more, c.late, c.hurried), "%+v", c)
	}
}

// The loop is woken once for many records, unless it comes by itself, and once more
// when they have become much.
func TestIntakeWakesTheLoopSparingly(t *testing.T) {
	in := newIntake()
	woken := func() bool {
		select {
		case <-in.wake:
			return true
		default:
			return false
		}
	}
	put := func(bytes int, more bool) { in.put(&Record{Bytes: bytes, More: more}) }
	now, pace := time.Now(), &pace{}
	take := func(after time.Duration) (first *Record, p Producer, later bool) {
		return in.take(now.Add(after), pace, false)
	}
	put(1, false)
	require.True(t, woken())
	put(1, false)
	require.False(t, woken(), "it has been told")
	first, _, later := take(0)
	require.Equal(t, 2, count(first))
	require.False(t, later)
	put(1, false)
	require.True(t, woken())
	_, _, later = take(1)
	require.True(t, later)
	put(1, false)
	require.False(t, woken(), "it comes by itself")
	put(paceBytes, false)
	require.True(t, woken(), "it is much")
	put(paceBytes, false)
	require.False(t, woken())
	in.become(Producer{ID: 7})
	first, p, later := take(2)
	require.False(t, later)
	require.EqualValues(t, 7, p.ID)
	require.Equal(t, 4, count(first))
	_, _, later = take(time.Hour)
	require.False(t, later, "there is nothing")

	put(1, true)
	require.True(t, woken())
	_, _, later = take(time.Hour)
	require.True(t, later)
	put(1, true)
	require.False(t, woken())
	put(1, false)
	require.True(t, woken(), "what comes together is there")
	first, _, _ = take(time.Hour)
	require.Equal(t, 3, count(first))
	put(1, false)
	require.True(t, woken())
}

func count(first *Record) (n int) {
	for ; first != nil; first = first.next {
		n++
	}
	return n
}
