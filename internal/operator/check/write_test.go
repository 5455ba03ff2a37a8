package check

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/terminal"
)

// TestWriteAtANarrowTerminal: what does not fit beside the name stands under it, and what
// mends something stays on one line.
func TestWriteAtANarrowTerminal(t *testing.T) {
	cure := "outboxctl migrate up --side outbox --relay orders (it makes the table, or says what became of it)"
	verdicts := []Verdict{
		{Name: "clock", Status: OK, Detail: "in step"},
		{Name: "log kept for the slot", Status: Warning, Detail: "max_slot_wal_keep_size is unlimited: a relay that is away for long fills the server's disk", Cure: "set it"},
		{Name: "publication", Status: Failed, Code: "PUBLICATION_MISSING", Detail: "it is gone", Cure: cure},
	}
	var out strings.Builder
	p := &Printer{w: &out, screen: terminal.Screen{Width: 80, Colour: true}}
	for _, v := range verdicts {
		p.Print(v)
	}
	require.NoError(t, p.End())
	name := func(status, name string) string { return status + "  " + name + strings.Repeat(" ", 42-len(name)) }
	require.Equal(t, name("ok     ", "clock")+"  in step\n"+
		"warning  log kept for the slot\n"+
		"         max_slot_wal_keep_size is unlimited: a relay that is away for long\n"+
		"         fills the server's disk\n"+
		strings.Repeat(" ", 53)+"-> set it\n"+
		"\x1b[31mfailed\x1b[0m   publication\n"+
		"         PUBLICATION_MISSING: it is gone\n"+
		"         -> "+cure+"\n", out.String())
}
