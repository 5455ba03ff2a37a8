package terminal

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// marks stand behind the name of a column, or of a pair, and say what may be done to it
// where the terminal is too narrow, and what is wrong in it:
//
//	seq??   may be left out; the more marks, the earlier
//	why…    is text for a reader: it may be cut, or broken in the middle of a word
//	state!  says when something is wrong, in red
//
// What has neither of the first two is protected: keys, places, ids and names, which
// somebody copies into the next command, stay whole. A column of nothing but times loses
// their milliseconds first.
const marks = "?…!"

// leastText is what is left of a text that is cut, at least. It is left out where there
// is no room for that.
const leastText = 12

// column is one column of a table, or the first of pairs.
type column struct {
	name  string
	need  int  // 0: always there; the larger, the less it is needed
	text  bool // may be cut
	state bool
	place int // among all of the table
}

func columnOf(heading string, place int) column {
	name := strings.TrimRight(heading, marks)
	marked := heading[len(name):]
	return column{
		name: name, place: place, need: strings.Count(marked, "?"), text: strings.Contains(marked, "…"),
		state: strings.Contains(marked, "!"),
	}
}

// table is a heading and the rows under it. All is escaped.
type table struct {
	columns []column
	rows    [][]string // the first is the heading
}

func newTable(heading []string, rows [][]string) *table {
	t := &table{}
	upper := make([]string, len(heading))
	for i, h := range heading {
		t.columns = append(t.columns, columnOf(h, i))
		t.columns[i].name = Escape(strings.ToUpper(t.columns[i].name))
		upper[i] = t.columns[i].name
	}
	t.rows = append([][]string{upper}, escaped(rows)...)
	return t
}

func escaped(rows [][]string) [][]string {
	safe := make([][]string, len(rows))
	for i, row := range rows {
		safe[i] = make([]string, len(row))
		for j, cell := range row {
			safe[i][j] = Escape(cell)
		}
	}
	return safe
}

// narrow makes a table at most so wide, where what is protected in it fits, and returns
// the names of the columns that are left out, and of those with a cell that is cut. Of a
// table that fits, and with a width of 0, nothing changes.
func (t *table) narrow(width int) (left, cut []string) {
	if width <= 0 || t.width() <= width {
		return nil, nil
	}
	t.dropMilliseconds()
	var out []column
	for t.width() > width {
		i := t.leastNeeded()
		if i < 0 {
			break
		}
		out = append(out, t.columns[i])
		t.leaveOut(i)
	}
	limit, fits := t.textLimit(width)
	for !fits {
		i := t.lastText()
		if i < 0 {
			break
		}
		out = append(out, t.columns[i])
		t.leaveOut(i)
		limit, fits = t.textLimit(width)
	}
	cut = t.cutTexts(limit)
	slices.SortFunc(out, func(a, b column) int { return a.place - b.place })
	for _, c := range out {
		left = append(left, c.name)
	}
	return left, cut
}

// widths are those of the columns.
func (t *table) widths() []int {
	widths := make([]int, len(t.columns))
	for _, row := range t.rows {
		for i, cell := range row {
			if i < len(widths) {
				widths[i] = max(widths[i], length(cell))
			}
		}
	}
	return widths
}

func (t *table) width() int { return total(t.widths()) }

func total(widths []int) int {
	sum := len(gap) * (len(widths) - 1)
	for _, w := range widths {
		sum += w
	}
	return sum
}

// leastNeeded is the column that one can do without before all others: of several the
// last, and never the only one.
func (t *table) leastNeeded() int {
	found := -1
	for i, c := range t.columns {
		if c.need > 0 && (found < 0 || c.need >= t.columns[found].need) && len(t.columns) > 1 {
			found = i
		}
	}
	return found
}

// lastText is the last column that may be cut, if it is not the only one.
func (t *table) lastText() int {
	for i, c := range slices.Backward(t.columns) {
		if c.text && len(t.columns) > 1 {
			return i
		}
	}
	return -1
}

func (t *table) leaveOut(i int) {
	t.columns = slices.Delete(t.columns, i, i+1)
	for j, row := range t.rows {
		if i < len(row) {
			t.rows[j] = slices.Delete(row, i, i+1)
		}
	}
}

// dropMilliseconds of columns that hold nothing but times, as Stamp writes them.
func (t *table) dropMilliseconds() {
	for i := range t.columns {
		times := 0
		for _, row := range t.rows[1:] {
			switch {
			case i < len(row) && isStamp(row[i]):
				times++
			case i < len(row) && row[i] != noStamp:
				times = -len(t.rows)
			}
		}
		for _, row := range t.rows[1:] {
			if times > 0 && i < len(row) && isStamp(row[i]) {
				row[i] = row[i][:len("2006-01-02 15:04:05")] + "Z"
			}
		}
	}
}

// textLimit is the length to which texts are cut, so that the longest lose first; false:
// the table is too wide all the same.
func (t *table) textLimit(width int) (limit int, fits bool) {
	widths := t.widths()
	for i, c := range t.columns {
		if c.text {
			limit = max(limit, widths[i])
		}
	}
	for limit > leastText && total(t.limited(widths, limit)) > width {
		limit--
	}
	return limit, total(t.limited(widths, limit)) <= width
}

func (t *table) limited(widths []int, limit int) []int {
	widths = slices.Clone(widths)
	for i, c := range t.columns {
		if c.text {
			widths[i] = max(min(widths[i], limit), length(c.name))
		}
	}
	return widths
}

func (t *table) cutTexts(limit int) (cut []string) {
	for i, c := range t.columns {
		shorter := false
		most := max(limit, length(c.name))
		for _, row := range t.rows[1:] {
			if c.text && i < len(row) && length(row[i]) > most {
				row[i], shorter = cutText(row[i], most), true
			}
		}
		if shorter {
			cut = append(cut, c.name)
		}
	}
	return cut
}

// cutText never cuts a command between backquotes: what it would cut it leaves out.
func cutText(text string, most int) string {
	at := most - 1
	for _, c := range commands([]rune(text)) {
		if c.from < at && at < c.to {
			at = c.from
		}
	}
	return strings.TrimRight(string([]rune(text)[:at]), " ") + "…"
}

// gap stands between two columns.
const gap = "  "

// layout writes rows below one another, in columns as wide as what is in them. A row may
// be shorter than others: what it ends with makes no column wider, and columns before it
// and after it are apart, as text/tabwriter has it. painted writes a cell, with what takes
// no room.
func layout(rows [][]string, painted func(row, column int) string) []string {
	widths := make([][]int, len(rows))
	columns := 0
	for i, row := range rows {
		widths[i] = make([]int, len(row))
		columns = max(columns, len(row)-1)
	}
	for c := range columns {
		for i := 0; i < len(rows); i++ {
			first, widest := i, 0
			for ; i < len(rows) && c < len(rows[i])-1; i++ {
				widest = max(widest, length(rows[i][c]))
			}
			for _, w := range widths[first:i] {
				w[c] = widest
			}
		}
	}
	lines := make([]string, len(rows))
	for i, row := range rows {
		var b strings.Builder
		for c, cell := range row {
			b.WriteString(painted(i, c))
			if c < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i][c]-length(cell)) + gap)
			}
		}
		lines[i] = b.String()
	}
	return lines
}

func length(text string) int { return utf8.RuneCountInString(text) }
