package audit

import (
	"time"

	"github.com/onceward/onceward/internal/partition"
)

// Impatient returns the configuration with how long a statement may take.
func (c Config) Impatient(patience time.Duration) Config {
	c.patience = patience
	return c
}

// Tail is tail, of a leaf whose rows take so many bytes.
func Tail(p partition.Partition, heap int64) string {
	return tail(&partition.Leaf{Partition: p, Heap: heap})
}
