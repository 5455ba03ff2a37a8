package consumer

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/record"
)

const oneDay = 24 * time.Hour

var midnight = time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)

// TestClassesOfAnotherKeying (A8): what counts is by which class each event type
// was claimed and would be.
func TestClassesOfAnotherKeying(t *testing.T) {
	row := func(pattern string, keyed Keying) consumerdb.ClassesOfGroupRow {
		return consumerdb.ClassesOfGroupRow{Class: pattern, Keyed: string(keyed)}
	}
	class := func(pattern string, keyed Keying) Class { return Class{Pattern: pattern, Keyed: keyed} }
	gone := row("Paid", ByArrival)
	gone.RetiredAt = &midnight
	for name, tc := range map[string]struct {
		rows    []consumerdb.ClassesOfGroupRow
		classes []Class
		want    string
	}{
		"new":                         {nil, []Class{class("*", ByEventTime), class("Paid", ByArrival)}, ""},
		"the same":                    {[]consumerdb.ClassesOfGroupRow{row("*", ByEventTime), row("Paid", ByArrival)}, []Class{class("*", ByEventTime), class("Paid", ByArrival)}, ""},
		"beside":                      {[]consumerdb.ClassesOfGroupRow{row("Order*", ByEventTime)}, []Class{class("Order*", ByEventTime), class("hook.*", ByArrival)}, ""},
		"of the same pattern":         {[]consumerdb.ClassesOfGroupRow{row("*", ByEventTime)}, []Class{class("*", ByArrival)}, `"*" are keyed by event-time in the database and by arrival in the configuration`},
		"more special":                {[]consumerdb.ClassesOfGroupRow{row("*", ByEventTime)}, []Class{class("*", ByEventTime), class("Paid", ByArrival)}, `"Paid" are keyed by event-time in the database and by arrival`},
		"more special by a beginning": {[]consumerdb.ClassesOfGroupRow{row("Order*", ByArrival)}, []Class{class("Order*", ByArrival), class("OrderP*", ByEventTime)}, `"OrderP*" are keyed by arrival`},
		"more general":                {[]consumerdb.ClassesOfGroupRow{row("Order*", ByArrival)}, []Class{class("*", ByEventTime)}, "`outboxctl windows retire --class 'Order*' --reason"},
		"one that was left out":       {[]consumerdb.ClassesOfGroupRow{row("*", ByEventTime), row("Paid", ByArrival)}, []Class{class("*", ByEventTime)}, `(by the classes "Paid" and "*")`},
		"one that was retired":        {[]consumerdb.ClassesOfGroupRow{row("*", ByEventTime), gone}, []Class{class("*", ByEventTime)}, ""},
		"retired, and used otherwise": {[]consumerdb.ClassesOfGroupRow{gone}, []Class{class("Paid", ByEventTime)}, "by arrival in the database"},
		"covered from above":          {[]consumerdb.ClassesOfGroupRow{row("*", ByEventTime), row("O*", ByArrival)}, []Class{class("*", ByEventTime), class("O*", ByArrival), class("OrderPaid", ByArrival)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := sameKeying("billing", tc.rows, tc.classes)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// TestTheDatabaseWins (F7): the command that makes it say what the configuration does.
func TestTheDatabaseWins(t *testing.T) {
	class := Class{Pattern: "*", Window: oneDay, Late: LateProcess, Replay: ReplayDeadLetter, Keyed: ByEventTime}
	stored := registered{window: oneDay, late: LateProcess, replay: ReplayDeadLetter, buckets: claims.Buckets{Length: oneDay}}
	require.Empty(t, class.differs(stored))
	stored.window = 7 * oneDay
	require.Equal(t, " --window 24h0m0s", class.differs(stored))
	stored.window, stored.buckets.Length = oneDay, time.Hour
	require.Equal(t, " --window 24h0m0s", class.differs(stored), "grown, and its buckets have not")
	stored.buckets.Old, stored.buckets.OldUntil = time.Minute, time.Now().Add(time.Hour)
	require.Empty(t, class.differs(stored), "they are about to be changed")
	stored.late, stored.replay = LateDeadLetter, ReplayProcess
	require.Equal(t, " --late process --replay dead-letter", class.differs(stored))

	w := &windows{member: &member{group: "billing"}}
	rows := []consumerdb.ClassesOfGroupRow{{Class: "*", WindowUs: (7 * oneDay).Microseconds()}}
	window := func(c Class) time.Duration {
		return consumerdb.Micros(w.registration(c, rows, midnight, time.Time{}).TimeWindow.Microseconds)
	}
	require.Equal(t, 7*oneDay, window(class), "never shorter")
	class.Window = 8 * oneDay
	require.Equal(t, 8*oneDay, window(class), "but longer")
	class.Keyed = ByArrival
	require.Equal(t, 7*oneDay, window(class), "unless its buckets would have to follow")
}

// TestOldTransactionClaimsNothingByArrival (P5): a bucket counts from when the
// transaction began.
func TestOldTransactionClaimsNothingByArrival(t *testing.T) {
	p := Disconnected()
	it := p.newItem(Event{Event: record.Event{Type: "Paid"}})
	l := &look{processor: p, began: midnight, classes: []registered{{buckets: claims.Buckets{Length: time.Hour, Old: time.Minute, OldUntil: midnight.Add(1)}}}}
	late := func(after time.Duration, ids ...uuid.UUID) error {
		l.now, it.plan.ids = midnight.Add(after), ids
		return l.inTime(it)
	}
	require.NoError(t, late(30*time.Second, uuid.New(), uuid.New()))
	require.ErrorIs(t, late(30*time.Second+1, uuid.New(), uuid.New()), ErrOldTransaction)
	require.NoError(t, late(time.Hour, it.id), "under its own id it is claimed whenever")
	require.NoError(t, late(time.Hour))
	l.classes[0].buckets.OldUntil = midnight
	require.NoError(t, late(30*time.Minute, uuid.New(), uuid.New()))
	require.ErrorContains(t, late(30*time.Minute+1, uuid.New(), uuid.New()), "it began 30m0s ago, buckets are 1h0m0s long; claim within half of that")
}

// TestOldBucketsHideNobody: buckets of a change that is over are not claimed in, so
// that those of another class of the same length still have to be.
func TestOldBucketsHideNobody(t *testing.T) {
	p := Disconnected()
	p.windows.classes = []Class{{Pattern: "Paid", Keyed: ByArrival}}
	whole := consumerdb.ClassesOfGroupRow{Class: "*", Keyed: string(ByArrival), BucketUs: (3 * oneDay).Microseconds()}
	l := &look{processor: p, began: midnight, classes: []registered{{buckets: claims.Buckets{Length: oneDay, Old: 3 * oneDay, OldUntil: midnight.Add(1)}}}, all: []consumerdb.ClassesOfGroupRow{whole}}
	require.Empty(t, l.others(0, "Paid", l.began), "it is claimed in them as well")
	l.classes[0].buckets.OldUntil = midnight
	require.Equal(t, []claims.Buckets{{Length: 3 * oneDay}}, l.others(0, "Paid", l.began))

	was := whole // and what the other one claims in no more need not be met
	was.BucketUs, was.OldBucketUs, was.OldUntil = oneDay.Microseconds(), (3 * oneDay).Microseconds(), &midnight
	l.all = []consumerdb.ClassesOfGroupRow{was}
	require.Empty(t, l.others(0, "Paid", l.began))
	retired := midnight.Add(-5 * oneDay)
	was.BucketUs, was.RetiredAt = (2 * oneDay).Microseconds(), &retired
	l.all = []consumerdb.ClassesOfGroupRow{was}
	require.Len(t, l.others(0, "Paid", l.began), 1, "of one that was retired, for as long as its longest ones may last")
}
