package events

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/kafka"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

const oneKey = "payments:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a"

// What a letter says is younger than the snapshot, which says nothing of it.
func TestAccountsAreAsOf(t *testing.T) {
	snapshot, tried := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), time.Date(2026, 11, 21, 12, 0, 5, 0, time.UTC)
	life := Life{DeadLetters: []Letter{{Slot: "s", LastAt: tried}}}
	require.Equal(t, tried, *life.AsOf(Account{Slot: "s", PublishedAt: &snapshot}))
	require.Equal(t, snapshot, *life.AsOf(Account{Slot: "other", PublishedAt: &snapshot}))
	require.Nil(t, life.AsOf(Account{Slot: "other", State: states.Published, PublishedAt: &snapshot}), "it may have waited for its route")
	require.Nil(t, life.AsOf(Account{Slot: "other"}), "it has not begun")
}

func TestJudge(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	row := &Row{AggregateID: "1"}
	replay := uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5b")
	letter := func(state string) []Letter {
		return []Letter{{ID: uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a"), Slot: "s", State: state, Class: "record-too-large", Error: "2 MB"}}
	}
	gap := uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5c")
	accounts := func(says ...string) (out []Account) {
		for _, state := range says {
			out = append(out, Account{Relay: "orders", Slot: "s", Known: true, State: state, Gap: &gap, PublishedAt: &at})
			if state == states.Published || state == states.Pending {
				out[len(out)-1].Gap = nil
			}
		}
		return out
	}
	for name, tc := range map[string]struct {
		report Life
		state  string
		why    string
	}{
		"in Kafka":               {Life{Row: row, DeadLetters: letter("open"), Kafka: &kafka.Copies{Topic: "orders", Copies: []kafka.Copy{{Partition: 3, Offset: 7}}}}, states.Published, "topic orders partition 3 offset 7"},
		"dead":                   {Life{Row: row, DeadLetters: letter("open"), Relays: accounts(states.Published)}, states.Dead, "record-too-large: 2 MB"},
		"being retried":          {Life{Row: row, DeadLetters: letter("retrying")}, states.Dead, "record-too-large"},
		"discarded":              {Life{Row: row, DeadLetters: letter("discarded")}, states.Discarded, "an operator discarded it"},
		"released":               {Life{Row: row, DeadLetters: letter("replayed")}, states.Published, "was released"},
		"only a replay is dead":  {Life{Row: row, Replays: []Replay{{ID: replay}}, DeadLetters: []Letter{{ID: replay, State: "open"}}, Relays: accounts(states.Published)}, states.Published, "relay orders"},
		"covered":                {Life{Row: row, Relays: accounts(states.Published)}, states.Published, "published snapshot of relay orders, taken at 2026-11-21 12:00:00.000Z"},
		"not covered":            {Life{Row: row, Relays: accounts(states.Pending)}, states.Pending, "not covered"},
		"not begun":              {Life{Row: row, Relays: []Account{{Relay: "orders", State: states.Pending}}}, states.Pending, "has not begun yet"},
		"one relay owes it":      {Life{Row: row, Relays: accounts(states.Published, states.Before, states.Pending)}, states.Pending, "not covered"},
		"gap":                    {Life{Row: row, Relays: accounts(states.Published, states.Gap)}, states.Gap, gap.String()},
		"given up":               {Life{Row: row, Relays: accounts(states.GivenUp)}, states.GivenUp, "an operator accepted"},
		"before":                 {Life{Row: row, Relays: accounts(states.Before)}, states.Before, "before relay orders began"},
		"only its replay is out": {Life{Row: row, Relays: accounts(states.Before), Kafka: &kafka.Copies{Copies: []kafka.Copy{{ReplayID: "r"}}}}, states.Before, "before relay orders began"},
		"waiting":                {Life{Row: row, Relays: accounts(states.Waiting)}, states.Waiting, "its route cannot be used for now; relay orders publishes it"},
		"no relay":               {Life{Row: row}, states.Pending, "none has begun yet, or all were retired"},
		"relay is beginning":     {Life{Row: row, notBegun: []string{"shop"}}, states.Pending, "relay shop has not begun: `outboxctl status` says what it waits for"},
		"dead for a retired one": {Life{Row: row, DeadLetters: []Letter{{Slot: "onceward_gone", State: "discarded"}}, Relays: accounts(states.Published)}, states.Published, "relay orders"},
		"nothing":                {Life{}, states.NotFound, "no committed row has this key"},
		"day detached":           {Life{Key: oneKey, detached: detached(false)}, states.NotFound, "its partition outbox_20251017 is detached: its rows are not in the outbox"},
		"day being detached":     {Life{Key: oneKey, detached: detached(true)}, states.NotFound, "its partition outbox_20251017 is being detached: "},
		"another's UUID":         {Life{otherOwner: "billing"}, states.NotFound, "namespace billing"},
		"row dropped, claimed":   {Life{Groups: &[]Group{{Group: "billing"}}}, states.Published, "a consumer group has it"},
		"row dropped, refused":   {Life{Groups: &[]Group{}, Refused: []Refused{{}}}, states.Published, "could not apply it"},
		"row dropped, replayed":  {Life{Replays: []Replay{{ID: replay}}}, states.Unknown, "orders to replay it are left"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.report.Judge()
			require.Equal(t, tc.state, tc.report.State)
			require.Contains(t, tc.report.Why, tc.why)
		})
	}
}

// detached is the partition of oneKey's day, which was taken out of the outbox or is about to be.
func detached(pending bool) *partition.Leaf {
	id := uuid.MustParse(oneKey[len("payments:"):])
	return &partition.Leaf{
		Partition: partition.OfDay("outbox", outbox.IDTime(id)), Pending: pending, Attached: pending,
		Whose: partition.Whose{Owner: "o", TableOwner: "o", Alike: true},
	}
}

// Of an event whose partition is in the outbox no more the way to it is said, in its order.
func TestADetachedEventIsLookedFor(t *testing.T) {
	r := &Life{Key: oneKey, detached: detached(true)}
	r.Judge()
	require.Contains(t, r.Why, `look for it by SELECT seq FROM "onceward"."outbox_20251017" WHERE id = '`+oneKey[len("payments:"):]+`' and, as a member of the role o, attach it again: `)
	require.Equal(t, []string{
		"outboxctl partitions status", strings.Join(r.detached.Reattach(partition.Outbox), "; "), `outboxctl partitions adopt outbox_20251017 --reason "…"`,
	}, r.Next)
}

// It was waited in vain for a relay that is behind, or no more: the one that has got further is named, where there is one.
func TestInVain(t *testing.T) {
	r := &Life{Waited: "10s", Relays: []Account{{Relay: "shop", State: states.Published}, {Relay: "old", State: states.Pending}}}
	require.Equal(t, "10s, with relay old; relay shop has got further: with `--relay shop` that one alone is waited for", r.InVain())
	r.Relays = r.Relays[1:]
	require.Equal(t, "10s", r.InVain())
}

// Of a waiting event who paused a route of its relay is said, since when, why, and what ends
// it; of many the first, and how many more.
func TestWhoPausedARoute(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	paused := func(routes ...string) *Life {
		account := Account{Relay: "orders", Known: true, State: states.Waiting}
		for _, route := range routes {
			account.Paused = append(account.Paused, relays.Rested{Route: route, By: "ann", At: at, Reason: "the `shop` moves"})
		}
		return &Life{Row: &Row{}, Relays: []Account{account}}
	}
	one := paused("shop.order")
	one.Judge()
	require.Contains(t, one.Why, "its route is paused, or cannot be used; relay orders publishes it")
	require.Contains(t, one.Why, "; route shop.order is paused by ann since 2026-11-21 12:00:00.000Z (the 'shop' moves), and `outboxctl resume --relay orders --route shop.order` lets it go on")
	require.Contains(t, one.Next, "outboxctl resume --relay orders --route shop.order")
	many := paused("a", "b", "c", "d", "e")
	many.Judge()
	require.Equal(t, 3, strings.Count(many.Why, "is paused by ann"))
	require.True(t, strings.HasSuffix(many.Why, "; and 2 more"), many.Why)
}

// TestGiveUpOfReplays: at each relay with which a replay waits, and of one relay where only that is asked for.
func TestGiveUpOfReplays(t *testing.T) {
	r := &Life{Row: &Row{}, Replays: []Replay{{key: "orders:1", WaitsIn: []string{"a", "b"}}, {key: "orders:2"}}}
	r.Judge()
	require.Equal(t, []string{`outboxctl skip orders:1 --slot a --reason "…"`, `outboxctl skip orders:1 --slot b --reason "…"`}, r.Replays[0].GiveUp)
	require.Empty(t, r.Replays[1].GiveUp)
	for range 4 {
		r.Replays = append(r.Replays, r.Replays[0])
	}
	require.Len(t, r.WaitingReplays(), 4)
	require.Contains(t, r.WaitingReplays()[0], "waits for its route; to give it up: `outboxctl skip orders:1 --slot a --reason \"…\"`, `outboxctl skip orders:1 --slot b")
	require.Equal(t, "2 replays wait beside; -o json has their commands", r.WaitingReplays()[3])
	r.Narrow("b")
	r.Judge()
	require.Equal(t, []string{`outboxctl skip orders:1 --slot b --reason "…"`}, r.Replays[0].GiveUp)
}

// What the database calls published and the topic lacks is said, and no more.
func TestTableAndTopicDisagree(t *testing.T) {
	gone := Life{Key: oneKey, Row: &Row{}, Relays: []Account{{Relay: "orders", Known: true, State: states.Published}}, Kafka: &kafka.Copies{Topic: "orders", NoTopic: true}}
	gone.Judge()
	require.Equal(t, "the database says that relay orders has published it, and there is no topic orders: it was removed, or its route led elsewhere; "+
		"`outboxctl replay "+oneKey+" --config FILE --reason \"…\"` publishes it again", gone.Disagree)
	require.True(t, gone.Wrong())
	require.True(t, (&Life{State: states.Published, NotSearched: "the broker is away"}).Wrong(), "it was to be searched")
	require.False(t, (&Life{State: states.Published}).Wrong())
	published := []Account{{Relay: "orders", Known: true, State: states.Published}}
	pending := []Account{{Relay: "orders", Known: true, State: states.Pending}}
	row := &Row{}
	for name, tc := range map[string]struct {
		report Life
		want   bool
	}{
		"not in the topic": {Life{Row: row, Relays: published, Kafka: &kafka.Copies{Topic: "orders"}}, true},
		"in the topic":     {Life{Row: row, Relays: published, Kafka: &kafka.Copies{Copies: []kafka.Copy{{}}}}, false},
		"not searched":     {Life{Row: row, Relays: published}, false},
		"pending":          {Life{Row: row, Relays: pending, Kafka: &kafka.Copies{}}, false},
	} {
		tc.report.Judge()
		require.Equal(t, tc.want, tc.report.Disagree != "", name)
	}
}

// Each relay is judged for itself: one that is behind does not hide another whose
// word the topic contradicts, and --relay asks one alone.
func TestEachRelayIsJudged(t *testing.T) {
	event := uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a")
	report := func() *Life {
		return &Life{
			Row: &Row{}, Kafka: &kafka.Copies{Topic: "orders"},
			Relays: []Account{
				{Relay: "behind", Slot: "b", Known: true, State: states.Pending}, {Relay: "eager", Slot: "e", Known: true, State: states.Published},
				{Relay: "stuck", Slot: "s", Known: true, State: "parked"}, {Relay: "freed", Slot: "f", Known: true, State: states.Published},
			},
			DeadLetters: []Letter{
				{ID: event, Slot: "f", State: "replayed", Class: "too-large"}, {ID: event, Slot: "gone", State: "discarded", Class: "too-large"},
				{ID: event, Slot: "s", State: "open", Class: "bad-row", Error: "no key"},
			},
		}
	}
	r := report()
	r.Judge()
	require.Equal(t, states.Dead, r.State, "the one that is least far")
	require.Equal(t, "bad-row: no key", r.Why)
	require.Contains(t, r.Disagree, "relay eager, freed has published it")
	for _, v := range r.Relays {
		require.NotEmpty(t, v.Why, v.Relay)
		require.Equal(t, v.State == states.Published, v.Disagrees, v.Relay)
	}
	for slot, want := range map[string]string{"b": states.Pending, "e": states.Published, "s": states.Dead, "f": states.Published} {
		r := report()
		r.Narrow(slot)
		r.Judge()
		require.Equal(t, want, r.State, slot)
		require.Equal(t, want == states.Published, r.Disagree != "", slot)
	}
	r = report()
	r.Narrow("f")
	r.Judge()
	require.Contains(t, r.Why, "was released")
}

func TestSearchStartsWhereTheRecordCanBe(t *testing.T) {
	key, err := outbox.ParseKeyAt(oneKey, time.Time{}, outbox.NoSkewLimit)
	require.NoError(t, err)
	written := key.Time().Add(time.Hour)

	s := (&Life{Row: &Row{AggregateID: "A", CreatedAt: written}}).searchFor(nil, "orders", operator.Name{Namespace: key.Namespace(), ID: key.UUID()})
	require.Equal(t, []byte("A"), s.RecordKey)
	require.Equal(t, written.Add(-time.Minute), s.From)

	s = (&Life{DeadLetters: []Letter{{AggregateID: "B"}}}).searchFor(nil, "orders", operator.Name{Namespace: key.Namespace(), ID: key.UUID()})
	require.Equal(t, []byte("B"), s.RecordKey)

	s = (&Life{}).searchFor(nil, "orders", operator.Name{Namespace: key.Namespace(), ID: key.UUID()})
	require.Nil(t, s.RecordKey, "all partitions")
	require.Equal(t, key.Time().Add(-6*time.Minute), s.From)
}

func TestTrimPayload(t *testing.T) {
	r := &Life{Row: &Row{Payload: []byte("{\"a\":1}\n")}}
	r.TrimPayload(true)
	require.Equal(t, `{"a":1}\n`, r.Row.PayloadPreview)
	require.NotNil(t, r.Row.Payload)
	r.TrimPayload(false)
	require.Nil(t, r.Row.Payload)
	(&Life{}).TrimPayload(true)
}
