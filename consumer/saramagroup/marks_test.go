package saramagroup

import (
	"testing"

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
