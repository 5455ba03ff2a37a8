package main

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// What is printed to go on can be run, also where nothing was asked for.
func TestAnInterruptedReplaySaysHowToGoOn(t *testing.T) {
	printed := func(r replayResult) string {
		p := &page{}
		printReplay(p, &r)
		return p.text.String()
	}
	require.Contains(t, printed(replayResult{Selected: 3}), "3 are left; the same command goes on")
	after := rowPlace{-7, uuid.Max}.String()
	require.Contains(t, printed(replayResult{Selected: 3, Requested: 1, After: after}), "2 are left; the same command with --after -7/ffffffff-ffff-ffff-ffff-ffffffffffff goes on")
	back, err := readRowPlace(after)
	require.NoError(t, err)
	require.Equal(t, rowPlace{-7, uuid.Max}, back)
}
