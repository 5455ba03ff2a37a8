package saramagroup

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
)

// What could not be saved comes again, but for an end: something may have come
// while the database was asked.
func TestMarksThatCouldNotBeSaved(t *testing.T) {
	var m marks
	first, second := consumer.Mark{Topic: "t", High: 4, AtEnd: true}, consumer.Mark{Topic: "t", Partition: 1, High: 7}
	m.widen(first)
	m.widen(second)
	all := m.take()
	require.ElementsMatch(t, []consumer.Mark{first, second}, all)
	require.Empty(t, m.take())

	newer := consumer.Mark{Topic: "t", Partition: 1, High: 9, AtEnd: true}
	m.widen(newer)
	m.restore(all)
	first.AtEnd = false
	require.ElementsMatch(t, []consumer.Mark{first, newer}, m.take())

	m.widen(newer)
	m.reach(consumer.Mark{Topic: "t", Partition: 1, High: 7, Read: 12})
	newer.AtEnd, newer.Read = false, 12
	require.Equal(t, []consumer.Mark{newer}, m.take(), "it is read further, and not to its end")
	m.reach(newer)
	require.Equal(t, []consumer.Mark{newer}, m.take(), "that is saved too")
}

// TestMetadata: what is written is read again, whatever the cluster is called, also by
// releases that know nothing of clusters; and it says which one it is of.
func TestMetadata(t *testing.T) {
	// As it was before metadata said the cluster.
	before := func(text string) (topic uuid.UUID, high int64, err error) {
		id, number, _ := strings.Cut(strings.TrimPrefix(text, "onceward:2:"), ":")
		if topic, err = uuid.Parse(id); err != nil {
			return topic, 0, err
		}
		high, err = strconv.ParseInt(number, 10, 64)
		return topic, high, err
	}
	topic := uuid.New()
	clusters := []string{"", "MkU3OEVBNTcwNTJENDM2Qk", "5L6g3nShT-eMCtK--X86sw", "a", "a:b", ":", "é\xff", strings.Repeat("long", 10_000)}
	for _, cluster := range clusters {
		for _, high := range []int64{-1, 0, 9, 106, math.MaxInt64} {
			text := metadata(cluster, topic, high)
			require.LessOrEqual(t, len(text), 133, text)
			of, number, ours := parseMetadata(text)
			require.True(t, ours, text)
			require.Equal(t, topic, of, text)
			require.Equal(t, high, number, text)
			of, number, err := before(text)
			require.NoError(t, err, text)
			require.Equal(t, topic, of, text)
			require.Equal(t, high, number, text)
			for _, other := range clusters {
				require.Equal(t, other == cluster && cluster != "", spelledOn(other, text), "%q: %s", other, text)
			}
		}
	}
	require.Equal(t, "onceward:1:9", metadata("a", uuid.Nil, 9), "the topic of which it is not known")
	for _, text := range []string{"", "onceward:2:", "onceward:2:" + topic.String(), "onceward:2:" + topic.String() + ":9:9"} {
		_, _, ours := parseMetadata(text)
		require.False(t, ours, text)
		require.False(t, spelledOn("a", text), text)
	}
}

// Clusters are told apart but for one pair in 2 to the 18th.
func TestClustersAreToldApart(t *testing.T) {
	topic, same := uuid.New(), 0
	text := metadata("a cluster", topic, 9)
	for i := range 1 << 18 {
		if spelledOn(strconv.Itoa(i), text) {
			same++
		}
	}
	require.Less(t, same, 10)
}
