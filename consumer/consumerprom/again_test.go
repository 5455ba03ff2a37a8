package consumerprom

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A look that takes long is repeated less often.
func TestASlowLookIsRepeatedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for took, want := range map[time.Duration]time.Duration{0: 10 * time.Second, 100 * time.Millisecond: 10100 * time.Millisecond, 3 * time.Second: 63 * time.Second} {
			began := time.Now()
			time.Sleep(took)
			require.Equal(t, want, again(began, backlogKept).Sub(began))
		}
	})
}
