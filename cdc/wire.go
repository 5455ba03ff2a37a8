package cdc

import (
	"encoding/binary"
	"fmt"
)

// wire reads the fields of one protocol message. It never reads past the end:
// the first field that does not fit sets err, and every later read returns zero
// values, so a decoder checks err once, at the end.
type wire struct {
	data []byte
	err  error
}

// take returns the next n bytes without copying them.
func (w *wire) take(n int, field string) []byte {
	if w.err != nil {
		return nil
	}
	if n < 0 || n > len(w.data) {
		w.err = fmt.Errorf("%s: wants %d bytes, %d are left", field, n, len(w.data))
		return nil
	}
	b := w.data[:n:n]
	w.data = w.data[n:]
	return b
}

func (w *wire) uint8(field string) byte {
	if b := w.take(1, field); b != nil {
		return b[0]
	}
	return 0
}

func (w *wire) uint16(field string) uint16 {
	if b := w.take(2, field); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (w *wire) uint32(field string) uint32 {
	if b := w.take(4, field); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (w *wire) uint64(field string) uint64 {
	if b := w.take(8, field); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// text reads a NUL-terminated string.
func (w *wire) text(field string) string {
	if w.err != nil {
		return ""
	}
	for i, c := range w.data {
		if c == 0 {
			s := string(w.data[:i])
			w.data = w.data[i+1:]
			return s
		}
	}
	w.err = fmt.Errorf("%s: no terminating NUL in %d bytes", field, len(w.data))
	return ""
}
