package publisher

import "github.com/onceward/onceward/publisher/internal/murmur2"

// Partition returns the partition that the Java client's default partitioner
// gives to a record with this key: toPositive(murmur2(key)) % partitions. Keys
// thus stay co-partitioned with topics that other clients write. It is pure;
// partitions must be positive.
func Partition(key []byte, partitions int32) int32 {
	return int32(murmur2.Sum(key)&0x7fffffff) % partitions
}
