package partitions

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/partition"
)

// The cure of too few days is not the command that has just made them all.
func TestFewNamesWhatMendsIt(t *testing.T) {
	const maintain = "outboxctl partitions maintain --config relay.yaml"
	require.NoError(t, Few(partition.FewAhead, true, 3))
	require.ErrorContains(t, Few(3, true, Unknown), maintain+"`, in which outbox.partitions.ahead is 7 or more")
	require.ErrorContains(t, Few(3, true, 14), maintain)
	err := Few(3, true, 3)
	require.ErrorContains(t, err, "no more than 3 are wanted: set outbox.partitions.ahead of relay.yaml (or --ahead) to 7 or more")
	require.NotContains(t, err.Error(), maintain)
	require.ErrorContains(t, Few(0, false, 3), "no partition of today")
}
