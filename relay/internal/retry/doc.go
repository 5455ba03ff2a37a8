// Package retry says how long a relay waits between two sessions, how patient the next
// one is, and when a relay gives up because another one fences it again and again. It
// is pure: nothing here waits.
package retry
