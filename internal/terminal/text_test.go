package terminal

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 16 << 20: "16.0 MiB", 3 << 40: "3.0 TiB",
	} {
		require.Equal(t, want, Size(n))
	}
}

func TestStamp(t *testing.T) {
	require.Equal(t, "-", Stamp(nil))
	at := time.Date(2026, 11, 21, 1, 2, 3, 4_000_000, time.FixedZone("east", 3600))
	require.Equal(t, "2026-11-21 00:02:03.004Z", Stamp(&at))
}

func TestPrintableIsSafeForATerminal(t *testing.T) {
	require.Equal(t, `{"a":1}`, Preview([]byte(`{"a":1}`), 100))
	require.Equal(t, `\x1b[2J\n\x00\xff`, Preview([]byte("\x1b[2J\n\x00\xff"), 100))
	require.Equal(t, "abc…", Preview([]byte("abcdef"), 3))
	require.Empty(t, Preview(nil, 3))
}
