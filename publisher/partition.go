package publisher

import "encoding/binary"

// Partition returns the partition that the Java client's default partitioner
// gives to a record with this key: toPositive(murmur2(key)) % partitions. Keys
// thus stay co-partitioned with topics that other clients write. It is pure;
// partitions must be positive.
func Partition(key []byte, partitions int32) int32 {
	return int32(murmur2(key)&0x7fffffff) % partitions
}

// murmur2 is Kafka's variant of MurmurHash2: 32 bits, little endian, the seed
// of org.apache.kafka.common.utils.Utils.
func murmur2(data []byte) uint32 {
	const (
		seed uint32 = 0x9747b28c
		m    uint32 = 0x5bd1e995
		r           = 24
	)
	h := seed ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := binary.LittleEndian.Uint32(data) * m
		k = (k ^ k>>r) * m
		h = h*m ^ k
	}
	if len(data) > 0 {
		for i, b := range data {
			h ^= uint32(b) << (8 * i)
		}
		h *= m
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}
