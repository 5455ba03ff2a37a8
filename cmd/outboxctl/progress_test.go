package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

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
