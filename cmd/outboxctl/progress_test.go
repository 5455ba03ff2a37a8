package main

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := pacer{rate: 100}
		for range 10 {
			require.NoError(t, p.wait(t.Context(), 10))
		}
		require.Equal(t, 900*time.Millisecond, time.Since(began), "the first ten go at once")
		time.Sleep(time.Hour) // fake time: a database that stood still
		began = time.Now()
		for range 11 {
			require.NoError(t, p.wait(t.Context(), 10))
		}
		require.Equal(t, time.Second, time.Since(began), "what was lost is not made up for")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, p.wait(ctx, 1), context.Canceled)
	})
}

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var terminal screen
		p := newProgress(&terminal, "asked for", 200)
		time.Sleep(time.Second)
		p.show(50)
		p.show(51) // too soon to draw again
		p.show(200)
		p.end()
		require.Equal(t, "\rasked for 50 of 200 (25 %), 3s left\x1b[K\rasked for 200 of 200 (100 %)\x1b[K\n", terminal.String())

		var file strings.Builder
		p = newProgress(&file, "asked for", 200)
		p.show(200)
		p.end()
		require.Empty(t, file.String())
	})
}
