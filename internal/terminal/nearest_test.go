package terminal

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNearest(t *testing.T) {
	require.Equal(t, "status", Nearest("statsu", []string{"migrate", "status", "show"}))
	require.Equal(t, "a", Nearest("x", []string{"b", "a"}), "the same answer every time")
	require.Empty(t, Nearest("x", nil))
	require.Equal(t, "instance", Nearest("insecure", []string{"kafka.insecure", "ONCEWARD_KAFKA_INSECURE", "insecure", "instance"}))
	require.Empty(t, Nearest("insecur", []string{"insecure"}))
}

func TestResembles(t *testing.T) {
	require.True(t, Resembles("statsu", "status"))
	require.True(t, Resembles("ab", "cd"), "two letters may both be wrong")
	require.False(t, Resembles("stats", "migrate"))
	require.False(t, Resembles("x", ""))
}
