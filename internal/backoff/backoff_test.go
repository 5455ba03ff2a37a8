package backoff_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/backoff"
)

func TestAfter(t *testing.T) {
	var total time.Duration
	for retry := 1; retry <= 1000; retry++ {
		total += backoff.After(retry, 100*time.Millisecond, 10*time.Second)
	}
	require.Equal(t, 100*time.Millisecond, backoff.After(1, 100*time.Millisecond, 10*time.Second))
	require.Equal(t, 100*time.Millisecond, backoff.After(0, 100*time.Millisecond, 10*time.Second))
	require.Equal(t, 800*time.Millisecond, backoff.After(4, 100*time.Millisecond, 10*time.Second))
	require.Equal(t, 10*time.Second, backoff.After(8, 100*time.Millisecond, 10*time.Second))
	require.Equal(t, 10*time.Second, backoff.After(100_000, 100*time.Millisecond, 10*time.Second))
	require.InDelta(t, 2.7, total.Hours(), 0.1)
}

func TestJittered(t *testing.T) {
	for range 100 {
		pause := backoff.Jittered{Min: 100 * time.Millisecond, Max: time.Second}
		for range 2 {
			for _, ms := range []int64{100, 200, 400, 800, 1000, 1000} {
				d, whole := pause.Next(), time.Duration(ms)*time.Millisecond
				require.GreaterOrEqual(t, d, whole/2)
				require.LessOrEqual(t, d, whole)
			}
			pause.Reset()
		}
	}
}
