package device

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/terminal"
)

type tty struct{ strings.Builder }

func (*tty) Stat() (fs.FileInfo, error) { return info{}, nil }

type info struct{ fs.FileInfo }

func (info) Mode() fs.FileMode { return fs.ModeDevice | fs.ModeCharDevice }

func TestOf(t *testing.T) {
	t.Setenv("COLUMNS", "132")
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	file, err := os.Create(filepath.Join(t.TempDir(), "no terminal"))
	require.NoError(t, err)
	defer file.Close()
	require.Equal(t, terminal.Screen{}, Of(file), "COLUMNS is about terminals")
	require.Equal(t, terminal.Screen{}, Of(&strings.Builder{}))
	require.Equal(t, terminal.Screen{Width: 132, Colour: true, Watched: true}, Of(&tty{}))
	wide, high := size(file)
	require.Zero(t, wide+high, "a file has no size")
	t.Setenv("LINES", "50")
	require.Equal(t, 50, Lines(&tty{}))
	require.Zero(t, Lines(file), "LINES is about terminals")
	t.Setenv("TERM", "dumb")
	require.Zero(t, Lines(&tty{}), "its cursor cannot be moved")
}

func TestTheEnvironment(t *testing.T) {
	for _, c := range []struct {
		asked  int
		env    map[string]string
		width  int
		colour bool
	}{
		{80, nil, 80, true},
		{80, map[string]string{"COLUMNS": "120"}, 120, true},
		{80, map[string]string{"COLUMNS": "wide", "NO_COLOR": "1"}, 80, false},
		{80, map[string]string{"COLUMNS": "-1", "TERM": "dumb"}, 80, false},
		{0, nil, 0, true},
	} {
		got := of(c.asked, func(name string) string { return c.env[name] })
		require.Equal(t, terminal.Screen{Width: c.width, Colour: c.colour, Watched: true}, got, c)
	}
}
