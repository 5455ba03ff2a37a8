package retention_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/retention"
)

func TestAdvise(t *testing.T) {
	const day = 24 * time.Hour
	classes := []consumer.Class{{Pattern: "Pay*", Window: day}, {Pattern: "PayOut", Window: 4 * time.Hour}, {Pattern: "*", Window: 7 * day}, {Pattern: "Never", Window: time.Hour}}
	got := retention.Advise(classes, []retention.Redeliveries{
		{EventType: "PayIn", Seen: 3, Oldest: 12 * time.Hour},
		{EventType: "PayBack", Seen: 2, Oldest: 13 * time.Hour},
		{EventType: "PayOut", Seen: 1, Oldest: 2 * time.Hour},
		{EventType: "Mail", Seen: 9, Oldest: 40 * day},
	})
	require.Equal(t, []retention.Advice{
		{Pattern: "Pay*", Window: day, Seen: 5, Oldest: 13 * time.Hour, EventType: "PayBack", TooSmall: true, Recommended: 2 * day},
		{Pattern: "PayOut", Window: 4 * time.Hour, Seen: 1, Oldest: 2 * time.Hour, EventType: "PayOut", Recommended: 4 * time.Hour},
		{Pattern: "*", Window: 7 * day, Seen: 9, Oldest: 40 * day, EventType: "Mail", TooSmall: true, Recommended: 80 * day},
		{Pattern: "Never", Window: time.Hour, Recommended: time.Hour},
	}, got, "exactly half is enough")
	require.Empty(t, retention.Advise(nil, []retention.Redeliveries{{EventType: "x"}}))
}

// A window that was recommended is never too small for what it was recommended
// for, never smaller than the present one, and one that is enough is left.
func TestAdviceHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(int64(time.Minute), int64(400*24*time.Hour)).Draw(t, "ns"))
		})
		class := consumer.Class{Pattern: "*", Window: length.Draw(t, "window").Truncate(time.Millisecond)}
		seen := rapid.SliceOf(rapid.Custom(func(t *rapid.T) retention.Redeliveries {
			return retention.Redeliveries{EventType: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "type"), Seen: 1, Oldest: length.Draw(t, "oldest")}
		})).Draw(t, "seen")
		a := retention.Advise([]consumer.Class{class}, seen)[0]
		require.GreaterOrEqual(t, a.Recommended, a.Window)
		require.Equal(t, a.TooSmall, a.Recommended != a.Window)
		require.EqualValues(t, len(seen), a.Seen)
		class.Window = a.Recommended
		require.False(t, retention.Advise([]consumer.Class{class}, seen)[0].TooSmall)
	})
}

func TestClassOf(t *testing.T) {
	var classes []consumer.Class
	for pattern := range strings.FieldsSeq("* Pay* PayOut Order* PayOutBack*") {
		classes = append(classes, consumer.Class{Pattern: pattern})
	}
	for eventType, want := range map[string]string{"PayOut": "PayOut", "PayIn": "Pay*", "Pay": "Pay*", "PayOutBackAgain": "PayOutBack*", "Mail": "*", "Order": "Order*"} {
		require.Equal(t, want, classes[consumer.ClassOf(classes, eventType)].Pattern, eventType)
	}
	require.Negative(t, consumer.ClassOf(classes[1:], "Mail"))
}
