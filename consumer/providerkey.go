package consumer

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/onceward/onceward/outbox"
)

// maxProviderKey is the longest [Call.Key]: what Stripe takes, and most others.
const maxProviderKey = 255

// ProviderKey returns the [Call.Key] of an effect, by which one can ask the
// provider what became of it. It is a function of event, group and effect alone.
func ProviderKey(event outbox.Key, group, effect string) string {
	key := event.String() + "/" + group + "/" + effect
	if len(key) <= maxProviderKey {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return event.UUID().String() + "/" + hex.EncodeToString(sum[:])
}
