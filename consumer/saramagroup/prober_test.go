package saramagroup

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFirstBatchOfAProducerThatAbortedTwice: the batch belongs to the first of its
// transactions, whatever comes later in the answer.
func TestFirstBatchOfAProducerThatAbortedTwice(t *testing.T) {
	for _, c := range []struct {
		since []int64 // where transactions of producer 7 begin that were aborted
		want  bool
	}{{[]int64{5}, true}, {[]int64{5, 11}, true}, {[]int64{11, 5}, true}, {[]int64{11}, false}, {nil, false}} {
		var answer []byte
		put := func(size int, numbers ...int64) {
			for _, n := range numbers {
				answer = append(answer, binary.BigEndian.AppendUint64(nil, uint64(n))[8-size:]...)
			}
		}
		put(4, 0, 0, 0) // size, correlation, throttle
		put(2, 0)       // error
		put(4, 0, 1)    // session, topics
		put(2, 1)
		put(1, 't')
		put(4, 1, 0) // partitions, partition
		put(2, 0)
		put(8, 30, 30, 0) // high water, stable, start
		put(4, int64(len(c.since)))
		for _, since := range c.since {
			put(8, 7, since)
		}
		put(4, -1, 61) // preferred replica, bytes of batches
		put(8, 5)      // the first offset
		put(4, 49, 0)  // length, epoch
		put(1, 2)
		put(4, 0)       // checksum
		put(2, 16)      // transactional
		put(4, 3)       // the last offset, from the first
		put(8, 0, 0, 7) // times, producer
		b, ok := firstBatch(answer)
		require.True(t, ok)
		require.Equal(t, batch{first: 5, last: 8, size: 61, aborted: c.want}, b, c.since)
	}
}
