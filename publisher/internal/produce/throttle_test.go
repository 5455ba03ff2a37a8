package produce

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What brokers answer says until when the last of them throttles, behind what they answer otherwise, and no longer.
func TestAThrottleIsSaidAsLongAsItLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var throttle Throttle
		said := func(otherwise string) string {
			all, until := throttle.Said(otherwise, "onceward-orders", "kafka-1:9092")
			require.Equal(t, throttle.Until(), until)
			return all
		}
		require.Empty(t, said(""))
		throttle.ask(time.Time{})
		require.Zero(t, throttle.Until(), "a broker that has never asked")
		throttle.ask(time.Date(2000, 1, 1, 0, 2, 0, 0, time.UTC))
		throttle.ask(time.Date(2000, 1, 1, 0, 1, 0, 0, time.UTC))
		require.Contains(t, said(""), "client id onceward-orders or of its user), and a broker throttles: it has this relay wait until 2000-01-01T00:02:00Z.")
		require.Contains(t, said("")[:20], "a quota is used up")
		require.Contains(t, said("no replicas"), "no replicas; and a quota is used up")
		<-time.After(2 * time.Minute)
		require.Empty(t, said(""))
		require.Equal(t, "no replicas", said("no replicas"))
	})
}
