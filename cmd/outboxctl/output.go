package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/internal/terminal/device"
	"github.com/onceward/onceward/relay"
)

const (
	outputTable = "table"
	outputWide  = "wide" // the whole table, also at a terminal
	outputJSON  = "json"
)

func outputFlag() cli.Flag {
	return &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: outputTable, Usage: "`FORMAT` of the answer: table, wide (all of it, also where the terminal is too narrow) or json"}
}

// checkOutput refuses an unknown format before any work is done.
func checkOutput(c *cli.Context) error {
	switch c.String("output") {
	case outputTable, outputWide, outputJSON:
		return nil
	}
	return usage("-o/--output %q: want %s, %s or %s", c.String("output"), outputTable, outputWide, outputJSON)
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
	var text string
	if c.String("output") == outputJSON {
		var err error
		if text, err = document(report, "  "); err != nil {
			return err
		}
	} else {
		p := newPage(c, c.App.Writer)
		printed(p, report)
		text = p.text.String()
	}
	if _, err := io.WriteString(c.App.Writer, text); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	return nil
}

// document is a report as JSON, which is one line where nothing is indented.
func document(report any, indent string) (string, error) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", indent)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(report); err != nil {
		return "", fmt.Errorf("write answer: %w", err)
	}
	return string(terminal.JSON(text.Bytes())), nil
}

// page is a terminal.Page for a command's answer.
type page struct{ text terminal.Page }

// newPage is for what is written to a stream: as wide as a terminal there, unless
// somebody wants it wide.
func newPage(c *cli.Context, to io.Writer) *page {
	look := device.Of(to)
	if c.String("output") == outputWide {
		look.Width = 0
	}
	return &page{terminal.Page{Screen: look, Wrong: wrongStates}}
}

// wrongStates are how states begin that are red.
var wrongStates = []string{states.Dead, string(relay.StateHalted), "not connected"}

func (p *page) line(format string, args ...any) { p.text.Line(format, args...) }

// next prints the commands that may come next.
func (p *page) next(commands []string) {
	begins := "\nnext: "
	for _, command := range commands {
		p.line(begins+"`%s`", command)
		begins = "or:   "
	}
}

func (p *page) block(text string)                       { p.text.Block(text) }
func (p *page) payload(data []byte)                     { p.text.Payload(data) }
func (p *page) pairs(pairs ...[2]string)                { p.text.Pairs(pairs...) }
func (p *page) table(heading []string, rows [][]string) { p.text.Table(heading, rows) }

// short is the beginning of a text that anybody may have written, as one line.
func short(text string) string { return terminal.Preview([]byte(text), terminal.PreviewBytes) }

// whole is one in a column that a narrow terminal cuts, and nothing else.
func whole(text string) string { return terminal.Preview([]byte(text), terminal.ErrorBytes) }
