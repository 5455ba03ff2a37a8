package terminal

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		text  string
		width int
		want  []string
	}{
		{"one two  three", 0, []string{"one two  three"}},
		{"one two  three", 14, []string{"one two  three"}},
		{"one two  three", 13, []string{"one two", "  three"}},
		{"one two  three", 1, []string{"one", "  two", "  three"}},
		{"! " + strings.Repeat("w", 20) + " x", 10, []string{"! " + strings.Repeat("w", 20), "  x"}},
		{"run `outboxctl dead show K` now", 12, []string{"run", "  `outboxctl dead show K`", "  now"}},
		{"run (`outboxctl dead show K`), now", 12, []string{"run", "  (`outboxctl dead show K`),", "  now"}},
		{"one ` two", 6, []string{"one `", "  two"}},
		{"üü üü", 4, []string{"üü", "  üü"}},
		{"", 5, []string{""}},
	} {
		require.Equal(t, c.want, Wrap(c.text, c.width, 2), c.text)
	}
	require.Equal(t, []string{"ab", "cdef", "ghij", "k l"}, wrap("ab cdefghijk l", 4, 0, true))
}

// TestWrapLosesNothing but blanks at the ends of lines, breaks no command, and no line is
// too long that could be shorter.
func TestWrapLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching("(! )?[a-zü]{1,5}( ?[a-zü]{1,12}| `[a-z]{1,5} [a-z]{1,10}`){0,20}").Draw(t, "text")
		width, hard := rapid.IntRange(4, 60).Draw(t, "width"), rapid.Bool().Draw(t, "hard")
		lines := wrap(text, width, 2, hard)
		var joined string
		for i, line := range lines {
			if i > 0 {
				require.True(t, strings.HasPrefix(line, "  "))
				line = line[2:]
			}
			joined += strings.TrimSpace(line)
			require.Zero(t, strings.Count(line, "`")%2, "a command is whole")
			line = strings.TrimPrefix(line, advice)
			if length(lines[i]) > width {
				require.True(t, strings.Contains(line, "`") || !strings.Contains(line, " ") && !hard, "%q", lines)
			}
		}
		require.Equal(t, strings.ReplaceAll(text, " ", ""), strings.ReplaceAll(joined, " ", ""))
	})
}

func TestPairsAreWrapped(t *testing.T) {
	pairs := [][2]string{{"key", "orders:1"}, {"empty", ""}, {"state!", "dead: no topic is there, `outboxctl dead show orders:1` says more"}, {"payload…", `{"a":"` + strings.Repeat("x", 30) + `"}`}}
	p := &Page{Screen: Screen{Width: 35}}
	p.Pairs(pairs...)
	require.Equal(t, "key      orders:1\n"+
		"state    dead: no topic is there,\n"+
		"         `outboxctl dead show orders:1`\n"+
		"         says more\n"+
		"payload  {\"a\":\"xxxxxxxxxxxxxxxxxxxx\n"+
		"         xxxxxxxxxx\"}\n", p.String())
	p = &Page{}
	p.Pairs(pairs...)
	require.Equal(t, 3, strings.Count(p.String(), "\n"))
}

// TestNothingSeparatesTheFirst: what is on top has no blank line above it.
func TestNothingSeparatesTheFirst(t *testing.T) {
	p := &Page{}
	p.Line("")
	p.Line("\nhere")
	p.Table([]string{"a"}, [][]string{{"b"}})
	p.Line("\nthere")
	require.Equal(t, "here\n\nA\nb\n\nthere\n", p.String())
	p = &Page{}
	p.Table([]string{"a"}, [][]string{{"b"}})
	require.Equal(t, "A\nb\n", p.String())
}

// TestColours: headings, states that are wrong, and lines of advice; and without colours
// nothing.
func TestColours(t *testing.T) {
	write := func(s Screen) string {
		p := &Page{Screen: s, Wrong: []string{"dead", "not connected"}}
		p.Table([]string{"name", "state!", "why"}, [][]string{{"dead", "dead", "dead"}, {"b", "deadly", "x"}, {"c", "not connected (was streaming)", "x"}, {"d", "dead…", "x"}})
		p.Line("\n! %s", "it is wrong, and says so")
		p.Pairs([2]string{"state!", "dead: why"}, [2]string{"why", "dead"})
		return p.String()
	}
	plain := write(Screen{Width: 80})
	require.NotContains(t, plain, "\x1b")
	coloured := write(Screen{Width: 80, Colour: true})
	require.Equal(t, "\x1b[1mNAME  STATE                          WHY\x1b[0m\n"+
		"dead  \x1b[31mdead\x1b[0m                           dead\n"+
		"b     deadly                         x\n"+
		"c     \x1b[31mnot connected\x1b[0m (was streaming)  x\n"+
		"d     \x1b[31mdead\x1b[0m…                          x\n\n"+
		"\x1b[31m! it is wrong, and says so\x1b[0m\n"+
		"state  \x1b[31mdead\x1b[0m: why\nwhy    dead\n", coloured)
	require.Equal(t, plain, strings.NewReplacer("\x1b[1m", "", "\x1b[31m", "", "\x1b[0m", "").Replace(coloured))
	require.Contains(t, write(Screen{Width: 20, Colour: true}), "\x1b[31m! it is wrong, and\x1b[0m\n\x1b[31m  says so\x1b[0m\n")
}

// TestWhatIsNotShownIsNamedOnce, on the last line, of all tables together.
func TestWhatIsNotShownIsNamedOnce(t *testing.T) {
	p := &Page{Screen: Screen{Width: 20}}
	p.Table([]string{"key", "seq?", "why…"}, [][]string{{"orders:1", "1234567890", "it is broken"}})
	p.Table([]string{"key", "seq?", "why…"}, [][]string{{"orders:1", "1234567890", "none"}})
	p.Line("\nthere are more")
	require.Equal(t, "KEY\norders:1\n\nKEY       WHY\norders:1  none\n\nthere are more\n\n-o wide shows: SEQ,\n  WHY\n", p.String())
	p = &Page{Screen: Screen{Width: 24}}
	p.Table([]string{"key", "why…"}, [][]string{{"orders:1", "it is broken"}})
	p.Table([]string{"key", "why…"}, [][]string{{"orders:1", "it is quite broken"}})
	require.Contains(t, p.String(), "\n\n-o wide shows all of WHY\n")
}
