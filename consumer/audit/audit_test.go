package audit

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

var midnight = time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)

func leavesOf(days ...partition.Partition) []partition.Leaf {
	var out []partition.Leaf
	for _, d := range days {
		out = append(out, partition.Leaf{Partition: d, Attached: true})
	}
	return out
}

func TestAuditOfDays(t *testing.T) {
	days := partition.Days("processed_events", midnight.AddDate(0, 0, -3), midnight.AddDate(0, 0, 2))
	wide := days[2]
	wide.Lower = outbox.FirstID(midnight.Add(-36 * time.Hour))
	loose := func(d partition.Partition) []partition.Leaf { return []partition.Leaf{{Partition: d}} }
	now := midnight.Add(time.Hour)
	made := partition.Days("processed_events", midnight, midnight.AddDate(0, 0, claims.DaysAhead))
	far := partition.OfDay("processed_events", midnight.AddDate(0, 0, 70))
	for name, tc := range map[string]struct {
		table table
		want  []string
	}{
		"fine":                        {table{leaves: leavesOf(days...), now: now}, nil},
		"a hole":                      {table{leaves: leavesOf(days[0], days[2], days[3]), now: now}, []string{"hole 2026-11-19T00:00:00Z to 2026-11-20T00:00:00Z"}},
		"a hole below what is needed": {table{leaves: leavesOf(days[0], days[2], days[3]), now: now, needed: midnight.AddDate(0, 0, -1)}, nil},
		"a hole across its edge":      {table{leaves: leavesOf(days[0], days[3]), now: now, needed: midnight.AddDate(0, 0, -1)}, []string{"hole 2026-11-20T00:00:00Z to 2026-11-21T00:00:00Z"}},
		"today is missing":            {table{leaves: leavesOf(days[:3]...), now: now}, []string{"hole 2026-11-21T01:00:00Z"}},
		"all is missing":              {table{now: now}, []string{"hole 2026-11-21T01:00:00Z"}},
		"an overlap":                  {table{leaves: leavesOf(days[0], days[1], wide, days[3]), now: now}, []string{"overlap processed_events_20261119 and processed_events_20261120"}},
		"a hole beyond what is made":  {table{leaves: append(leavesOf(made...), leavesOf(far)...), now: now}, nil},
		"a hole across that":          {table{leaves: append(leavesOf(made[:len(made)-2]...), leavesOf(far)...), now: now}, []string{"hole 2027-01-23T00:00:00Z to 2027-01-25T00:00:00Z"}},
		"detached by hand":            {table{leaves: leavesOf(days[1:]...), loose: loose(days[0]), now: now}, []string{"detached processed_events_20261118"}},
		"detached below":              {table{leaves: leavesOf(days[1:]...), loose: loose(days[0]), now: now, needed: midnight.AddDate(0, 0, -2)}, nil},
	} {
		var got []string
		for _, f := range tc.table.judge() {
			got = append(got, f.Check+" "+f.Subject)
			require.NotEmpty(t, f.What)
			require.NotEmpty(t, f.Do)
		}
		require.Equal(t, tc.want, got, name)
	}
}

func TestAuditKnowsIDsByArrival(t *testing.T) {
	a := &audit{ever: []consumerdb.WindowsRow{
		{ConsumerGroup: "g", Class: "*", WindowUs: (7 * 24 * time.Hour).Microseconds()},
		{ConsumerGroup: "g", Class: "Order*", WindowUs: time.Hour.Microseconds()},
		{ConsumerGroup: "h", Class: "*", WindowUs: time.Minute.Microseconds()},
	}}
	event, at := uuid.New(), midnight.Add(77*time.Minute)
	for _, window := range []time.Duration{7 * 24 * time.Hour, time.Hour} {
		for _, id := range claims.IDs(event, window, at) {
			require.True(t, a.byArrival("g", id))
		}
	}
	require.False(t, a.byArrival("g", claims.IDs(event, time.Minute, at)[0]), "a bucket of another group")
	v7 := outbox.FirstID(midnight)
	v7[6], v7[8] = 0x70, 0x80
	require.False(t, a.byArrival("g", v7), "an event at the start of a bucket")

	require.Equal(t, a.ever[:2], a.classesOf("g", "OrderPaid"))
	require.Equal(t, a.ever[:1], a.classesOf("g", "Paid"))
	require.Equal(t, a.ever[2:], a.classesOf("h", "OrderPaid"))
	require.Empty(t, a.classesOf("other", "Paid"))
}
