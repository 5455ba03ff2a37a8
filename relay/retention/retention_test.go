package retention

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/partition"
)

func TestRetentionDefaultsAndBounds(t *testing.T) {
	cfg, err := Config{}.withDefaults()
	require.NoError(t, err)
	require.Equal(t, Config{Ahead: 14, Keep: 7, LockTimeout: 3 * time.Second}, cfg)
	for field, bad := range map[string]Config{
		"Ahead = -1: want":        {Ahead: -1},
		"Keep = 4000: want":       {Keep: 4000},
		"LockTimeout = 1µs: want": {LockTimeout: time.Microsecond},
	} {
		_, err := bad.withDefaults()
		require.ErrorContains(t, err, field)
	}
}

// A leaf may be dropped on one combination only: at least one relay, each with a
// snapshot of this cluster, after the closing, that sees every row, no letter, and nothing that waits.
func TestGateOpensForOneCombination(t *testing.T) {
	good := verdict{relay: "a", here: true, known: true, after: true}
	for bits := range 1 << 10 {
		bit := func(n int) bool { return bits&(1<<n) != 0 }
		second := verdict{relay: "b", here: bit(0), known: bit(1), after: bit(2), pending: int64(bits >> 3 & 1), gap: int64(bits >> 6 & 1), before: int64(bits >> 7 & 1)}
		letters, waits := int64(bits>>4&1), int64(bits>>9&1)
		verdicts := []verdict{good, second}
		if bit(5) {
			verdicts = nil
		}
		shut := second
		if bit(8) {
			shut.before = 0 // an operator said that such rows may go
		}
		want := len(verdicts) > 0 && shut == (verdict{relay: "b", here: true, known: true, after: true}) && letters == 0 && waits == 0
		require.Equal(t, want, len(reasons(&leaf{Leaf: partition.Leaf{Attached: bits%3 > 0}}, verdicts, letters, waits, bit(8))) == 0, "%+v, %d letters, %d wait", second, letters, waits)
	}
}

func TestClosingIsRemembered(t *testing.T) {
	require.Equal(t, uint64(18446744073709551615), parseClosing("closed by outbox retention in transaction 18446744073709551615 at 2026-11-21T00:00:00Z"))
	for _, unknown := range []string{"", "closed", "closed by outbox retention in transaction x at", "closed by outbox retention in transaction 99999999999999999999 at 2026"} {
		require.Zero(t, parseClosing(unknown), unknown)
	}
}
