package terminal

import (
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// someTable is a heading with marks, and rows of all kinds of cells.
func someTable(t *rapid.T, ragged bool) (heading []string, rows [][]string) {
	name := rapid.StringMatching(`[a-z][a-z ',]{0,14}[a-z]`)
	for range rapid.IntRange(1, 8).Draw(t, "columns") {
		mark := rapid.SampledFrom([]string{"", "", "", "?", "??", "…", "…?", "!"}).Draw(t, "mark")
		heading = append(heading, name.Draw(t, "name")+mark)
	}
	stamps := rapid.SliceOfN(rapid.Bool(), len(heading), len(heading)).Draw(t, "stamps")
	stamp := rapid.SampledFrom([]string{"2026-11-21 00:02:03.004Z", "2026-11-22 10:12:13.999Z", "-"})
	cell := rapid.OneOf(rapid.StringMatching(`[a-zü€0-9:@/.-]{0,60}`), rapid.StringMatching("[a-z ]{0,30}`[a-z ]{1,20}`[a-z ]{0,30}"),
		stamp, rapid.StringN(0, 40, -1), rapid.Just(""))
	for range rapid.IntRange(1, 6).Draw(t, "rows") {
		row := make([]string, len(heading))
		for i := range row {
			if row[i] = cell.Draw(t, "cell"); stamps[i] {
				row[i] = stamp.Draw(t, "stamp")
			}
		}
		if ragged {
			row = row[:rapid.IntRange(0, len(row)).Draw(t, "length")]
		}
		rows = append(rows, row)
	}
	return heading, rows
}

func rendered(heading []string, rows [][]string, width int) []string {
	p := &Page{Screen: Screen{Width: width}}
	p.Table(heading, rows)
	text := p.text.String()
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// TestWidth0IsAsWideAsNeeded, as text/tabwriter writes it.
func TestWidth0IsAsWideAsNeeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		heading, rows := someTable(t, true)
		var want strings.Builder
		w := tabwriter.NewWriter(&want, 0, 0, 2, ' ', 0)
		upper := make([]string, len(heading))
		for i, h := range heading {
			upper[i] = strings.ToUpper(strings.TrimRight(h, "?!…"))
		}
		for _, row := range append([][]string{upper}, rows...) {
			safe := make([]string, len(row))
			for i, cell := range row {
				safe[i] = Escape(cell)
			}
			fmt.Fprintln(w, strings.Join(safe, "\t"))
		}
		require.NoError(t, w.Flush())
		p := &Page{}
		p.Table(heading, rows)
		require.Equal(t, want.String(), p.String())
	})
}

// TestNarrow: whatever the width, what is protected is there as it was; what may only be
// left out is whole or not there; and no line is too long where what is protected fits.
func TestNarrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		heading, rows := someTable(t, false)
		width := rapid.IntRange(1, 200).Draw(t, "width")
		before, after := newTable(heading, rows), newTable(heading, rows)
		fit := before.width() <= width
		left, cut := after.narrow(width)
		if fit {
			require.Empty(t, append(left, cut...))
			require.Equal(t, before, after)
		}
		there := make(map[int]int)
		for i, c := range after.columns {
			there[c.place] = i
		}
		if !fit {
			before.dropMilliseconds()
		}
		var least []int
		for place, c := range before.columns {
			i, ok := there[place]
			if c.need == 0 && !c.text {
				least = append(least, before.widths()[place])
				require.True(t, ok, "%s is protected", c.name)
			}
			for r := range before.rows {
				if ok && !c.text {
					require.Equal(t, before.rows[r][place], after.rows[r][i], "%s is never cut", c.name)
				}
				if ok && c.text && after.rows[r][i] != before.rows[r][place] {
					require.Contains(t, cut, c.name)
					require.True(t, strings.HasSuffix(after.rows[r][i], "…"))
					if strings.Count(before.rows[r][place], "`")%2 == 0 {
						require.Zero(t, strings.Count(after.rows[r][i], "`")%2, "no command is cut")
					}
				}
			}
			require.True(t, ok || contains(left, c.name), "what is left out is named")
		}
		if len(least) > 0 && total(least) <= width {
			for _, line := range rendered(heading, rows, width) {
				require.LessOrEqual(t, length(line), width, line)
			}
		}
	})
}

func contains(names []string, name string) bool {
	return strings.Contains("\x00"+strings.Join(names, "\x00")+"\x00", "\x00"+name+"\x00")
}

func TestWhatANarrowTableDoesWithout(t *testing.T) {
	heading := []string{"key", "type?", "age?", "written??", "seq??", "why…"}
	rows := [][]string{
		{"orders:1", "OrderPaid", "3m0s", "2026-11-21 00:02:03.004Z", "17", "the broker refused it"},
		{"orders:2", "OrderPaid", "2m0s", "2026-11-21 00:02:04.005Z", "18", "as above"},
	}
	for _, c := range []struct {
		width int
		want  string
	}{
		{82, "KEY       TYPE       AGE   WRITTEN                   SEQ  WHY\n" +
			"orders:1  OrderPaid  3m0s  2026-11-21 00:02:03.004Z  17   the broker refused it\n" +
			"orders:2  OrderPaid  2m0s  2026-11-21 00:02:04.005Z  18   as above\n"},
		{78, "KEY       TYPE       AGE   WRITTEN               SEQ  WHY\n" +
			"orders:1  OrderPaid  3m0s  2026-11-21 00:02:03Z  17   the broker refused it\n" +
			"orders:2  OrderPaid  2m0s  2026-11-21 00:02:04Z  18   as above\n"},
		{74, "KEY       TYPE       AGE   WRITTEN               WHY\n" +
			"orders:1  OrderPaid  3m0s  2026-11-21 00:02:03Z  the broker refused it\n" +
			"orders:2  OrderPaid  2m0s  2026-11-21 00:02:04Z  as above\n" +
			"\n-o wide shows: SEQ\n"},
		{44, "KEY       TYPE       WHY\n" +
			"orders:1  OrderPaid  the broker refused it\n" +
			"orders:2  OrderPaid  as above\n" +
			"\n-o wide shows: AGE, WRITTEN, SEQ\n"},
		{28, "KEY       WHY\n" +
			"orders:1  the broker refuse…\n" +
			"orders:2  as above\n" +
			"\n-o wide shows: TYPE, AGE,\n  WRITTEN, SEQ, and all of\n  WHY\n"},
		{5, "KEY\norders:1\norders:2\n" +
			"\n-o\n  wide\n  shows:\n  TYPE,\n  AGE,\n  WRITTEN,\n  SEQ,\n  WHY\n"},
	} {
		p := &Page{Screen: Screen{Width: c.width}}
		p.Table(heading, rows)
		require.Equal(t, c.want, p.String(), c.width)
	}
}

// TestTheLongestTextIsCutFirst, and a command between backquotes is left out whole.
func TestTheLongestTextIsCutFirst(t *testing.T) {
	require.Equal(t, []string{"A            B                   C", "short words  long words of a t…  also long words o…"},
		rendered([]string{"a…", "b…", "c…"}, [][]string{{"short words", "long words of a table", "also long words of a table"}}, 51))
	require.Equal(t, []string{"A  B", "k  it waits:…"},
		rendered([]string{"a", "b…"}, [][]string{{"k", "it waits: `outboxctl status` says why"}}, 30))
	require.Equal(t, []string{"A  B", "k  it waits: `outboxctl status` sa…"},
		rendered([]string{"a", "b…"}, [][]string{{"k", "it waits: `outboxctl status` says why"}}, 35))
}
