package cdc

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A slot that was there once, or that may not be made, is not made: the server is
// asked for nothing, which is why no connection is needed to be refused.
func TestASlotThatExistedIsNotMadeInSilence(t *testing.T) {
	cfg, err := newWalsender(t).config().withDefaults()
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		create, existed bool
		want            string
	}{
		"it existed":                       {create: true, existed: true, want: "slot onceward_shop existed and is gone"},
		"it existed and may not be made":   {existed: true, want: "slot onceward_shop existed and is gone"},
		"it never was and may not be made": {want: "postgres.slot.create is never"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.CreateSlot = tc.create
			err := createSlot(t.Context(), nil, cfg, tc.existed)
			var start *StartError
			require.ErrorAs(t, err, &start)
			require.Equal(t, CodeSlotMissing, start.Code)
			require.Contains(t, start.What, tc.want)
			require.Contains(t, start.Cure, "set postgres.slot.create: auto and restart the relay")
		})
	}
}
