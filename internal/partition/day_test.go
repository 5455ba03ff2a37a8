package partition

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/outbox"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func TestOfDayNamesTheUTCDay(t *testing.T) {
	for name, at := range map[string]time.Time{
		"first instant": time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC),
		"last instant":  time.Date(2026, 11, 21, 23, 59, 59, 999_999_999, time.UTC),
		"other zone":    time.Date(2026, 11, 22, 5, 0, 0, 0, time.FixedZone("east", 6*3600)),
	} {
		t.Run(name, func(t *testing.T) {
			p := OfDay("outbox", at)
			require.Equal(t, "outbox_20261121", p.Name)
			require.Equal(t, time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC), outbox.IDTime(p.Lower))
			require.Equal(t, time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC), outbox.IDTime(p.Upper))
		})
	}
}

func TestDaysMeetWithoutGapOrOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := time.UnixMilli(rapid.Int64Range(1_420_070_400_000, 4_000_000_000_000).Draw(t, "first"))
		last := first.Add(time.Duration(rapid.Int64Range(0, 40*24*3600).Draw(t, "seconds")) * time.Second)
		days := Days("outbox", first, last)
		require.False(t, outbox.IDTime(days[0].Lower).After(first))
		require.True(t, outbox.IDTime(days[len(days)-1].Upper).After(last))
		for i := 1; i < len(days); i++ {
			require.Equal(t, days[i-1].Upper, days[i].Lower)
			require.False(t, days[i-1].overlaps(days[i]))
		}
	})
}

func TestEveryIDOfADayLiesInItsPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.UnixMilli(rapid.Int64Range(1_420_070_400_000, 4_000_000_000_000).Draw(t, "at"))
		id := outbox.FirstID(at)
		for i := 6; i < 16; i++ {
			id[i] = rapid.Byte().Draw(t, "random")
		}
		p := OfDay("outbox", at)
		require.LessOrEqual(t, compare(p.Lower, id), 0)
		require.Negative(t, compare(id, p.Upper))
	})
}

func TestDaysBackwardsAreNone(t *testing.T) {
	require.Empty(t, Days("outbox", noon, noon.AddDate(0, 0, -1)))
}

func TestMissing(t *testing.T) {
	days := Days("outbox", noon, noon.AddDate(0, 0, 2))

	got, err := missing([]Partition{days[1]}, days)
	require.NoError(t, err)
	require.Equal(t, []Partition{days[0], days[2]}, got)

	renamed := Partition{Name: "old_name", Lower: days[1].Lower, Upper: days[1].Upper}
	got, err = missing([]Partition{days[0], renamed, days[2]}, days)
	require.NoError(t, err)
	require.Empty(t, got, "the bounds decide, not the name")

	odd := Partition{Name: "odd", Lower: outbox.FirstID(noon), Upper: days[1].Upper}
	_, err = missing([]Partition{odd}, days)
	require.ErrorIs(t, err, ErrOverlap)
	require.ErrorContains(t, err, "odd (2026-11-21T12:00:00Z to 2026-11-23T00:00:00Z)")
}

func TestDaysBelowTheOldestAreMadeOnlyWhenTold(t *testing.T) {
	days := Days("outbox", noon.AddDate(0, 0, -3), noon)
	span := Span{First: noon.AddDate(0, 0, -3), Last: noon}
	got, err := span.Missing("onceward.outbox", nil)
	require.NoError(t, err)
	require.Equal(t, days, got, "an empty table has no oldest")
	existing := []Partition{days[2], {Name: "half", Lower: outbox.FirstID(noon.AddDate(0, 0, -2)), Upper: days[2].Lower}}
	got, err = span.Missing("onceward.outbox", existing[:1])
	require.NoError(t, err)
	require.Equal(t, days[3:], got)
	_, err = span.Missing("onceward.outbox", existing)
	require.ErrorIs(t, err, ErrOverlap, "the day of a partition that begins at noon is looked at")
	span.Reopen = true
	got, err = span.Missing("onceward.outbox", existing[:1])
	require.NoError(t, err)
	require.Equal(t, []Partition{days[0], days[1], days[3]}, got)
}

// A day that is pinned stays below others that were dropped.
func TestDaysThatAreOverAreMadeAboveTheNewestOnly(t *testing.T) {
	days := Days("outbox", noon.AddDate(0, 0, -5), noon.AddDate(0, 0, 2))
	span := Span{First: noon.AddDate(0, 0, -4), Last: noon.AddDate(0, 0, 2), Today: noon}
	for name, tc := range map[string]struct{ existing, want []Partition }{
		"none":                         {nil, days[1:]},
		"one is pinned":                {[]Partition{days[0], days[4], days[5]}, days[6:]},
		"nobody made any for long":     {days[:3], days[3:]},
		"today's is missing":           {[]Partition{days[4], days[6]}, []Partition{days[5], days[7]}},
		"the clock is behind them":     {days[6:], nil},
		"the newest but one, and over": {[]Partition{days[2], days[4]}, days[5:]},
	} {
		got, err := span.Missing("onceward.outbox", tc.existing)
		require.NoError(t, err)
		require.Equal(t, tc.want, got, name)
	}
}

