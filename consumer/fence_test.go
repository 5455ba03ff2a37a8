package consumer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
)

// TestProviderKeysOfTwoEffectsDiffer: whatever their names and their groups' names are.
func TestProviderKeysOfTwoEffectsDiffer(t *testing.T) {
	event, err := outbox.ParseKey("orders:01980000-0000-7000-8000-000000000001")
	require.NoError(t, err)
	parts := []string{"", "a", "/", "a/", "/a", "a/a", "1", "1/a", "3/a/a", "/1/a", "//1/a/a"}
	seen := make(map[string][2]string)
	for _, group := range parts[1:] {
		for _, effect := range parts {
			key := consumer.ProviderKey(event, group, effect)
			require.NotContains(t, seen, key, "%q of group %q has the key of %q", effect, group, seen[key])
			seen[key] = [2]string{group, effect}
		}
	}
	require.Equal(t, event.String()+"/billing/mail/alice", consumer.ProviderKey(event, "billing", "mail/alice"), "the key of releases before")
}
