package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/replay"
)

// What is printed to go on can be run, also where nothing was asked for.
func TestAnInterruptedReplaySaysHowToGoOn(t *testing.T) {
	printed := func(r replay.Result) string {
		p := &page{}
		printReplay(p, &r)
		return p.text.String()
	}
	require.Contains(t, printed(replay.Result{Selected: 3}), "3 are left; the same command goes on")
	const after = "-7/ffffffff-ffff-ffff-ffff-ffffffffffff"
	require.Contains(t, printed(replay.Result{Selected: 3, Requested: 1, After: after}), "2 are left; the same command with --after -7/ffffffff-ffff-ffff-ffff-ffffffffffff goes on")
}