func TestAheadCountsToTheFirstHole(t *testing.T) {
	days := Days("outbox", noon, noon.AddDate(0, 0, 14))
	require.Equal(t, 14, Ahead(days, noon))
	require.Equal(t, 2, Ahead(append(days[:3:3], days[4:]...), noon))
	require.Equal(t, 0, Ahead(nil, noon))
	require.Equal(t, 0, Ahead(days[1:], noon), "the hole is today")
}

func TestExtent(t *testing.T) {
	_, _, ok := Extent(nil)
	require.False(t, ok)
	days := Days("outbox", noon, noon.AddDate(0, 0, 3))
	first, last, ok := Extent([]Partition{days[2], days[0], days[3]})
	require.True(t, ok)
	require.Equal(t, Day(noon), first)
	require.Equal(t, Day(noon.AddDate(0, 0, 3)), last)
}

func TestParseBound(t *testing.T) {
	want := OfDay("outbox", noon)
	p, err := parseBound("public.events", "outbox_20261121", "FOR VALUES FROM ('"+want.Lower.String()+"') TO ('"+want.Upper.String()+"')")
	require.NoError(t, err)
	require.Equal(t, want, p)

	p, err = parseBound("public.events", "all", "FOR VALUES FROM (MINVALUE) TO (MAXVALUE)")
	require.NoError(t, err)
	require.Equal(t, uuid.Nil, p.Lower)
	require.True(t, p.overlaps(want))

	_, err = parseBound("public.events", "rest", "DEFAULT")
	require.ErrorIs(t, err, ErrDefault)
	for table, want := range map[string]string{
		"onceward.outbox": "; SET lock_timeout = '2s'; ALTER TABLE onceward.outbox DETACH PARTITION rest; then run outboxctl partitions maintain --config relay.yaml,",
		"public.events":   "; move its rows where they belong and drop it",
		claims:            "`outboxctl audit` prints",
	} {
		require.ErrorContains(t, &DefaultError{Table: table, Partition: "rest"}, want)
	}
	_, err = parseBound("public.events", "hashed", "FOR VALUES WITH (modulus 4, remainder 0)")
	require.ErrorContains(t, err, "hashed")
}

// Who waits for a lock that others need, or that those who look at the partitions meet, does so for a bounded time.
func TestWhatPutsALeafBack(t *testing.T) {
	leaf := Leaf{Partition: OfDay("outbox", noon), Whose: Whose{Owner: "o", TableOwner: "o"}}
	attach := leaf.Attach(Outbox)
	require.Equal(t, []string{attach}, leaf.Reattach(Outbox))
	leaf.Pending = true
	const finalize = `ALTER TABLE "onceward"."outbox" DETACH PARTITION "onceward"."outbox_20261121" FINALIZE`
	require.Equal(t, []string{"SET lock_timeout = '2s'", finalize, attach}, leaf.Reattach(Outbox))
	leaf.Owner = "other"
	require.Equal(t, []string{"SET lock_timeout = '2s'", `ALTER TABLE "onceward"."outbox_20261121" OWNER TO o`, finalize, attach}, leaf.Reattach(Outbox))
}

func TestTableNames(t *testing.T) {
	for _, bad := range []string{"", "outbox", ".outbox", "onceward.", "a.b.c"} {
		_, _, err := splitTable(bad)
		require.ErrorContains(t, err, "want schema.table", "%q", bad)
	}
	_, _, err := splitTable("onceward.a234567890123456789012345678901234567890123456789012345")
	require.ErrorContains(t, err, "at most 63")
}

func TestSQLQuotesIdentifiers(t *testing.T) {
	got := statements(`on"ce.out box`, `i"d`, Days("out box", noon, noon))
	require.Len(t, got, 5)
	require.Equal(t, `LOCK TABLE ONLY "on""ce"."out box" IN SHARE UPDATE EXCLUSIVE MODE`, got[0])
	require.Contains(t, got[1], `"i""d" OPERATOR(pg_catalog.>=) '01a1fb67-1800-0000-0000-000000000000'`)
	require.Contains(t, got[2], `'ALTER TABLE %s OWNER TO %I', '"on""ce"."out box_20261121"'`)
	require.Contains(t, got[3], `ATTACH PARTITION "on""ce"."out box_20261121"`)

	require.Empty(t, statements("onceward.outbox", "id", nil))
}
