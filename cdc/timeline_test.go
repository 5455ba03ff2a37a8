package cdc

import (
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
)

func TestSwitchPoint(t *testing.T) {
	history := []byte("1\t0/5000148\tno recovery target specified\n\n# a comment\n2\t1/A0\tbefore 2026-11-21 00:00:00+00\n")
	for timeline, want := range map[int32]pglogrepl.LSN{1: 0x5000148, 2: 0x1000000A0} {
		at, ok, err := switchPoint(history, timeline)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, want, at)
	}
	_, ok, err := switchPoint(history, 3)
	require.NoError(t, err)
	require.False(t, ok, "not an ancestor")
	for _, broken := range []string{"x\t0/0\t", "1\tnowhere\t"} {
		_, _, err := switchPoint([]byte(broken), 1)
		require.Error(t, err)
	}
}
