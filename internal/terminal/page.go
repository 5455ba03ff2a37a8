package terminal

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Screen is what an answer is written to. The zero value is a pipe or a file.
type Screen struct {
	Width   int  // in columns; 0: as wide as needed
	Colour  bool // headings, and what is wrong
	Watched bool // by a person, at a terminal
}

// Bold makes a text stand out, on a screen with colours.
func (s Screen) Bold(text string) string { return s.paint("\x1b[1m", text) }

// Red says that something is wrong, on a screen with colours.
func (s Screen) Red(text string) string { return s.paint("\x1b[31m", text) }

func (s Screen) paint(how, text string) string {
	if !s.Colour || text == "" {
		return text
	}
	return how + text + "\x1b[0m"
}

// Page collects the text for a person: pairs, tables and lines. Whatever is given to
// it may have been written by anybody, so that all of it is escaped here; only
// formats are taken as they are.
type Page struct {
	Screen
	Wrong []string // how states begin that are wrong

	text      strings.Builder
	left, cut []string
}

// Line writes one line, or those of the format, wrapped. What would separate it from
// what is above is left out where there is nothing.
func (p *Page) Line(format string, args ...any) {
	safe := make([]any, len(args))
	for i, arg := range args {
		safe[i] = arg
		text, ok := arg.(string)
		if !ok {
			text = fmt.Sprint(arg)
		}
		if escaped := Escape(text); escaped != text {
			safe[i] = escaped
		}
	}
	text := fmt.Sprintf(format, safe...)
	if p.text.Len() == 0 {
		if text = strings.TrimLeft(text, "\n"); text == "" {
			return
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		for _, part := range Wrap(line, p.Width, 2) {
			if strings.HasPrefix(line, advice) {
				part = p.Red(part)
			}
			p.text.WriteString(part + "\n")
		}
	}
}

// Block writes text of several lines, as it is.
func (p *Page) Block(text string) { p.text.WriteString(Lines(text)) }

// Payload writes what somebody asked for whole: as it is into a file or a pipe,
// escaped to a terminal.
func (p *Page) Payload(data []byte) {
	if p.Watched {
		p.Block(string(data) + "\n")
		return
	}
	p.text.Write(data)
	p.text.WriteString("\n")
}

// leastValue is the room for values below which they are not wrapped.
const leastValue = 20

// Pairs writes names and values in two columns; a pair with an empty value is left out.
// Values are wrapped in theirs. Names may have the marks of a column, see [Page.Table].
func (p *Page) Pairs(pairs ...[2]string) {
	pairs = slices.DeleteFunc(slices.Clone(pairs), func(pair [2]string) bool { return pair[1] == "" })
	names := make([]column, len(pairs))
	widest := 0
	for i, pair := range pairs {
		names[i] = columnOf(pair[0], i)
		names[i].name = Escape(names[i].name)
		widest = max(widest, length(names[i].name))
	}
	room := p.Width - widest - len(gap)
	if room < leastValue {
		room = 0
	}
	for i, pair := range pairs {
		label := names[i].name
		for j, part := range wrap(Escape(pair[1]), room, 0, names[i].text) {
			if j == 0 && names[i].state {
				part = p.judged(part)
			}
			p.text.WriteString(label + strings.Repeat(" ", widest-length(label)) + gap + part + "\n")
			label = ""
		}
	}
}

// Table writes the heading and, under it, rows, apart from what is above; without rows
// nothing. A heading may end with marks: "seq??" for a column that a narrow terminal may
// do without, the earlier the more marks it has; "why…" for one whose text may be cut
// there; "state!" for one that is red where it begins with what is wrong.
func (p *Page) Table(heading []string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	if p.text.Len() > 0 {
		p.text.WriteString("\n")
	}
	t := newTable(heading, rows)
	left, cut := t.narrow(p.Width)
	p.left, p.cut = append(p.left, left...), append(p.cut, cut...)
	lines := layout(t.rows, func(row, column int) string {
		cell := t.rows[row][column]
		if row > 0 && column < len(t.columns) && t.columns[column].state {
			return p.judged(cell)
		}
		return cell
	})
	lines[0] = p.Bold(lines[0])
	p.text.WriteString(strings.Join(lines, "\n") + "\n")
}

// judged is a state, red where it is wrong.
func (p *Page) judged(state string) string {
	for _, wrong := range p.Wrong {
		rest, ok := strings.CutPrefix(state, wrong)
		if next, _ := utf8.DecodeRuneInString(rest); ok && (rest == "" || strings.ContainsRune(" ,:…", next)) {
			return p.Red(wrong) + rest
		}
	}
	return state
}

// String returns what was written, and says at its end what is not shown.
func (p *Page) String() string {
	left, cut := once(p.left, nil), once(p.cut, p.left)
	say := "-o wide shows: " + left
	switch {
	case left == "" && cut == "":
		return p.text.String()
	case left == "":
		say = "-o wide shows all of " + cut
	case cut != "":
		say += ", and all of " + cut
	}
	return p.text.String() + "\n" + strings.Join(Wrap(say, p.Width, 2), "\n") + "\n"
}

// once lists names, but for those that are in another list.
func once(names, but []string) string {
	var out []string
	for _, name := range names {
		if !slices.Contains(out, name) && !slices.Contains(but, name) {
			out = append(out, name)
		}
	}
	return strings.Join(out, ", ")
}
