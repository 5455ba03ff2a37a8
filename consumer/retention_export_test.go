package consumer

import (
	"time"

	"github.com/onceward/onceward/internal/partition"
)

// With returns the configuration with what only tests say: what the database's
// clock is taken for, and what happens between two steps. Floors count at once.
func (c MaintainConfig) With(clock func(time.Time) time.Time, crash func(string)) MaintainConfig {
	c.clock, c.crash, c.settle = clock, crash, time.Nanosecond
	return c
}

// Impatient returns the configuration with how long a statement may take.
func (c AuditConfig) Impatient(patience time.Duration) AuditConfig {
	c.patience = patience
	return c
}

// Tail is tail, of a leaf whose rows take so many bytes.
func Tail(p partition.Partition, heap int64) string {
	return tail(&partition.Leaf{Partition: p, Heap: heap})
}
