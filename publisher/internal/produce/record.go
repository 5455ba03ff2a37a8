package produce

import (
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

// BatchOverhead is the size of a record batch without its records.
const BatchOverhead = 61

// Record is one record on its way.
type Record struct {
	Kafka     sarama.Record
	Topic     *Topic
	Partition int32
	Bytes     int           // that it takes in a batch, at most
	Cost      int64         // bytes of memory that it takes
	Alone     bool          // it shares a batch with no other
	More      bool          // another one is put at once
	Late      time.Duration // already
	Owner     any           // whose it is

	next *Record // in whatever chain it is
}

// Next returns the record behind one that was given back, or nil.
func (r *Record) Next() *Record { return r.next }

// Topic is where records go. There is one for each name.
type Topic struct {
	Name string
	// Refusal is what a broker has answered about a batch that is sent again; nil: nothing, or it was taken since.
	Refusal atomic.Pointer[sarama.KError]

	lanes []*lane // by partition; the loop's
}
