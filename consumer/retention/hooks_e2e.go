//go:build e2e

package retention

import "time"

// With returns the configuration with what only tests say, here and in the rooms
// beside: what the database's clock is taken for, and what happens between two steps.
// Floors count at once.
func (c Config) With(clock func(time.Time) time.Time, crash func(string)) Config {
	c.clock, c.crash, c.settle = clock, crash, time.Nanosecond
	return c
}
