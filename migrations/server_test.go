package migrations

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOldServersAreRefused(t *testing.T) {
	for _, version := range []int{150000, 150012, 180003} {
		require.NoError(t, supported(version))
	}
	err := supported(140019)
	require.ErrorIs(t, err, ErrOldServer)
	require.ErrorContains(t, err, "it is PostgreSQL 14, and 15 is the oldest")
}
