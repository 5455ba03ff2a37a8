package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/outbox"
)

func TestJudge(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	row := &rowReport{AggregateID: "1"}
	replay := uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5b")
	letter := func(state string) []letterReport {
		return []letterReport{{ID: uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a"), Slot: "s", State: state, Class: "record-too-large", Error: "2 MB"}}
	}
	gap := uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5c")
	relays := func(says ...string) (out []publishedReport) {
		for _, state := range says {
			out = append(out, publishedReport{Relay: "orders", Known: true, State: state, Gap: &gap, PublishedAt: &at})
			if state == states.Published || state == states.Pending {
				out[len(out)-1].Gap = nil
			}
		}
		return out
	}
	for name, tc := range map[string]struct {
		report showReport
		state  string
		why    string
	}{
		"in Kafka":               {showReport{Row: row, DeadLetters: letter("open"), Kafka: &kafkaReport{Topic: "orders", Copies: []copyReport{{Partition: 3, Offset: 7}}}}, states.Published, "topic orders partition 3 offset 7"},
		"dead":                   {showReport{Row: row, DeadLetters: letter("open"), Relays: relays(states.Published)}, states.Dead, "record-too-large: 2 MB"},
		"being retried":          {showReport{Row: row, DeadLetters: letter("retrying")}, states.Dead, "record-too-large"},
		"discarded":              {showReport{Row: row, DeadLetters: letter("discarded")}, states.Discarded, "an operator discarded it"},
		"released":               {showReport{Row: row, DeadLetters: letter("replayed")}, states.Published, "was released"},
		"only a replay is dead":  {showReport{Row: row, Replays: []replayReport{{ID: replay}}, DeadLetters: []letterReport{{ID: replay, State: "open"}}, Relays: relays(states.Published)}, states.Published, "relay orders"},
		"covered":                {showReport{Row: row, Relays: relays(states.Published)}, states.Published, "published snapshot of relay orders at 2026-11-21 12:00:00.000Z"},
		"not covered":            {showReport{Row: row, Relays: relays(states.Pending)}, states.Pending, "not covered"},
		"not begun":              {showReport{Row: row, Relays: []publishedReport{{Relay: "orders", State: states.Pending}}}, states.Pending, "has not begun yet"},
		"one relay owes it":      {showReport{Row: row, Relays: relays(states.Published, states.Before, states.Pending)}, states.Pending, "not covered"},
		"gap":                    {showReport{Row: row, Relays: relays(states.Published, states.Gap)}, states.Gap, gap.String()},
		"given up":               {showReport{Row: row, Relays: relays(states.GivenUp)}, states.GivenUp, "an operator accepted"},
		"before":                 {showReport{Row: row, Relays: relays(states.Before)}, states.Before, "before relay orders began"},
		"only its replay is out": {showReport{Row: row, Relays: relays(states.Before), Kafka: &kafkaReport{Copies: []copyReport{{ReplayID: "r"}}}}, states.Before, "before relay orders began"},
		"no relay":               {showReport{Row: row}, states.Pending, "no relay has run"},
		"nothing":                {showReport{}, states.NotFound, "no committed row has this key"},
		"another's UUID":         {showReport{otherOwner: "billing"}, states.NotFound, "namespace billing"},
		"row dropped, claimed":   {showReport{Groups: &[]groupReport{{Group: "billing"}}}, states.Published, "a consumer group has it"},
		"row dropped, refused":   {showReport{Groups: &[]groupReport{}, Refused: []refusedReport{{}}}, states.Published, "could not apply it"},
		"row dropped, replayed":  {showReport{Replays: []replayReport{{ID: replay}}}, states.Unknown, "orders to replay it are left"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.report.judge()
			require.Equal(t, tc.state, tc.report.State)
			require.Contains(t, tc.report.Why, tc.why)
		})
	}
}

// What the database calls published and the topic lacks is said, and no more.
func TestTableAndTopicDisagree(t *testing.T) {
	published := []publishedReport{{Relay: "orders", Known: true, State: states.Published}}
	pending := []publishedReport{{Relay: "orders", Known: true, State: states.Pending}}
	row := &rowReport{}
	for name, tc := range map[string]struct {
		report showReport
		want   bool
	}{
		"not in the topic": {showReport{Row: row, Relays: published, Kafka: &kafkaReport{Topic: "orders"}}, true},
		"in the topic":     {showReport{Row: row, Relays: published, Kafka: &kafkaReport{Copies: []copyReport{{}}}}, false},
		"not searched":     {showReport{Row: row, Relays: published}, false},
		"pending":          {showReport{Row: row, Relays: pending, Kafka: &kafkaReport{}}, false},
	} {
		tc.report.judge()
		require.Equal(t, tc.want, tc.report.Disagree != "", name)
	}
}

// Each relay is judged for itself: one that is behind does not hide another whose
// word the topic contradicts, and --relay asks one alone.
func TestEachRelayIsJudged(t *testing.T) {
	event := uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a")
	report := func() *showReport {
		return &showReport{
			Row: &rowReport{}, Kafka: &kafkaReport{Topic: "orders"},
			Relays: []publishedReport{
				{Relay: "behind", Slot: "b", Known: true, State: states.Pending}, {Relay: "eager", Slot: "e", Known: true, State: states.Published},
				{Relay: "stuck", Slot: "s", Known: true, State: "parked"}, {Relay: "freed", Slot: "f", Known: true, State: states.Published},
			},
			DeadLetters: []letterReport{
				{ID: event, Slot: "f", State: "replayed", Class: "too-large"}, {ID: event, Slot: "gone", State: "discarded", Class: "too-large"},
				{ID: event, Slot: "s", State: "open", Class: "bad-row", Error: "no key"},
			},
		}
	}
	r := report()
	r.judge()
	require.Equal(t, states.Dead, r.State, "the one that is least far")
	require.Equal(t, "bad-row: no key", r.Why)
	require.Contains(t, r.Disagree, "relay eager, freed has published it")
	for _, v := range r.Relays {
		require.NotEmpty(t, v.Why, v.Relay)
		require.Equal(t, v.State == states.Published, v.Disagrees, v.Relay)
	}
	for slot, want := range map[string]string{"b": states.Pending, "e": states.Published, "s": states.Dead, "f": states.Published} {
		r := report()
		r.narrow(slot)
		r.judge()
		require.Equal(t, want, r.State, slot)
		require.Equal(t, want == states.Published, r.Disagree != "", slot)
	}
	r = report()
	r.narrow("f")
	r.judge()
	require.Contains(t, r.Why, "was released")
}

func TestSearchStartsWhereTheRecordCanBe(t *testing.T) {
	key, err := outbox.ParseKeyAt(someKey, time.Time{}, outbox.NoSkewLimit)
	require.NoError(t, err)
	written := key.Time().Add(time.Hour)

	s := (&showReport{Row: &rowReport{AggregateID: "A", CreatedAt: written}}).search(nil, "orders", operator.Name{Namespace: key.Namespace(), ID: key.UUID()})
	require.Equal(t, []byte("A"), s.RecordKey)
	require.Equal(t, written.Add(-time.Minute), s.From)

	s = (&showReport{DeadLetters: []letterReport{{AggregateID: "B"}}}).search(nil, "orders", operator.Name{Namespace: key.Namespace(), ID: key.UUID()})
	require.Equal(t, []byte("B"), s.RecordKey)

	s = (&showReport{}).search(nil, "orders", operator.Name{Namespace: key.Namespace(), ID: key.UUID()})
	require.Nil(t, s.RecordKey, "all partitions")
	require.Equal(t, key.Time().Add(-6*time.Minute), s.From)
}

func TestTrimPayload(t *testing.T) {
	r := &showReport{Row: &rowReport{Payload: []byte("{\"a\":1}\n")}}
	r.trimPayload(true)
	require.Equal(t, `{"a":1}\n`, r.Row.PayloadPreview)
	require.NotNil(t, r.Row.Payload)
	r.trimPayload(false)
	require.Nil(t, r.Row.Payload)
	(&showReport{}).trimPayload(true)
}

// TestShowOfAnEditedEvent: the row is not what was published.
func TestShowOfAnEditedEvent(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for state, says := range map[string]bool{states.LetterReplayed: true, states.LetterOpen: false} {
		r := &showReport{Key: "orders:1", Row: &rowReport{PayloadPreview: "written"}, DeadLetters: []letterReport{{State: state, EditedAt: &at}}}
		p := &page{}
		printShow(p, r)
		require.Equal(t, says, strings.Contains(p.text.String(), "published with edited content"), state)
		require.Contains(t, p.text.String(), state+", edited")
	}
}
