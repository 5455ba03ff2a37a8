package main

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/terminal"
)

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 16 << 20: "16.0 MiB", 3 << 40: "3.0 TiB",
	} {
		require.Equal(t, want, size(n))
	}
}

func TestStamp(t *testing.T) {
	require.Equal(t, "-", stamp(nil))
	at := time.Date(2026, 11, 21, 1, 2, 3, 4_000_000, time.FixedZone("east", 3600))
	require.Equal(t, "2026-11-21 00:02:03.004Z", stamp(&at))
}

func TestPrintableIsSafeForATerminal(t *testing.T) {
	require.Equal(t, `{"a":1}`, printable([]byte(`{"a":1}`), 100))
	require.Equal(t, `\x1b[2J\n\x00\xff`, printable([]byte("\x1b[2J\n\x00\xff"), 100))
	require.Equal(t, "abc…", printable([]byte("abcdef"), 3))
	require.Empty(t, printable(nil, 3))
}

func TestPage(t *testing.T) {
	p := &page{}
	p.pairs([2]string{"key", "K"}, [2]string{"empty", ""}, [2]string{"event type", "OrderPaid"})
	p.table([]string{"slot", "state"}, nil)
	p.table([]string{"slot", "state"}, [][]string{{"onceward_orders", "open"}})
	require.Equal(t, "key         K\nevent type  OrderPaid\n\nSLOT             STATE\nonceward_orders  open\n", p.text.String())
}

// Whatever is written on a page is escaped there: a column, a value, a word in a
// line. Only formats are taken as they are.
func TestAPageEscapesWhatItIsGiven(t *testing.T) {
	const bad = "a\x1b[31m\r\n\u202eb\u009b"
	const want = `a\x1b[31m\r\n\u202eb\u009b`
	p := &page{}
	p.line("! %s and %v, %d", bad, errors.New(bad), 5)
	p.line("%v", []string{bad})
	p.pairs([2]string{"why", bad})
	p.table([]string{"key", bad}, [][]string{{bad, "x"}})
	p.block("two\nlines\x1b\n")
	out := p.text.String()
	require.Equal(t, out, terminal.Lines(out))
	require.Contains(t, out, "! "+want+" and "+want+", 5\n["+want+"]\nwhy  "+want+"\n")
	require.Contains(t, out, "two\nlines\\x1b\n")

	p = &page{watched: true}
	p.payload([]byte("a\x1b\nb"))
	require.Equal(t, "a\\x1b\nb\n", p.text.String())
	p = &page{}
	p.payload([]byte("a\x1b\xff"))
	require.Equal(t, "a\x1b\xff\n", p.text.String(), "into a file or a pipe")
}
