package record

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
)

// Fingerprint identifies the content of an event: the first 16 bytes of
// SHA-256 over namespace, event type, aggregate id and payload. Two copies of
// one event have the same fingerprint whatever position, timestamps or replay
// headers they carry; two events that were given one key do not.
type Fingerprint [16]byte

// nullLength stands for the length of a part that is absent. No part can be
// that long, so a tombstone never equals an empty payload.
const nullLength = 1<<64 - 1

// Fingerprint computes the fingerprint of the event. It is pure. Each part is
// preceded by its length in eight bytes, big endian, so that no two different
// events run together into the same input; an absent payload (tombstone) is
// the length 2^64-1 and no bytes.
func (ev Event) Fingerprint() Fingerprint {
	h := sha256.New()
	writePart(h, []byte(ev.Key.Namespace()))
	writePart(h, []byte(ev.Type))
	writePart(h, []byte(ev.AggregateID))
	if ev.Payload == nil {
		writeLength(h, nullLength)
	} else {
		writePart(h, ev.Payload)
	}
	var sum [sha256.Size]byte
	var f Fingerprint
	copy(f[:], h.Sum(sum[:0]))
	return f
}

// String returns the fingerprint in hexadecimal digits.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// Writes to a hash never fail.
func writePart(h hash.Hash, part []byte) {
	writeLength(h, uint64(len(part)))
	_, _ = h.Write(part)
}

func writeLength(h hash.Hash, n uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	_, _ = h.Write(b[:])
}
