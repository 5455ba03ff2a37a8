package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
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

// answer writes a report as one JSON document or with its own table.
func answer(c *cli.Context, report any, table func(*page)) error {
	if c.String("output") == outputJSON {
		enc := json.NewEncoder(c.App.Writer)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		if err := enc.Encode(report); err != nil {
			return fmt.Errorf("write answer: %w", err)
		}
		return nil
	}
	p := &page{}
	table(p)
	if _, err := io.WriteString(c.App.Writer, p.text.String()); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	return nil
}

// page collects the text for a person: pairs, tables and lines.
type page struct{ text strings.Builder }

// line writes one line.
func (p *page) line(format string, args ...any) {
	fmt.Fprintf(&p.text, format+"\n", args...)
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
		fmt.Fprintln(w, indent+strings.Join(row, "\t")) //nolint:errcheck // a strings.Builder does not fail
	}
	w.Flush() //nolint:errcheck // a strings.Builder does not fail
}

// stamp writes a time for a person, in UTC; nil is "-".
func stamp(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05.000Z")
}

// size writes a number of bytes for a person.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	div, exp := int64(unit), 0
	for m := n / unit; m >= unit; m /= unit {
		div *= unit
		exp++
	}
	return fmt.Sprintf("%.1f %ciB", float64(n)/float64(div), "KMGTPE"[exp])
}

// printable returns at most limit bytes of data as one line, with everything
// that a terminal might act on escaped.
func printable(data []byte, limit int) string {
	cut := len(data) > limit
	if cut {
		data = data[:limit]
	}
	quoted := fmt.Sprintf("%q", data)
	text := strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
	if cut {
		text += "…"
	}
	return text
}
