package kafkaproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Key is the api key of a Kafka request.
type Key int16

// The keys that matter to a transactional producer and to a member of a group, as in the
// Kafka protocol guide.
const (
	Produce            Key = 0
	Fetch              Key = 1
	Metadata           Key = 3
	OffsetCommit       Key = 8
	OffsetFetch        Key = 9
	FindCoordinator    Key = 10
	JoinGroup          Key = 11
	Heartbeat          Key = 12
	LeaveGroup         Key = 13
	ApiVersions        Key = 18 //nolint:staticcheck // Kafka's spelling
	InitProducerID     Key = 22
	AddPartitionsToTxn Key = 24
	AddOffsetsToTxn    Key = 25
	EndTxn             Key = 26
	TxnOffsetCommit    Key = 28
)

// frameLimit is the most that Kafka accepts as a request by default
// (socket.request.max.bytes); more is no frame.
const frameLimit = 100 << 20

// Sizes of what every frame begins with.
const (
	lengthSize    = 4
	requestHeader = lengthSize + 2 + 2 + 4 // api key, version, correlation id
	replyHeader   = lengthSize + 4         // correlation id
)

var errFrame = errors.New("not a frame of the Kafka protocol")

// request is what the proxy knows of a request.
type request struct {
	key         Key
	version     int16
	correlation int32
	client      string // its client id, empty when it has none
}

// readFrame reads a whole frame, its length included.
func readFrame(r io.Reader) ([]byte, error) {
	var length [lengthSize]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > frameLimit {
		return nil, fmt.Errorf("%w: %d bytes are announced", errFrame, n)
	}
	frame := make([]byte, lengthSize+int(n))
	copy(frame, length[:])
	if _, err := io.ReadFull(r, frame[lengthSize:]); err != nil {
		return nil, err
	}
	return frame, nil
}

// parseRequest reads the header of a request. Pure.
func parseRequest(frame []byte) (request, error) {
	if len(frame) < requestHeader {
		return request{}, fmt.Errorf("%w: a request of %d bytes", errFrame, len(frame))
	}
	// Numbers are two's complement, as sent.
	r := request{
		key:         Key(binary.BigEndian.Uint16(frame[4:])),
		version:     int16(binary.BigEndian.Uint16(frame[6:])),
		correlation: int32(binary.BigEndian.Uint32(frame[8:])),
	}
	if rest := frame[requestHeader:]; len(rest) >= 2 {
		// A nullable string, also in the flexible header; null is -1.
		if n := int(int16(binary.BigEndian.Uint16(rest))); n > 0 && len(rest) >= 2+n {
			r.client = string(rest[2 : 2+n])
		}
	}
	return r, nil
}

// correlationOf reads the correlation id of a reply. Pure.
func correlationOf(reply []byte) (int32, error) {
	if len(reply) < replyHeader {
		return 0, fmt.Errorf("%w: a reply of %d bytes", errFrame, len(reply))
	}
	return int32(binary.BigEndian.Uint32(reply[4:])), nil
}
