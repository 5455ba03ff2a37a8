package label

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
	require.Equal(t, key.String(), Argument("shop", key.UUID()))
	require.Equal(t, none.String(), Argument("shop", none), "version 4")
	require.Equal(t, key.UUID().String(), Argument("no namespace!", key.UUID()))
	require.Equal(t, key.UUID().String(), Argument(strings.Repeat("x", 1000), key.UUID()))
}

func TestClipEndsAtARune(t *testing.T) {
	require.Equal(t, "äöü", Clip("äöü", 6))
	require.Equal(t, "äö…", Clip("äöü", 5))
	require.Equal(t, strings.Repeat("x", 120)+"…", Short(strings.Repeat("x", 121)))
}
