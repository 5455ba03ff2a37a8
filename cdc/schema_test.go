package cdc

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgconf"
)

// What a relay asks for at its start is the newest migration.
func TestSchemaVersion(t *testing.T) {
	steps, err := os.ReadDir("../migrations/outbox")
	require.NoError(t, err)
	require.Len(t, steps, pgconf.OutboxSchema, "one file is one version")
}
