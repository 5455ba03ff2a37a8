package memory_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer/internal/memory"
	"github.com/onceward/onceward/record"
)

// TestTries: of what is known by its content each record has its own, in each life of its topic.
func TestTries(t *testing.T) {
	id, life := uuid.New(), uuid.New()
	seen := map[uuid.UUID]bool{memory.Tries(id, false, record.Source{Topic: "t", Offset: 1}): true}
	require.True(t, seen[id])
	require.Equal(t, id, memory.Tries(id, true, record.Source{}), "of no topic")
	for _, at := range []record.Source{
		{Topic: "t", Offset: 1}, {Topic: "t", Offset: 2}, {Topic: "t", Partition: 1, Offset: 1}, {Topic: "u", Offset: 1}, {Topic: "t", Offset: 1, TopicID: life},
	} {
		seen[memory.Tries(id, true, at)], seen[memory.Tries(life, true, at)] = true, true
	}
	require.Len(t, seen, 11)
}
