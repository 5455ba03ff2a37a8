// Package limit says how large a record may be, so that its batch of its own is taken
// however badly it compresses, and what was published can be published once more.
package limit

import (
	"encoding/binary"
	"fmt"

	"github.com/onceward/onceward/record"
)

// Headroom is what an event leaves free of its batch, in bytes, for what its copies carry
// beside its own headers: a replay for the group of the longest name, its repair, and a
// longer position.
const Headroom = len(record.HeaderRepairID) + uuidText + len(record.HeaderReplayID) + uuidText +
	len(record.HeaderReplayMode) + len(record.ReplayReprocess) + len(record.HeaderReplayGroup) + longestGroup +
	4*headerOverhead + len("FFFFFFFF/FFFFFFFF")

const (
	uuidText       = 36
	longestGroup   = 255                       // bytes, as in the consumer's configuration
	headerOverhead = 2 * binary.MaxVarintLen32 // of each header, as sarama estimates it
)

// Batch is how many bytes a batch may be estimated at, so that it stays
// within max bytes on the wire even when compression makes it larger: snappy
// adds 10 bytes to each 32 KiB that it cannot compress, the others less.
func Batch(maxBytes int) int { return maxBytes - maxBytes/1024 - 128 }

// Record is how large one is.
type Record struct {
	Size int  // bytes of a batch of this record alone, at most, before compression
	Copy bool // it repairs or replays an event, whose room it uses
}

func (r Record) room() int {
	if r.Copy {
		return 0
	}
	return Headroom
}

// Most is how large such a record may be where batches have at most so many bytes.
func (r Record) Most(maxBytes int) int { return Batch(maxBytes) - r.room() }

// MostFit is [Record.Most] in words.
func (r Record) MostFit(maxBytes int) string {
	fit := fmt.Sprintf("at most %d fit into", r.Most(maxBytes))
	if r.Copy {
		return fit
	}
	return "with room for the headers of its repair and its replay " + fit
}

// Check refuses a record that does not fit into a batch of its own, or could not as
// a copy. It must be seen before the record is handed over: the broker would refuse the
// whole batch, with the record's innocent neighbours.
func (r Record) Check(maxBytes int) error {
	most := r.Most(maxBytes)
	if r.Size <= most {
		return nil
	}
	least := (r.Size+r.room()+128)*1024/1023 + 1 // of which Most is this size
	return &record.RowError{
		Field: "size", Size: r.Size, Limit: most,
		Detail: fmt.Sprintf("%d bytes with key and headers; %s a batch of kafka.max_message_bytes = %d: raise that in relay.yaml to at least %d (at most 64MiB) and start the relay again, "+
			"and max.message.bytes of the topic where it is below; or make the event smaller", r.Size, r.MostFit(maxBytes), maxBytes, least),
	}
}
