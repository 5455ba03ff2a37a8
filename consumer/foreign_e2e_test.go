//go:build e2e

package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/record"
)

// strangers is a group that reads a topic into which others write too.
type strangers struct {
	*env
	handler consumer.TxHandler
}

func (s *strangers) router() *consumer.Router {
	s.t.Helper()
	p, err := consumer.New(s.t.Context(), consumer.Config{
		Group: "billing", DB: s.db, Retry: consumer.Retry{MaxAttempts: 1},
		Classes: []consumer.Class{{Pattern: "*", Window: 24 * time.Hour}, {Pattern: "Charged", Window: 24 * time.Hour, Keyed: consumer.ByArrival}},
		Readers: []consumer.RecordReader{record.CloudEvents{Namespace: "shop"}.Read, record.DebeziumOutbox{Namespace: "bank"}.Read},
	})
	require.NoError(s.t, err)
	r := consumer.NewRouter(p)
	for _, eventType := range []string{"Paid", "Charged", "com.example.order.paid"} {
		r.Tx(eventType, func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error { return s.handler(ctx, tx, ev) })
	}
	return r
}

func (s *strangers) deliver(r *consumer.Router, rec consumer.Record) consumer.Outcome {
	s.t.Helper()
	outcome, err := r.HandleRecord(s.t.Context(), rec)
	require.NoError(s.t, err)
	return outcome
}

// recent are the records of cloudEventRecords, with a time of now.
func recent() map[string]consumer.Record {
	now := time.Now().UTC()
	of := make(map[string]consumer.Record)
	for name, rec := range cloudEventRecords {
		rec.Value = replaceTime(rec.Value, now)
		hs := slices.Clone(rec.Headers)
		for i := range hs {
			hs[i].Value = replaceTime(hs[i].Value, now)
		}
		rec.Headers = hs
		of[name] = rec
	}
	return of
}

// Five deliveries of an event of another producer, at new offsets, as copies are:
// one effect. So beside events of ours, in both modes of CloudEvents, and by
// Debezium, whose id carries no time.
func TestForeignEventsOnce(t *testing.T) {
	s := &strangers{env: newEnv(t, nil), handler: effect("billing")}
	r := s.router()
	records := recent()
	records["debezium"] = consumer.Record{Key: []byte("o-1"), Value: []byte("{}"), Headers: headers("id", foreignID, "eventType", "Charged")}
	ours := newEvent(t)
	records["ours"] = consumer.Record{Key: []byte("o-1"), Value: []byte("{}"), Headers: headers("idempotency-key", ours.Key.String(), "event-type", "Paid")}
	offset := int64(0)
	outcomes := make(map[string][]consumer.Outcome)
	for range 5 {
		for _, name := range slices.Sorted(maps.Keys(records)) {
			rec := records[name]
			rec.Source = consumer.Source{Topic: "orders", Offset: offset}
			offset++
			kind := name
			if _, cloud := cloudEventRecords[name]; cloud {
				kind = "cloudevents" // are copies of one event
			}
			outcomes[kind] = append(outcomes[kind], s.deliver(r, rec))
		}
	}
	for kind, got := range outcomes {
		require.Equal(t, consumer.Processed, got[0], kind)
		for _, outcome := range got[1:] {
			require.Equal(t, consumer.Duplicate, outcome, kind)
		}
	}
	require.Equal(t, 3, s.effects())
	require.Zero(t, s.letters())
}

// A row that Debezium has published, and a relay of ours publishes again after the
// move, is one event, where its id is a UUIDv7 and its bytes are the same.
func TestOneRowByDebeziumAndByOurRelay(t *testing.T) {
	s := &strangers{env: newEnv(t, nil), handler: effect("billing")}
	r := s.router()
	ev := newEvent(t)
	key := ev.Key.UUID().String()
	byDebezium := consumer.Record{Source: consumer.Source{Topic: "orders", Offset: 1}, Key: []byte("o-1"), Value: []byte("{}"), Headers: headers("id", key, "eventType", "Paid")}
	byUs := consumer.Record{Source: consumer.Source{Topic: "orders", Offset: 2}, Key: []byte("o-1"), Value: []byte("{}"),
		Headers: headers("id", key, "eventType", "Paid", "idempotency-key", "bank:"+key)}
	require.Equal(t, consumer.Processed, s.deliver(r, byDebezium))
	require.Equal(t, consumer.Duplicate, s.deliver(r, byUs))
	require.NoError(t, s.expect(1, 1))
}

// A dead letter of a foreign event holds its record, and a redrive reads that as the
// program does by then.
func TestForeignLetterIsRedriven(t *testing.T) {
	s := &strangers{env: newEnv(t, nil), handler: func(context.Context, pgx.Tx, consumer.Event) error { return errors.New("not yet") }}
	r := s.router()
	rec := recent()["go, structured"]
	rec.Source = consumer.Source{Topic: "orders", Offset: 1}
	require.Equal(t, consumer.DeadLettered, s.deliver(r, rec))
	require.Equal(t, 1, count(t, s.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE record_key = $1 AND record_value = $2", rec.Key, rec.Value))

	nobodys := consumer.Record{Source: consumer.Source{Topic: "orders", Offset: 2}, Value: []byte("of nobody")}
	require.Equal(t, consumer.DeadLettered, s.deliver(r, nobodys))

	s.handler = effect("billing")
	exec(t, s.db, "UPDATE onceward.consumer_dead_letters SET state = 'requested' WHERE kafka_offset = 1")
	done, err := r.Redrive(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, 1, done)
	require.NoError(t, s.expect(1, 1))
	require.Equal(t, consumer.Duplicate, s.deliver(r, rec))
	require.Equal(t, 1, count(t, s.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'redriven'"))
}

func replaceTime(b []byte, now time.Time) []byte {
	const layout = "2006-01-02T15:04:05.999999"
	text := string(b)
	for _, form := range []struct{ from, to string }{
		{"2026-11-24T10:00:00.250000+00:00", now.Format(layout) + "+00:00"},
		{"2026-11-24T10:00:00.25Z", now.Format(layout) + "Z"},
		{"2026-11-24T11:00:00.25+01:00", now.Add(time.Hour).Format(layout) + "+01:00"},
	} {
		if at := strings.Index(text, form.from); at >= 0 {
			return fmt.Appendf(nil, "%s%s%s", text[:at], form.to, text[at+len(form.from):])
		}
	}
	return b
}
