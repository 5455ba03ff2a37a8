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
		bytes   int64
		hurried bool
		want    bool
	}{
		{0, 1, false, true}, // after a silence, at once
		{1, 1, false, false},
		{paceInterval - 1, paceBytes - 1, false, false},
		{paceInterval, 1, false, true},
		{paceInterval + 1, paceBytes, false, true}, // so much does not wait
		{2 * paceInterval, 1, false, false},
		{2 * paceInterval, 1, true, true}, // nor what somebody waits for
		{3*paceInterval - 1, 1, false, false},
		{3 * paceInterval, 1, false, true},
		{time.Hour, 1, false, true},
	} {
		require.Equal(t, c.want, p.admits(begin.Add(c.after), c.bytes, c.hurried), "%+v", c)
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
	put := func(cost int64) { in.put(&Record{Cost: cost}) }
	refuse, admit := func(int64) bool { return false }, func(int64) bool { return true }
	put(1)
	require.True(t, woken())
	put(1)
	require.False(t, woken(), "it has been told")
	first, _, later := in.take(refuse)
	require.Nil(t, first)
	require.True(t, later)
	put(1)
	require.False(t, woken())
	put(paceBytes)
	require.True(t, woken(), "it is much")
	put(paceBytes)
	require.False(t, woken())
	in.become(Producer{ID: 7})
	first, p, later := in.take(admit)
	require.False(t, later)
	require.EqualValues(t, 7, p.ID)
	n := 0
	for ; first != nil; first = first.next {
		n++
	}
	require.Equal(t, 5, n)
	_, _, later = in.take(refuse)
	require.False(t, later, "there is nothing")
	put(1)
	require.True(t, woken())
}
