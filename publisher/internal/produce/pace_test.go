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
		want    bool
	}{
		{0, 1, false, false, true}, // after a silence, at once
		{1, 1, false, false, false},
		{paceInterval - 1, paceBytes - 1, false, false, false},
		{paceInterval, paceFlow - 1, false, false, true},
		{2*paceInterval - 1, paceFlow, false, false, false},
		{2 * paceInterval, paceFlow, false, false, true},
		{2*paceInterval + paceFlowInterval - 1, paceBytes - 1, false, false, false}, // a flow
		{2*paceInterval + paceFlowInterval, 1, false, false, true},
		{time.Minute, 1, false, false, true},
		{time.Minute + 1, paceBytes, true, false, true}, // so much does not wait
		{time.Minute + 1, 1, true, false, false},
		{time.Minute + 2, 2, false, false, true}, // nor does the end of what that is a part of
		{time.Minute + 2, 1, false, false, false},
		{time.Minute + 2, 1, true, true, true}, // nor what somebody waits for
		{time.Minute + paceInterval, 1, false, false, false},
		{time.Hour, 1, true, false, false}, // what comes with it is waited for
		{time.Hour + 1, 2, true, false, false},
		{time.Hour + 2, 3, false, false, true},
		{time.Hour + 3, 1, false, false, false},
		{2 * time.Hour, 1, true, false, false},
		{2*time.Hour + paceInterval - 1, 1, true, false, false},
		{2*time.Hour + paceInterval, 1, true, false, true}, // but not for long
	} {
		require.Equal(t, c.want, p.admits(begin.Add(c.after), c.bytes, c.more, c.hurried), "%+v", c)
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
