package main

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/terminal"
)

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

	p = &page{terminal.Page{Screen: terminal.Screen{Watched: true}}}
	p.payload([]byte("a\x1b\nb"))
	require.Equal(t, "a\\x1b\nb\n", p.text.String())
	p = &page{}
	p.payload([]byte("a\x1b\xff"))
	require.Equal(t, "a\x1b\xff\n", p.text.String(), "into a file or a pipe")
}
