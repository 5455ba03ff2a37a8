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

	m.reopen(place{"t", 0}) // while it is being saved
	newer := consumer.Mark{Topic: "t", Partition: 1, High: 9, AtEnd: true}
	m.widen(newer)
	m.restore(all)
	first.AtEnd = false
	require.ElementsMatch(t, []consumer.Mark{first, newer}, m.take())

	m.widen(newer)
	m.reopen(place{"t", 1})
	newer.AtEnd = false
	require.Equal(t, []consumer.Mark{newer}, m.take())
}
