package retry

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
)

func TestTriesWaitLongerAndForget(t *testing.T) {
	tr := New()
	late := &NoAnswerError{Step: "x", Limit: stepLimit}
	require.Equal(t, Min, tr.Again(late))
	require.Equal(t, 2*Min, tr.Again(late))
	require.Equal(t, 4*stepLimit, tr.Limit)
	tr.Opened()
	require.Equal(t, stepLimit, tr.Limit)
	for range 20 {
		tr.Again(cdc.ErrSilent)
	}
	require.Equal(t, Max, tr.Again(cdc.ErrSilent))
	require.Equal(t, maxSilenceFactor, tr.Silence)
	tr.Ended(cdc.ErrSilent, true)
	require.Equal(t, maxSilenceFactor, tr.Silence)
	tr.Ended(nil, true)
	require.Equal(t, silenceFactor, tr.Silence)
	require.Equal(t, Min, tr.Again(nil))

	gap := &cdc.StartError{Code: "SLOT_ADVANCED"}
	require.Equal(t, haltedWait, tr.Halted(gap, false))
	require.Equal(t, haltedWait, tr.Halted(gap, false))
	require.Equal(t, haltedWait, tr.Halted(gap, true))
	require.Equal(t, 2*haltedWait, tr.Halted(gap, true))
	require.Equal(t, rivalWait, tr.Halted(&RivalError{}, true))
	for range 5 {
		tr.Halted(gap, true)
	}
	require.Equal(t, haltedMax, tr.Halted(gap, true))
	require.Equal(t, haltedWait, tr.Halted(gap, false))
}
