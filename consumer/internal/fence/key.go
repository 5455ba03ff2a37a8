package fence

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/onceward/onceward/outbox"
)

// maxProviderKey is the longest [ProviderKey]: what Stripe takes, and most others.
const maxProviderKey = 255

// ProviderKey returns the key of an effect for its provider.
func ProviderKey(event outbox.Key, group, effect string) string {
	key := event.String() + "/" + group + "/" + effect
	if strings.Contains(group, "/") { // else the first slash ends the group, and there is no other reading
		key = fmt.Sprintf("%s//%d/%s/%s", event, len(group), group, effect)
	}
	if len(key) <= maxProviderKey {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return event.UUID().String() + "/" + hex.EncodeToString(sum[:])
}
