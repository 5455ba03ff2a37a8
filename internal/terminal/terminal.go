// Package terminal makes text safe to print where a person looks: what a program
// that writes into a database, or a broker, chose must not move the cursor, change
// colours or titles, turn the direction of writing, or end a line.
//
// And it makes it safe to be pasted: a printed command means what it says, whatever
// the text in it.
//
// And it writes times, lengths and sizes as a person reads them, finds the name that a
// mistyped one may stand for, and lays out answers: a [Page] has tables, pairs and
// lines, as wide as the [Screen] that it is for.
//
// It is pure: what looks at a terminal is package device, what asks again package watch.
package terminal

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Escape returns a text as one line, with everything that is not printable written
// as Go writes it in a string: control characters of ASCII and of ISO 6429 (C1),
// marks that turn the direction of writing, separators of lines, and bytes that are
// no UTF-8.
func Escape(text string) string { return escape(text, "") }

// Lines is [Escape] for text of several lines.
func Lines(text string) string { return escape(text, "\n") }

// JSON is Escape for a document of JSON, in which the encoder has escaped ASCII's
// control characters only. It means the same afterwards: what it escapes stands in
// strings alone.
func JSON(document []byte) []byte {
	if !strings.ContainsFunc(string(document), func(r rune) bool { return r != '\n' && !strconv.IsPrint(r) }) {
		return document
	}
	var b strings.Builder
	for _, r := range string(document) {
		switch {
		case r == '\n' || strconv.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return []byte(b.String())
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@:,./+-]+$`)

// Word returns a text as one word of a command that a person pastes into a shell: as
// it is, where the shell leaves it alone, otherwise quoted. What is not printable, which
// [Escape] would change, is written as bash, zsh and newer sh read it in $'…'.
func Word(text string) string {
	switch {
	case plainWord.MatchString(text):
		return text
	case Escape(text) == text:
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == '\'' || r == '\\':
			b.WriteString(`\` + text[:size])
		case !unsafe(r):
			b.WriteString(text[:size])
		default:
			for _, c := range []byte(text[:size]) {
				fmt.Fprintf(&b, `\%03o`, c)
			}
		}
		text = text[size:]
	}
	return "$'" + b.String() + "'"
}

// Arguments returns the last words of a command, which are no flags, also where one
// looks like it.
func Arguments(texts ...string) string {
	var words []string
	dashes := ""
	for _, text := range texts {
		words = append(words, Word(text))
		if strings.HasPrefix(text, "-") {
			dashes = "-- "
		}
	}
	return dashes + strings.Join(words, " ")
}

func escape(text, allowed string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return unsafe(r) && !strings.ContainsRune(allowed, r) }) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case strings.ContainsRune(allowed, r) || strconv.IsPrint(r):
			b.WriteString(text[:size])
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[size:]
	}
	return b.String()
}

// unsafe also holds for what may be a byte that is no UTF-8.
func unsafe(r rune) bool { return r == utf8.RuneError || !strconv.IsPrint(r) }
