package check

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/onceward/onceward/internal/terminal"
)

// Printer writes verdicts as a table for people, line by line as they come, or as
// one document of JSON at the end.
type Printer struct {
	w    io.Writer
	json bool
	all  []Verdict
	err  error
}

// NewPrinter returns a printer; format is "table" or "json".
func NewPrinter(w io.Writer, format string) (*Printer, error) {
	if format != "table" && format != "json" {
		return nil, fmt.Errorf("output %q: want table or json", format)
	}
	return &Printer{w: w, json: format == "json", all: []Verdict{}}, nil
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
	const indent = "                                                   " // as wide as status and name
	text := fmt.Sprintf("%-7s  %-42s", v.Status, terminal.Escape(v.Name))
	if detail != "" {
		text += "  " + terminal.Escape(detail)
	}
	if v.Cure != "" {
		text += "\n" + indent + "  -> " + terminal.Escape(v.Cure)
	}
	_, p.err = fmt.Fprintln(p.w, text)
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
