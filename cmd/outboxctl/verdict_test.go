package main

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

func TestJudge(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	row := &rowReport{AggregateID: "1"}
	replay := uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5b")
	letter := func(state string) []letterReport {
		return []letterReport{{ID: uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a"), Slot: "s", State: state, Class: "record-too-large", Error: "2 MB"}}
	}
	relays := func(known, published bool) []publishedReport {
		return []publishedReport{{Relay: "orders", Known: known, Published: published, PublishedAt: &at}}
	}
	for name, tc := range map[string]struct {
		report showReport
		state  string
		why    string
	}{
		"in Kafka":               {showReport{Row: row, DeadLetters: letter("open"), Kafka: &kafkaReport{Topic: "orders", Copies: []copyReport{{Partition: 3, Offset: 7}}}}, statePublished, "topic orders partition 3 offset 7"},
		"dead":                   {showReport{Row: row, DeadLetters: letter("open"), Relays: relays(true, true)}, stateDead, "record-too-large: 2 MB"},
		"being retried":          {showReport{Row: row, DeadLetters: letter("retrying")}, stateDead, "record-too-large"},
		"discarded":              {showReport{Row: row, DeadLetters: letter("discarded")}, stateDiscarded, "an operator discarded it"},
		"released":               {showReport{Row: row, DeadLetters: letter("replayed")}, statePublished, "was released"},
		"only a replay is dead":  {showReport{Row: row, Replays: []replayReport{{ID: replay}}, DeadLetters: []letterReport{{ID: replay, State: "open"}}, Relays: relays(true, true)}, statePublished, "relay orders"},
		"covered":                {showReport{Row: row, Relays: relays(true, true)}, statePublished, "published snapshot of relay orders at 2026-11-21 12:00:00.000Z"},
		"not covered":            {showReport{Row: row, Relays: relays(true, false)}, statePending, "not covered"},
		"no snapshot yet":        {showReport{Row: row, Relays: relays(false, false)}, stateUnknown, "give --brokers and --topic"},
		"no snapshot, no record": {showReport{Row: row, Relays: relays(false, false), Kafka: &kafkaReport{Topic: "orders"}}, stateUnknown, "topic orders does not have it"},
		"no relay":               {showReport{Row: row}, statePending, "no relay has run"},
		"nothing":                {showReport{}, stateNotFound, "no committed row has this key"},
		"another's UUID":         {showReport{otherOwner: "billing"}, stateNotFound, "namespace billing"},
		"row dropped, claimed":   {showReport{Groups: &[]groupReport{{Group: "billing"}}}, statePublished, "a consumer group has it"},
		"row dropped, refused":   {showReport{Groups: &[]groupReport{}, Refused: []refusedReport{{}}}, statePublished, "could not apply it"},
		"row dropped, replayed":  {showReport{Replays: []replayReport{{ID: replay}}}, stateUnknown, "orders to replay it are left"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.report.judge()
			require.Equal(t, tc.state, tc.report.State)
			require.Contains(t, tc.report.Why, tc.why)
		})
	}
}

func TestSearchStartsWhereTheRecordCanBe(t *testing.T) {
	key, err := outbox.ParseKeyAt(someKey, time.Time{}, outbox.NoSkewLimit)
	require.NoError(t, err)
	written := key.Time().Add(time.Hour)

	s := (&showReport{Row: &rowReport{AggregateID: "A", CreatedAt: written}}).search(nil, "orders", key)
	require.Equal(t, []byte("A"), s.RecordKey)
	require.Equal(t, written.Add(-time.Minute), s.From)

	s = (&showReport{DeadLetters: []letterReport{{AggregateID: "B"}}}).search(nil, "orders", key)
	require.Equal(t, []byte("B"), s.RecordKey)

	s = (&showReport{}).search(nil, "orders", key)
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
