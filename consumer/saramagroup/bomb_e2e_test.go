//go:build e2e

package saramagroup_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaserver"
)

// TestBombOfARealKafka is TestBomb: Kafka takes such batches, and gives each of
// them as a whole.
func TestBombOfARealKafka(t *testing.T) {
	cluster, err := kafkaserver.Start(t.Context(), kafkaserver.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Stop(context.Background())) })
	require.NoError(t, cluster.CreateTopic(t.Context(), topic, 2, nil))
	provesBombs(t, cluster.Addrs())
}
