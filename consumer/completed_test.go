package consumer

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer/internal/completed"
	"github.com/onceward/onceward/consumer/internal/memory"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

func seen(of map[memory.AgeClass]memory.AgeCount) (n int64) {
	for _, c := range of {
		n += c.Seen
	}
	return n
}

// remembering is a Completed in memory, which counts how often it is called.
type remembering struct {
	of               map[string]CompletedEntry
	asked, told      int
	answer           func(known []bool) []bool // nil: as they are
	keptInOneWriting int
}

func (r *remembering) Known(_ context.Context, entries []CompletedEntry) []bool {
	r.asked++
	known := make([]bool, len(entries))
	for i, e := range entries {
		known[i] = r.of[e.Key].Value == e.Value
	}
	if r.answer != nil {
		return r.answer(known)
	}
	return known
}

func (r *remembering) Remember(_ context.Context, entries []CompletedEntry) {
	r.told++
	r.keptInOneWriting = len(entries)
	for _, e := range entries {
		if r.of == nil {
			r.of = make(map[string]CompletedEntry)
		}
		r.of[e.Key] = e
	}
}

// memorizing is a processor within a session, with the windows of a day, whose class was
// registered when the script says.
func memorizing(t *testing.T, classes ...Class) (*Processor, *remembering, *scripted) {
	t.Helper()
	columns := []uint32{pgtype.TextOID, pgtype.TimestamptzOID, pgtype.Int8OID, pgtype.TextOID, pgtype.Int8OID}
	p, s := scriptedProcessor(t, map[string]answer{"Registrations": {columns: columns, rows: [][]string{
		registration(), {"Timeless", "2026-01-02 03:04:05+00", "3600000000", "5/16385", "0"}}}})
	var err error
	p.windows.classes, err = CheckClasses(classes)
	require.NoError(t, err)
	known := &floors{of: make([]registered, len(p.windows.classes)), readAt: time.Now()}
	for i := range known.of {
		known.of[i].window = p.windows.classes[i].Window
	}
	p.windows.known.Store(known)
	r := &remembering{}
	p.memory.of = r
	p.begins("1/00000001/1")
	return p, r, s
}

// registration is what the script says of the class "*".
func registration() []string {
	return []string{"*", "2026-01-02 03:04:05+00", strconv.FormatInt(DefaultWindow.Microseconds(), 10), "5/16385", "0"}
}

// begins begins a session on a history, with the partition of eventAt's events.
func (p *Processor) begins(history string) {
	p.marks.session.Store(completed.NewSession(history, []string{"orders"}, []int32{1}))
}

// delivered is a delivery that ends as told, and says which items it got.
func delivered(ending func(it *item)) (func(context.Context, []*item), *[]*item) {
	var got []*item
	return func(_ context.Context, items []*item) {
		got = append(got, items...)
		for _, it := range items {
			ending(it)
		}
	}, &got
}

func processed(it *item) { it.delivery = Delivery{Outcome: Processed} }

func (p *Processor) items(evs ...Event) (all []*item) {
	for _, ev := range evs {
		it := p.newItem(ev)
		it.handler = &handler{}
		all = append(all, it)
	}
	return all
}

func eventsNow(t *testing.T, n int) (evs []Event) {
	t.Helper()
	for range n {
		ev := eventAt(t, time.Now())
		var err error
		ev.Key, err = outbox.NewKey("shop")
		require.NoError(t, err)
		evs = append(evs, ev)
	}
	return evs
}

// TestCompletedSavesDeliveries: one question and one entry for each event, in one call each,
// however many there are; what is known is not delivered.
func TestCompletedSavesDeliveries(t *testing.T) {
	p, r, s := memorizing(t)
	evs := eventsNow(t, 10)
	deliver, got := delivered(processed)
	p.memory.deliver(t.Context(), p.items(evs[:6]...), deliver)
	require.Len(t, *got, 6)
	again := p.items(evs...)
	p.memory.deliver(t.Context(), again, deliver)
	require.Len(t, *got, 10)
	for i, it := range again {
		require.Equal(t, i >= 6, it.delivery.Outcome == Processed, i)
		require.Equal(t, i < 6, it.delivery.Outcome == Duplicate, i)
	}
	require.Equal(t, 2, r.asked)
	require.Equal(t, 2, r.told)
	require.Equal(t, 4, r.keptInOneWriting)
	require.Len(t, s.asked, 1, "the database is asked for the registration, and that is remembered")
	for key, e := range r.of {
		require.Regexp(t, `^billing:`, key)
		require.Equal(t, DefaultWindow, e.Keep)
	}
	require.EqualValues(t, 6, seen(p.marks.ages.Take()), "the advice on windows counts them")
}

