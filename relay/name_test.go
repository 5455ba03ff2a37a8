package relay

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

// TestPrintedNamesAreTaken: a command that we print names an event as the command takes it,
// also where the event cannot be published because its key is none.
func TestPrintedNamesAreTaken(t *testing.T) {
	key, err := outbox.NewKey("shop")
	require.NoError(t, err)
	none := uuid.MustParse("01a205b2-e237-4e84-a491-0bc33d023801")
	require.Equal(t, key.String(), nameOf("shop", key.UUID()))
	require.Equal(t, none.String(), nameOf("shop", none), "version 4")
	require.Equal(t, key.UUID().String(), nameOf("no namespace!", key.UUID()))
	require.Equal(t, key.UUID().String(), nameOf(strings.Repeat("x", 1000), key.UUID()))
	row := *of("a").Row
	row.ID = none
	full := overLimit(aggregate{"shop", "order", "a"}, 1, "s", &casualty{row: &row, cause: "bad"})
	require.Contains(t, full.Cure, "outboxctl skip "+none.String()+" --slot s")
}
