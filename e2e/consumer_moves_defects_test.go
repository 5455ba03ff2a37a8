//go:build e2e

package e2e

import "github.com/onceward/onceward/consumer/saramagroup"

// brokenConsumers are consumers with a mistake, by name.
var brokenConsumers = map[string]func(*tapped) saramagroup.Handler{}
