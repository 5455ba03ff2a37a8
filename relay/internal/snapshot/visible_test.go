package snapshot

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVisible(t *testing.T) {
	v, err := Parse("10:20:10,14,15")
	require.NoError(t, err)
	for xid := range uint64(25) {
		want := xid < 10 || xid < 20 && xid != 10 && xid != 14 && xid != 15
		require.Equal(t, want, v.Sees(xid), "%d", xid)
	}
	require.False(t, Visible{}.Sees(1), "the zero value sees nothing")
	v, err = Parse(None)
	require.NoError(t, err)
	require.False(t, v.Sees(3), "the first transaction that there can be")
	for _, bad := range []string{"", "1:2", "x:2:", "1:x:", "1:2:x", "1:2:3,"} {
		_, err := Parse(bad)
		require.ErrorContains(t, err, "parse snapshot", bad)
	}
}