// TestCompletedIsOptional: without one nothing is asked, nor without a session.
func TestCompletedIsOptional(t *testing.T) {
	for name, without := range map[string]func(p *Processor){
		"no memory":  func(p *Processor) { p.memory.of = nil },
		"no session": func(p *Processor) { p.marks.session.Store(nil) },
	} {
		p, r, s := memorizing(t)
		without(p)
		deliver, got := delivered(processed)
		p.memory.deliver(t.Context(), p.items(eventsNow(t, 3)...), deliver)
		require.Len(t, *got, 3, name)
		require.Zero(t, r.asked+r.told+len(s.asked), name)
	}
}

// TestCompletedAfterTheEnd: only what has ended as applied is remembered, for no longer than is
// left of its window.
func TestCompletedAfterTheEnd(t *testing.T) {
	hour := func(ago int) Claim {
		return Claim{Outcome: Duplicate, AppliedAt: time.Now().Add(-time.Duration(ago) * time.Hour)}
	}
	for name, c := range map[string]struct {
		delivery Delivery
		claim    Claim
		keep     time.Duration // 0: not at all
	}{
		"applied":                    {Delivery{Outcome: Processed}, Claim{Outcome: Processed}, DefaultWindow},
		"failed":                     {Delivery{Outcome: Processed, Err: errors.New("commit unknown")}, Claim{Outcome: Processed}, 0},
		"not tried":                  {Delivery{Err: ErrHeldBack}, Claim{}, 0},
		"given up":                   {Delivery{Outcome: DeadLettered}, Claim{Outcome: Processed}, 0},
		"in progress":                {Delivery{Outcome: InProgress}, Claim{}, 0},
		"mismatch":                   {Delivery{Outcome: DeadLettered}, Claim{Outcome: Mismatch, AppliedAt: time.Now()}, 0},
		"a claim of before":          {Delivery{Outcome: Duplicate}, hour(100), DefaultWindow - 100*time.Hour},
		"a claim from ahead":         {Delivery{Outcome: Duplicate}, hour(-1), DefaultWindow},
		"a claim beyond its window":  {Delivery{Outcome: Duplicate}, hour(24 * 8), 0},
		"a mark that has passed it":  {Delivery{Outcome: Duplicate}, Claim{Outcome: Duplicate}, 0},
		"a letter that was redriven": {Delivery{Outcome: Duplicate}, Claim{Outcome: Duplicate}, 0},
	} {
		p, r, _ := memorizing(t)
		deliver, _ := delivered(func(it *item) { it.delivery, it.claim = c.delivery, c.claim })
		p.memory.deliver(t.Context(), of(remembered, p.items(eventsNow(t, 1)...)), deliver)
		require.Equal(t, name == "applied", r.told == 1, "without a claim its handler has returned well, or nothing is said: %s", name)
		r.of = nil
		p.memory.deliver(t.Context(), p.items(eventsNow(t, 1)...), deliver)
		if c.keep == 0 {
			require.Empty(t, r.of, name)
			continue
		}
		require.Len(t, r.of, 1, name)
		for _, e := range r.of {
			require.LessOrEqual(t, e.Keep, c.keep, name)
			require.InDelta(t, c.keep, e.Keep, float64(time.Minute), name)
		}
	}
}

// TestCompletedIsBoundBefore: an effect that was committed on the history of before, which may be
// lost, is not remembered of the one that has begun meanwhile.
func TestCompletedIsBoundBefore(t *testing.T) {
	p, _, _ := memorizing(t)
	evs := eventsNow(t, 1)
	deliver, got := delivered(func(it *item) {
		p.begins("1/00000002/2")
		processed(it)
	})
	p.memory.deliver(t.Context(), p.items(evs...), deliver)
	p.memory.deliver(t.Context(), p.items(evs...), deliver)
	require.Len(t, *got, 2, "the database is asked")
	p.memory.deliver(t.Context(), p.items(evs...), deliver)
	require.Len(t, *got, 2, "by now it has said so on this history")
}

