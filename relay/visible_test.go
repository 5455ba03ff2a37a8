package relay

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestVisible(t *testing.T) {
	v, err := parseVisible("10:20:10,14,15")
	require.NoError(t, err)
	for xid := range uint64(25) {
		want := xid < 10 || xid < 20 && xid != 10 && xid != 14 && xid != 15
		require.Equal(t, want, v.sees(xid), "%d", xid)
	}
	require.False(t, visible{}.sees(1), "the zero value sees nothing")
	v, err = parseVisible(noneVisible)
	require.NoError(t, err)
	require.False(t, v.sees(3), "the first transaction that there can be")
	for _, bad := range []string{"", "1:2", "x:2:", "1:x:", "1:2:x", "1:2:3,"} {
		_, err := parseVisible(bad)
		require.ErrorContains(t, err, "parse snapshot", bad)
	}
}

// A repair's place in the checkpoint comes back, whatever else is in it.
func TestMendedIsPartOfTheCheckpoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := checkpoint{order: 1, timeline: 1, tick: 2, letters: 3, session: 4}
		copy(c.mended.gap[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "gap"))
		c.mended.gap[0] |= 1
		c.mended.cursor = rapid.Int64().Draw(t, "cursor")
		again, err := parseCheckpoint(1, c.meta())
		require.NoError(t, err)
		require.Equal(t, c, again)
	})
	for _, bad := range []string{"repair=x", "repair=x@1", "repair=0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a@x"} {
		_, err := parseCheckpoint(1, (&checkpoint{}).meta()+" "+bad)
		require.Error(t, err, bad)
	}
}
