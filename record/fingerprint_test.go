package record_test

import (
	"bytes"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

func mustKey(t require.TestingT, s string) outbox.Key {
	k, err := outbox.ParseKey(s)
	require.NoError(t, err)
	return k
}

const someKey = "payments:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a"

// The stored fingerprints of every installation depend on these bytes. They
// were computed with Python's hashlib from the layout in words.
func TestFingerprintGolden(t *testing.T) {
	ev := record.Event{
		Key: mustKey(t, someKey), Type: "OrderPaid", AggregateID: "order-1", Payload: []byte(`{"amount":10}`),
	}
	require.Equal(t, "48dc4abc3d4d95fa4acd5d06fa460cb3", ev.Fingerprint().String())
	ev.Payload = []byte{}
	require.Equal(t, "2cb5aa3e017bc26366b9863b464424ff", ev.Fingerprint().String())
	ev.Payload = nil
	require.Equal(t, "c632625d27ef3ba6cefae4b96ae073ba", ev.Fingerprint().String())
}

// Two events have one fingerprint if and only if the four parts are equal.
func TestFingerprintTellsPartsApart(t *testing.T) {
	part := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 'a', 255}), 0, 12)
	gen := rapid.Custom(func(t *rapid.T) record.Event {
		ev := record.Event{
			Key:         mustKey(t, rapid.SampledFrom([]string{"a", "aa", "b"}).Draw(t, "namespace")+someKey[8:]),
			Type:        string(part.Draw(t, "type")),
			AggregateID: string(part.Draw(t, "aggregate")),
			Payload:     part.Draw(t, "payload"),
		}
		if rapid.Bool().Draw(t, "tombstone") {
			ev.Payload = nil
		}
		return ev
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := gen.Draw(t, "a"), gen.Draw(t, "b")
		same := a.Key.Namespace() == b.Key.Namespace() && a.Type == b.Type &&
			a.AggregateID == b.AggregateID &&
			bytes.Equal(a.Payload, b.Payload) && (a.Payload == nil) == (b.Payload == nil)
		require.Equal(t, same, a.Fingerprint() == b.Fingerprint())
	})
}

// What differs between copies of one event does not count.
func TestFingerprintIgnoresTheDelivery(t *testing.T) {
	ev := record.Event{Key: mustKey(t, someKey), Type: "OrderPaid", AggregateID: "o", Payload: []byte("p")}
	copied := ev
	copied.Position = "0/1234"
	copied.ReplayMode = record.ReplayRedeliver
	copied.Headers = map[string]string{"x": "y"}
	copied.RepairID = uuid.New()
	require.Equal(t, ev.Fingerprint(), copied.Fingerprint())
}
