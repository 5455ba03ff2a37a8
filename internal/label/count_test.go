package label

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCount(t *testing.T) {
	require.Equal(t, "0 events", Count(0, "event"))
	require.Equal(t, "1 event", Count(int64(1), "event"))
	require.Equal(t, "2 events wait", Count(int32(2), "event waits", "events wait"))
	require.Equal(t, "1 event waits", Count(1, "event waits", "events wait"))
	require.Equal(t, []string{"are", "is", "are"}, []string{Are(0), Are(1), Are(int64(2))})
}
