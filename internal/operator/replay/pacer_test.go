package replay

import (
	"context"
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
