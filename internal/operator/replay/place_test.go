package replay

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// What is printed to go on can be read.
func TestPlaceIsReadAsItIsWritten(t *testing.T) {
	after := Place{-7, uuid.Max}.String()
	require.Equal(t, "-7/ffffffff-ffff-ffff-ffff-ffffffffffff", after)
	back, err := ParsePlace(after)
	require.NoError(t, err)
	require.Equal(t, Place{-7, uuid.Max}, back)
}
