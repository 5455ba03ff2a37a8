//go:build e2e

package consumer_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// incompressible is a text that no index entry can hold.
func incompressible() string {
	var b strings.Builder
	for b.Len() < 8000 {
		b.WriteString(uuid.NewString())
	}
	return b.String()
}

// TestLongTypes: an event type that an index cannot hold is no event. Before, its second
// delivery made every save of the group's marks fail, for ever.
func TestLongTypes(t *testing.T) {
	e := newEnv(t, nil)
	p, err := consumer.New(t.Context(), consumer.Config{
		Group: "billing", DB: e.db, Readers: []consumer.RecordReader{record.CloudEvents{Namespace: "shop"}.Read},
	})
	require.NoError(t, err)
	r := consumer.NewRouter(p)
	r.Tx("*", effect("billing"))
	topic, long := uuid.New(), incompressible()
	history := must(r.Progress(t.Context())).History
	ours, offset := recordAt(t, topic, 0), int64(0)
	ours.Headers = headers(outbox.HeaderKey, newEvent(t).Key.String(), record.HeaderEventType, long)
	foreign := ours
	foreign.Headers = headers("ce_specversion", "1.0", "ce_id", "1", "ce_source", "/x", "ce_type", long, "ce_time", time.Now().UTC().Format(time.RFC3339))
	for range 2 { // the second one is what is counted as delivered again
		for _, rec := range []consumer.Record{ours, foreign} {
			rec.Source.Offset = offset
			require.NoError(t, deliverRecord(t.Context(), r, rec, consumer.DeadLettered))
			offset++
		}
	}
	require.NoError(t, r.SaveProgress(t.Context(), history, []consumer.Mark{{Topic: "orders", TopicID: topic, High: offset - 1}}))
	require.Equal(t, 4, count(t, e.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE reason = 'malformed'"))

	ev := newEvent(t)
	ev.Type = strings.Repeat("x", 256)
	_, err = r.Handle(t.Context(), ev)
	require.ErrorIs(t, err, consumer.ErrEvent)
	ev.Type = ev.Type[1:]
	require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed))
}
