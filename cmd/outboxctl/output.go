package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/terminal"
)

const (
	outputTable = "table"
	outputJSON  = "json"
)

func outputFlag() cli.Flag {
	return &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: outputTable, Usage: "`FORMAT` of the answer: table or json"}
}

// checkOutput refuses an unknown format before any work is done.
func checkOutput(c *cli.Context) error {
	switch c.String("output") {
	case outputTable, outputJSON:
		return nil
	}
	return usage("--output %q: want %s or %s", c.String("output"), outputTable, outputJSON)
}

// answer writes a report and, where it says by itself that something is wrong, ends the
// command so.
func answer[R any](c *cli.Context, report R, printed func(*page, R)) error {
	says, ok := any(report).(interface{ Wrong() bool })
	return judge(write(c, report, printed), ok && says.Wrong())
}

// judge ends a command whose answer is written as one that found something wrong.
func judge(err error, wrong bool) error {
	if err == nil && wrong {
		return errWrong
	}
	return err
}

// write writes a report as one JSON document, or prints it for a person.
func write[R any](c *cli.Context, report R, printed func(*page, R)) error {
	if c.String("output") == outputJSON {
		var document bytes.Buffer
		enc := json.NewEncoder(&document)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		if err := enc.Encode(report); err != nil {
			return fmt.Errorf("write answer: %w", err)
		}
		if _, err := c.App.Writer.Write(terminal.JSON(document.Bytes())); err != nil {
			return fmt.Errorf("write answer: %w", err)
		}
		return nil
	}
	p := &page{watched: isTerminal(c.App.Writer)}
	printed(p, report)
	if _, err := io.WriteString(c.App.Writer, p.text.String()); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	return nil
}

// page collects the text for a person: pairs, tables and lines. Whatever is given to
// it may have been written by anybody, so that all of it is escaped here; only
// formats are taken as they are.
type page struct {
	text    strings.Builder
	watched bool // by a person, at a terminal
}

// line writes one line, or those of the format.
func (p *page) line(format string, args ...any) {
	safe := make([]any, len(args))
	for i, arg := range args {
		safe[i] = arg
		text, ok := arg.(string)
		if !ok {
			text = fmt.Sprint(arg)
		}
		if escaped := terminal.Escape(text); escaped != text {
			safe[i] = escaped
		}
	}
	fmt.Fprintf(&p.text, format+"\n", safe...)
}

// block writes text of several lines.
func (p *page) block(text string) { p.text.WriteString(terminal.Lines(text)) }

// payload writes what somebody asked for whole: as it is into a file or a pipe,
// escaped to a terminal.
func (p *page) payload(data []byte) {
	if p.watched {
		p.block(string(data) + "\n")
		return
	}
	p.text.Write(data)
	p.text.WriteString("\n")
}

// pairs writes names and values in two columns; a pair with an empty value is
// left out.
func (p *page) pairs(pairs ...[2]string) {
	var rows [][]string
	for _, pair := range pairs {
		if pair[1] != "" {
			rows = append(rows, []string{pair[0], pair[1]})
		}
	}
	p.columns("", rows)
}

// table writes a blank line, the heading and, under it, rows; without rows
// nothing.
func (p *page) table(heading []string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	p.line("")
	upper := make([]string, len(heading))
	for i, h := range heading {
		upper[i] = strings.ToUpper(h)
	}
	p.columns("", append([][]string{upper}, rows...))
}

func (p *page) columns(indent string, rows [][]string) {
	w := tabwriter.NewWriter(&p.text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		safe := make([]string, len(row))
		for i, cell := range row {
			safe[i] = terminal.Escape(cell)
		}
		fmt.Fprintln(w, indent+strings.Join(safe, "\t")) //nolint:errcheck // a strings.Builder does not fail
	}
	w.Flush() //nolint:errcheck // a strings.Builder does not fail
}

// short is the beginning of a text that anybody may have written, as one line.
func short(text string) string { return terminal.Preview([]byte(text), terminal.PreviewBytes) }