// TestCompletedIsBoundToItsClaims: nothing is known of a class that was registered again, of
// other tables, after a claim was forgotten, nor of another content; without a claim neither: the
// effect may be in the database that has lost it.
func TestCompletedIsBoundToItsClaims(t *testing.T) {
	row := registration()
	for name, change := range map[string]func(p *Processor, row []string, ev *Event){
		"nothing":          func(*Processor, []string, *Event) {},
		"registered again": func(_ *Processor, row []string, _ *Event) { row[1] = "2026-01-02 03:04:06+00" },
		"other tables":     func(_ *Processor, row []string, _ *Event) { row[3] = "5/16999" },
		"forgotten":        func(_ *Processor, row []string, _ *Event) { row[4] = "1" },
		"other history":    func(p *Processor, _ []string, _ *Event) { p.begins("1/00000002/1") },
		"other content":    func(_ *Processor, _ []string, ev *Event) { ev.Payload = []byte("other") },
		"other group":      func(p *Processor, _ []string, _ *Event) { p.group = "mail" },
		"retired":          func(_ *Processor, row []string, _ *Event) { row[0] = "Other" },
	} {
		for _, kind := range []handler{claimed, remembered} {
			p, _, s := memorizing(t)
			evs := eventsNow(t, 1)
			deliver, got := delivered(processed)
			p.memory.deliver(t.Context(), of(kind, p.items(evs...)), deliver)
			now := append([]string{}, row...)
			change(p, now, &evs[0])
			s.mu.Lock()
			a := s.script["Registrations"]
			a.rows = [][]string{now}
			s.script["Registrations"] = a
			s.mu.Unlock()
			p.begins(p.marks.session.Load().History) // another session asks anew, also on the same history
			p.memory.deliver(t.Context(), of(kind, p.items(evs...)), deliver)
			if name == "nothing" {
				require.Len(t, *got, 1, name)
				continue
			}
			require.Len(t, *got, 2, name)
		}
	}
}

// of makes items those of a handler.
func of(h handler, items []*item) []*item {
	for _, it := range items {
		it.handler = &h
	}
	return items
}

// Kinds of handlers, as the memory sees them.
var (
	claimed    = handler{}
	again      = handler{again: true}
	remembered = handler{again: true, remembered: true}
)

// TestCompletedTellsKindsApart: that a handler without a claim has seen an event says nothing of
// an effect, also not to a later version of the program that has one; nor does a claim say that
// such a handler has. Where nothing is to be remembered nobody is asked or told.
func TestCompletedTellsKindsApart(t *testing.T) {
	for name, c := range map[string]struct {
		first, second handler
		told          int
		known         bool
	}{
		"claimed, then claimed":       {claimed, claimed, 1, true},
		"claimed, then again":         {claimed, again, 1, false},
		"claimed, then remembered":    {claimed, remembered, 2, false},
		"again, then claimed":         {again, claimed, 1, false},
		"again, then again":           {again, again, 0, false},
		"again, then remembered":      {again, remembered, 1, false},
		"remembered, then claimed":    {remembered, claimed, 2, false},
		"remembered, then again":      {remembered, again, 1, false}, // counted anew, on purpose
		"remembered, then remembered": {remembered, remembered, 1, true},
	} {
		p, r, s := memorizing(t, Class{Pattern: "*", Window: DefaultWindow})
		evs := eventsNow(t, 1)
		deliver, got := delivered(processed)
		p.memory.deliver(t.Context(), of(c.first, p.items(evs...)), deliver)
		p.memory.deliver(t.Context(), of(c.second, p.items(evs...)), deliver)
		require.Len(t, *got, map[bool]int{true: 1, false: 2}[c.known], name)
		require.Equal(t, c.told, r.told, name)
		require.Len(t, s.asked, min(1, c.told), "nor the database: %s", name)
	}
}

// TestCompletedIsForOrdinaryEvents: what the database would have to look at before it judges is
// its own. What leaves no claim it does not look at.
func TestCompletedIsForOrdinaryEvents(t *testing.T) {
	for name, c := range map[string]struct {
		change    func(p *Processor, ev *Event)
		claimed   bool // it is asked
		unclaimed bool // so it is where the handler leaves no claim
	}{
		"ordinary":      {func(*Processor, *Event) {}, true, true},
		"from no topic": {func(_ *Processor, ev *Event) { ev.Source = Source{} }, false, false},
		"a repair":      {func(_ *Processor, ev *Event) { ev.RepairID = uuid.New() }, false, false},
		"a replay":      {func(_ *Processor, ev *Event) { ev.ReplayID, ev.ReplayMode = uuid.New(), record.ReplayRedeliver }, false, false},
		"by arrival":    {func(_ *Processor, ev *Event) { ev.Type = "Timeless" }, false, true},
		"below the floor": {func(p *Processor, _ *Event) {
			f := *p.windows.known.Load()
			f.of = []registered{{floor: time.Now().Add(time.Hour), window: DefaultWindow}, f.of[1]}
			p.windows.known.Store(&f)
		}, false, true},
		"far behind what was read": {func(p *Processor, ev *Event) {
			p.marks.reads.Raise(ev.Source.Topic, ev.Source.Partition, time.Now().Add(DefaultWindow+time.Hour))
		}, false, true},
		"of a partition that the session has not": {func(_ *Processor, ev *Event) { ev.Source.Partition = 2 }, false, false},
		"from the future":                         {func(p *Processor, _ *Event) { p.windows.skew = -time.Hour }, false, true},
		"the floor is not known":                  {func(p *Processor, _ *Event) { p.windows.forget() }, false, true},
	} {
		for _, kind := range []handler{claimed, remembered} {
			p, r, _ := memorizing(t, Class{Pattern: "*", Window: DefaultWindow}, Class{Pattern: "Timeless", Window: time.Hour, Keyed: ByArrival})
			evs := eventsNow(t, 1)
			c.change(p, &evs[0])
			deliver, got := delivered(processed)
			p.memory.deliver(t.Context(), of(kind, p.items(evs...)), deliver)
			require.Len(t, *got, 1, name)
			want := c.claimed
			if kind.again {
				want = c.unclaimed
			}
			require.Equal(t, want, r.asked == 1, name)
			require.Equal(t, want, r.told == 1, name)
		}
	}
}

