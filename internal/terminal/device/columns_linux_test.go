package device

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestATerminalIsAsked how wide and high it is.
func TestATerminalIsAsked(t *testing.T) {
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminal can be made here: ", err)
	}
	defer pty.Close()
	t.Setenv("COLUMNS", "")
	require.NoError(t, unix.IoctlSetWinsize(int(pty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 97}))
	require.True(t, Of(pty).Watched)
	require.Equal(t, 97, Of(pty).Width)
	t.Setenv("LINES", "")
	t.Setenv("TERM", "xterm")
	require.Equal(t, 24, Lines(pty))
}
