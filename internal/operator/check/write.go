package check

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/internal/terminal/device"
)

// Printer writes verdicts as a table for people, line by line as they come, or as
// one document of JSON at the end.
type Printer struct {
	w      io.Writer
	screen terminal.Screen
	json   bool
	all    []Verdict
	err    error
}

// NewPrinter returns a printer; format is "table", "wide" (as wide as needed, also at a
// terminal) or "json".
func NewPrinter(w io.Writer, format string) (*Printer, error) {
	p := &Printer{w: w, screen: device.Of(w), json: format == "json", all: []Verdict{}}
	switch format {
	case "wide":
		p.screen.Width = 0
	case "table", "json":
	default:
		return nil, fmt.Errorf("-o/--output %q: want table, wide or json", format)
	}
	return p, nil
}

// Print takes one verdict. Its cure stands below it.
func (p *Printer) Print(v Verdict) {
	p.all = append(p.all, v)
	if p.json || p.err != nil {
		return
	}
	detail := v.Detail
	if v.Code != "" {
		detail = v.Code + ": " + detail
	}
	lines := []string{fmt.Sprintf("%-7s  %-42s", v.Status, terminal.Escape(v.Name))}
	if detail != "" {
		lines = p.beside(lines, "", terminal.Escape(detail))
	}
	if v.Cure != "" {
		lines = p.beside(append(lines, strings.Repeat(" ", nameWidth)), "-> ", terminal.Escape(v.Cure))
	}
	if status := string(v.Status); v.Status == Failed || v.Status == Held {
		lines[0] = p.screen.Red(status) + lines[0][len(status):]
	}
	_, p.err = fmt.Fprintln(p.w, strings.Join(lines, "\n"))
}

const (
	statusWidth = 7
	nameWidth   = statusWidth + 2 + 42
)

// beside writes a text behind the last line, which is as wide as status and name, or,
// where the terminal is too narrow for that, under it. What mends something may be a
// command, and is not broken.
func (p *Printer) beside(lines []string, arrow, text string) []string {
	last := len(lines) - 1
	if beside := utf8.RuneCountInString(lines[last] + "  " + arrow + text); p.screen.Width <= 0 || beside <= p.screen.Width {
		lines[last] += "  " + arrow + text
		return lines
	}
	if lines[last] = strings.TrimRight(lines[last], " "); lines[last] == "" {
		lines = lines[:last]
	}
	const indent = statusWidth + 2
	broken := []string{text}
	if arrow == "" {
		broken = terminal.Wrap(text, p.screen.Width-indent, 0)
	}
	for _, part := range broken {
		lines = append(lines, strings.Repeat(" ", indent)+arrow+part)
	}
	return lines
}

// End writes what is left and returns the first error of writing.
func (p *Printer) End() error {
	if !p.json {
		return p.err
	}
	document, err := json.MarshalIndent(p.all, "", "  ")
	if err != nil {
		return err
	}
	_, err = p.w.Write(append(terminal.JSON(document), '\n'))
	return err
}
