package operator

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A wait that lasts says so, once; one that is soon over says nothing.
func TestALongWaitIsTold(t *testing.T) {
	for needed, want := range map[time.Duration]int{0: 0, time.Second: 0, 5 * time.Second: 1, time.Hour: 1} {
		synctest.Test(t, func(t *testing.T) {
			began, told := time.Now(), 0
			err := PollTelling(t.Context(), 30*time.Second, func() {
				told++
				require.Equal(t, tellAfter, time.Since(began))
			}, func() (bool, error) { return time.Since(began) < needed, nil })
			require.NoError(t, err)
			require.Equal(t, want, told, needed)
			require.LessOrEqual(t, time.Since(began), 31*time.Second)
		})
	}
}
