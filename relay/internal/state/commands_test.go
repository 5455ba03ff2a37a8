package state

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func TestCommandsSkip(t *testing.T) {
	id := uuid.New()
	require.True(t, (&Commands{Skip: []uuid.UUID{uuid.New(), id}}).Skips(id))
	require.False(t, (&Commands{}).Skips(id))
}
