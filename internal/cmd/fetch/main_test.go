package main

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
)

func TestArgumentsThatMakeNoSenseAreRefused(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for want, args := range map[string][]string{
		"no arguments":                   {},
		"and no arguments":               {"-kafka", "4.1.1", "more"},
		`-postgres "new"`:                {"-postgres", "new"},
		"the library has 15 to 18":       {"-postgres", "99"},
		pgserver.ErrNotInstalled.Error(): {"-find", "99"},
	} {
		require.ErrorContains(t, run(t.Context(), args, io.Discard), want)
	}
}
