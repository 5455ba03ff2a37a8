package migrations

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestServersAreRefused(t *testing.T) {
	for _, version := range []int{150000, 150012, 180003} {
		require.NoError(t, supported(version, "UTF8"))
	}
	err := supported(140019, "UTF8")
	require.ErrorIs(t, err, ErrOldServer)
	require.ErrorContains(t, err, "it is PostgreSQL 14, and 15 is the oldest")
	err = supported(150000, "LATIN1")
	require.ErrorIs(t, err, ErrEncoding)
	require.ErrorContains(t, err, "ENCODING 'UTF8'")
}