// TestRememberedByArrival: for a window after its handler, and its copies are of no age that
// anybody knows.
func TestRememberedByArrival(t *testing.T) {
	p, r, _ := memorizing(t, Class{Pattern: "*", Window: DefaultWindow}, Class{Pattern: "Timeless", Window: time.Hour, Keyed: ByArrival})
	evs := eventsNow(t, 1)
	evs[0].Type = "Timeless"
	deliver, got := delivered(processed)
	for range 3 {
		p.memory.deliver(t.Context(), of(remembered, p.items(evs...)), deliver)
	}
	require.Len(t, *got, 1)
	require.Equal(t, 1, r.told, "and not anew by each copy")
	for _, e := range r.of {
		require.Equal(t, time.Hour, e.Keep)
	}
	require.Zero(t, seen(p.marks.ages.Take()))
}

// TestRememberedForTheWindowThatIs: what is registered counts, not what the program says, or has
// read when it last claimed.
func TestRememberedForTheWindowThatIs(t *testing.T) {
	p, r, s := memorizing(t)
	row := registration()
	row[2] = strconv.FormatInt(time.Hour.Microseconds(), 10)
	s.script["Registrations"] = answer{columns: s.script["Registrations"].columns, rows: [][]string{row}}
	deliver, _ := delivered(processed)
	p.memory.deliver(t.Context(), of(remembered, p.items(eventsNow(t, 1)...)), deliver)
	require.Len(t, r.of, 1)
	for _, e := range r.of {
		require.Equal(t, time.Hour, e.Keep)
	}
}

// TestCompletedThatAnswersNothing: no answer, or one that is too short, says nothing.
func TestCompletedThatAnswersNothing(t *testing.T) {
	for name, answer := range map[string]func([]bool) []bool{
		"none": func([]bool) []bool { return nil }, "too short": func(known []bool) []bool { return known[:1] },
	} {
		p, r, _ := memorizing(t)
		evs := eventsNow(t, 3)
		deliver, got := delivered(processed)
		p.memory.deliver(t.Context(), p.items(evs...), deliver)
		r.answer = answer
		p.memory.deliver(t.Context(), p.items(evs...), deliver)
		require.Len(t, *got, map[string]int{"none": 6, "too short": 5}[name], name)
	}
}

// TestCompletedWithoutTheDatabase: when nobody says how the classes are registered, nobody is asked,
// for a while also not the database: what leaves no claim goes on without it, and does not wait
// for it each time.
func TestCompletedWithoutTheDatabase(t *testing.T) {
	for name, a := range map[string]answer{"it refuses": {code: "42501"}, "it is gone": {hangUp: true}} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(26 * 365 * 24 * time.Hour) // a bubble begins in 2000, before all keys
			p, r, s := memorizing(t)
			there := s.script["Registrations"]
			s.script["Registrations"] = a
			deliver, got := delivered(processed)
			p.memory.deliver(t.Context(), of(remembered, p.items(eventsNow(t, 2)...)), deliver)
			p.memory.deliver(t.Context(), p.items(eventsNow(t, 2)...), deliver)
			require.Len(t, *got, 4, name)
			require.Equal(t, []int{0, 0, 1}, []int{r.asked, r.told, len(s.asked)}, name)
			s.script["Registrations"] = there
			time.Sleep(time.Second)
			evs := eventsNow(t, 1)
			for range 2 {
				p.memory.deliver(t.Context(), of(remembered, p.items(evs...)), deliver)
			}
			require.Len(t, *got, 5, name)
			p.db.Close()
		})
	}
}
