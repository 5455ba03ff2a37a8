package terminal

import (
	"slices"
	"strings"
)

// span is a stretch of runes.
type span struct{ from, to int }

// commands finds what stands between backquotes, with them.
func commands(text []rune) (found []span) {
	for i := 0; i < len(text); i++ {
		if text[i] != '`' {
			continue
		}
		end := slices.Index(text[i+1:], '`')
		if end < 0 {
			return found
		}
		found = append(found, span{i, i + end + 2})
		i += end + 1
	}
	return found
}

// words are the stretches of a text between which a line may end: at blanks, but for
// those in a command between backquotes, and the one behind the mark of a line of advice.
func words(text []rune) (found []span) {
	inside := make([]bool, len(text))
	for _, c := range commands(text) {
		for i := c.from; i < c.to; i++ {
			inside[i] = true
		}
	}
	if strings.HasPrefix(string(text), advice) {
		inside[len(advice)-1] = true
	}
	for i := 0; i < len(text); i++ {
		from := i
		for i < len(text) && (text[i] != ' ' || inside[i]) {
			i++
		}
		if i > from {
			found = append(found, span{from, i})
		}
	}
	return found
}

// advice begins a line that says what is wrong.
const advice = "! "

// Wrap breaks a text into lines that are at most so wide, at blanks; those after the first
// begin with an indent. What has no blank stays whole, and so does a command between
// backquotes. A width of 0 breaks nothing.
func Wrap(text string, width, indent int) []string {
	return wrap(text, width, indent, false)
}

// wrap is Wrap; hard breaks also words that are longer than a line, but for commands.
func wrap(text string, width, indent int, hard bool) (lines []string) {
	runes := []rune(text)
	if width <= 0 || len(runes) <= width {
		return []string{text}
	}
	from, to := 0, 0 // what is on the line
	room := width
	end := func(next int) {
		lines = append(lines, strings.Repeat(" ", min(len(lines), 1)*indent)+string(runes[from:to]))
		from, room = next, width-indent
	}
	for _, w := range words(runes) {
		if w.to-from > room && to > from {
			end(w.from)
		}
		for hard && room > 0 && w.to-from > room && !slices.Contains(runes[w.from:w.to], '`') {
			to = from + room
			end(to)
		}
		to = w.to
	}
	end(to)
	return lines
}
