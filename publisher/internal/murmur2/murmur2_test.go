package murmur2_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/publisher/internal/murmur2"
)

// The vectors of UtilsTest.testMurmur2 in Apache Kafka.
func TestSumIsKafkas(t *testing.T) {
	for key, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		require.Equal(t, want, int32(murmur2.Sum([]byte(key))), key)
	}
}
