package saramagroup

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAnOutageIsNoFlood: a thousand messages that wait are one line every ten seconds.
func TestAnOutageIsNoFlood(t *testing.T) {
	var o outage
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	lines, told := 0, 0
	const tries = 10_000 // in a minute
	for i := range tries {
		if others, due := o.say(began.Add(time.Minute * time.Duration(i) / tries)); due {
			lines, told = lines+1, told+others+1
		}
	}
	require.Equal(t, 6, lines)
	require.Greater(t, told, tries*4/5)
}
