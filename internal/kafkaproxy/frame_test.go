package kafkaproxy

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// encode builds a request of the given header, with a body.
func encode(r request, body []byte) []byte {
	frame := make([]byte, lengthSize, requestHeader+len(r.client)+len(body))
	frame = binary.BigEndian.AppendUint16(frame, uint16(r.key))
	frame = binary.BigEndian.AppendUint16(frame, uint16(r.version))
	frame = binary.BigEndian.AppendUint32(frame, uint32(r.correlation))
	if r.client == "" {
		frame = binary.BigEndian.AppendUint16(frame, 0xffff) // null
	} else {
		frame = binary.BigEndian.AppendUint16(frame, uint16(len(r.client)))
		frame = append(frame, r.client...)
	}
	frame = append(frame, body...)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-lengthSize))
	return frame
}

func TestRequestsAreReadAsTheyWereWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := request{
			key: Key(rapid.Int16().Draw(t, "key")), version: rapid.Int16().Draw(t, "version"),
			correlation: rapid.Int32().Draw(t, "correlation"), client: rapid.StringN(0, 40, -1).Draw(t, "client"),
		}
		frame := encode(want, rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "body"))
		got, err := readFrame(bytes.NewReader(append(bytes.Clone(frame), 1, 2, 3)))
		require.NoError(t, err)
		require.Equal(t, frame, got)
		r, err := parseRequest(got)
		require.NoError(t, err)
		require.Equal(t, want, r)
	})
}

func FuzzFrames(f *testing.F) {
	f.Add(encode(request{key: EndTxn, correlation: 7, client: "relay"}, nil))
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff})
	f.Add([]byte{0, 0, 0, 10, 0, 26, 0, 3, 0, 0, 0, 1, 0x7f, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= lengthSize && binary.BigEndian.Uint32(b) > 1<<20 && binary.BigEndian.Uint32(b) <= frameLimit {
			t.Skip("would only allocate")
		}
		frame, err := readFrame(bytes.NewReader(b))
		if err != nil {
			return
		}
		require.Equal(t, b[:len(frame)], frame)
		if r, err := parseRequest(frame); err == nil {
			require.LessOrEqual(t, len(r.client), len(frame)-requestHeader)
		}
		_, err = correlationOf(frame)
		require.Equal(t, len(frame) < replyHeader, err != nil)
	})
}
