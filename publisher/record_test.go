package publisher_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/record"
)

// The record of the wire contract, as one can read it.
func TestGoldenRecord(t *testing.T) {
	ev := event(1, "order-1", `{"total":5}`)
	ev.Row.CreatedAt = ev.Row.CreatedAt.In(time.FixedZone("elsewhere", 2*3600))
	ev.Row.Traceparent = []byte("00-aa-bb-01")
	ev.Row.Headers = []byte(`{"z": "1", "tenant": "acme"}`)
	message, err := publisher.BuildMessage(ev)
	require.NoError(t, err)
	require.Equal(t, `key="order-1"
value="{\"total\":5}"
idempotency-key: shop:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a
event-type: OrderPaid
aggregate-type: order
content-type: application/json
occurred-at: 2026-10-01T12:30:00.123456Z
traceparent: 00-aa-bb-01
position: 0/16B3748
tenant: acme
z: 1
`, dump(t, message))
	require.True(t, message.Timestamp.IsZero(), "left to sarama: the time of publishing")
}

func dump(t *testing.T, message *sarama.ProducerMessage) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "key=%q\n", encoded(t, message.Key))
	fmt.Fprintf(&b, "value=%q\n", encoded(t, message.Value))
	for _, h := range message.Headers {
		fmt.Fprintf(&b, "%s: %s\n", h.Key, h.Value)
	}
	return b.String()
}

func encoded(t require.TestingT, e sarama.Encoder) []byte {
	b, err := e.Encode()
	require.NoError(t, err)
	require.Len(t, b, e.Length())
	return b
}

func TestKeyAndValueEdges(t *testing.T) {
	ev := event(1, "", "")
	ev.Row.AggregateID, ev.Row.Payload = nil, nil
	message, err := publisher.BuildMessage(ev)
	require.NoError(t, err)
	require.NotNil(t, encoded(t, message.Key), "the empty key is a key")
	require.Nil(t, message.Value, "the interface itself, or sarama writes an empty value")
	ev.Row.Payload = []byte{}
	message, err = publisher.BuildMessage(ev)
	require.NoError(t, err)
	require.NotNil(t, encoded(t, message.Value))
}

func TestRowsThatAreNoRecords(t *testing.T) {
	random := event(1, "a", "")
	random.Row.ID = uuid.MustParse("0199f3c4-7b1e-4c3a-9a51-3f0c2d1e4b5a")
	variant := event(1, "a", "")
	variant.Row.ID = uuid.MustParse("0199f3c4-7b1e-7c3a-1a51-3f0c2d1e4b5a")
	late := event(1, "a", "")
	late.Row.CreatedAt = time.Date(294276, 1, 1, 0, 0, 0, 0, time.UTC)
	for want, ev := range map[string]publisher.Event{"version 7 or 8": random, "1a51": variant, "294276": late} {
		_, err := publisher.BuildMessage(ev)
		require.ErrorIs(t, err, publisher.ErrRecord)
		require.ErrorContains(t, err, want)
	}
}

// The key in the header is the text form that outbox gives it, and the same
// event gives the same record.
func TestRecordIsAFunctionOfTheEvent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var id uuid.UUID
		copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		id[0], id[1] = 1, 0x99
		id[6], id[8] = 0x80|id[6]&0xf, 0x80|id[8]&0x3f
		ev := publisher.Event{
			Row: &outbox.Row{
				ID: id, Namespace: rapid.StringMatching(`[a-z][a-z0-9._-]{0,62}`).Draw(t, "namespace"),
				AggregateType: rapid.String().Draw(t, "aggregate type"), Type: rapid.String().Draw(t, "type"),
				AggregateID: []byte(rapid.String().Draw(t, "aggregate")), Payload: rapid.SliceOf(rapid.Byte()).Draw(t, "payload"),
				ContentType: rapid.String().Draw(t, "content type"),
				CreatedAt:   time.UnixMicro(rapid.Int64Range(0, 4e15).Draw(t, "created at")),
			},
			Position: rapid.SampledFrom([]string{"", "0/0", "FFFFFFFF/FFFFFFFF"}).Draw(t, "position"),
		}
		first, err := publisher.BuildMessage(ev)
		require.NoError(t, err)
		second, err := publisher.BuildMessage(ev)
		require.NoError(t, err)
		require.Equal(t, first.Headers, second.Headers)
		key, err := outbox.KeyFrom(ev.Row.Namespace, id, time.Now(), outbox.NoSkewLimit)
		require.NoError(t, err)
		require.Equal(t, key.String(), string(first.Headers[0].Value))
		require.Equal(t, ev.Row.CreatedAt.UTC().Format(record.OccurredAtLayout), string(first.Headers[4].Value))
		require.Equal(t, ev.Row.AggregateID, encoded(t, first.Key))
	})
}

func TestManyUserHeaders(t *testing.T) {
	headers := make(map[string]string)
	for i := range 100 {
		headers[fmt.Sprintf("h%03d", i)] = fmt.Sprint(i)
	}
	ev := event(1, "a", "")
	var err error
	ev.Row.Headers, err = json.Marshal(headers)
	require.NoError(t, err)
	message, err := publisher.BuildMessage(ev)
	require.NoError(t, err)
	require.Len(t, message.Headers, 106)
	require.Equal(t, "h099", string(message.Headers[105].Key))
}
