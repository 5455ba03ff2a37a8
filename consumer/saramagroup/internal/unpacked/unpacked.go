// Package unpacked bounds the memory that compressed batches take once they are unpacked. Its
// state is sarama's variable, one of the whole process.
package unpacked

import (
	"log/slog"
	"sync"

	"github.com/IBM/sarama"
)

// Most is to how many bytes a compressed batch may unpack when the program has not set
// sarama.MaxDecompressedBatchSize. It is what Kafka's own limit of a batch, 1 MiB, gives at a
// ratio of 16.
const Most = 16 << 20

const (
	// atOnce is to how much the batches of one partition may unpack that come with one
	// answer, unless a single one is larger.
	atOnce = 64 << 20
	// smallBatch is how small a batch of any size may be in Kafka, about: 61 bytes
	// of header, and zeros.
	smallBatch = 512
	// mostFetched is sarama's own Fetch.Default.
	mostFetched = 1 << 20
)

// limit guards sarama's variable between calls.
var limit sync.Mutex //nolint:gochecknoglobals // it guards a global of sarama

// Bound sets sarama's limit, unless the program has.
func Bound(log *slog.Logger) {
	limit.Lock()
	defer limit.Unlock()
	if sarama.MaxDecompressedBatchSize != 0 {
		return
	}
	sarama.MaxDecompressedBatchSize = Most
	log.Info("sarama.MaxDecompressedBatchSize was 0, no limit, and is set for the whole process; a program that wants another one sets it before Run",
		"bytes", Most)
}

// Fetch is how much to ask of a partition at once, so that what comes unpacks to atOnce at
// most, however well it is packed.
func Fetch() int32 {
	limit.Lock()
	defer limit.Unlock()
	most := sarama.MaxDecompressedBatchSize
	switch {
	case most == 0:
		most = Most
	case most < 0: // the program wants no limit
		return mostFetched
	}
	return min(mostFetched, smallBatch*max(1, atOnce/most))
}
