// Package manual writes the man page of a program from its tree of commands, so that it
// says what --help says. It is pure: the same tree makes the same page, which has no date.
package manual

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/terminal"
)

// Command prints the page of the program that it is a command of. sections come after
// the commands, each as a heading and a text as of [cli.Command.Description].
func Command(sections ...[2]string) *cli.Command {
	return &cli.Command{
		Name: "man", Usage: "print the man page of all commands, as roff",
		Action: func(c *cli.Context) error {
			if _, err := io.WriteString(c.App.Writer, Page(c.App, sections...)); err != nil {
				return fmt.Errorf("write the man page: %w", err)
			}
			return nil
		},
	}
}

// Page is the man page of a program.
func Page(app *cli.App, sections ...[2]string) string {
	p := &page{}
	version, _, _ := strings.Cut(app.Version, " ")
	// Without hyphens and at the left alone: what is long here is to be copied.
	p.raw(fmt.Sprintf(".TH %q 1 \"\" %q \"Onceward\"\n.nh\n.ad l\n", strings.ToUpper(app.Name), app.Name+" "+escaped(version)))
	p.section("NAME", app.Name+" - "+app.Usage)
	p.section("SYNOPSIS", app.Name+" COMMAND [FLAG…] [ARGUMENT…]")
	p.raw(".SH OPTIONS\n")
	p.option("--help, -h", "", "say what a command does, and which flags it has")
	p.option("--version, -v", "", "print the version, alone")
	p.raw(".SH COMMANDS\n")
	p.commands(app.Name, app.Commands)
	for _, s := range sections {
		p.section(s[0], s[1])
	}
	return p.b.String()
}

type page struct{ b strings.Builder }

func (p *page) raw(text string) { p.b.WriteString(text) }

func (p *page) section(heading, text string) {
	p.raw(".SH \"" + heading + "\"\n")
	p.text(text)
}

// commands writes those that do something, each under its whole name, and of the others
// what they are for.
func (p *page) commands(path string, commands []*cli.Command) {
	for _, c := range commands {
		if c.Hidden || c.Name == "help" {
			continue
		}
		name := path + " " + c.Name
		p.raw(".SS \"" + escaped(strings.TrimSpace(name+" "+c.ArgsUsage)) + "\"\n")
		p.text(strings.ToUpper(c.Usage[:1]) + c.Usage[1:] + ".")
		if c.Description != "" {
			p.raw(".PP\n")
			p.text(c.Description)
		}
		for _, f := range c.Flags {
			p.flag(f)
		}
		p.commands(name, c.Subcommands)
	}
}

func (p *page) flag(f cli.Flag) {
	if visible, ok := f.(cli.VisibleFlag); ok && !visible.IsVisible() {
		return
	}
	doc, ok := f.(cli.DocGenerationFlag)
	if !ok {
		return
	}
	var names []string
	for _, name := range f.Names() {
		dashes := "--"
		if len(name) == 1 {
			dashes = "-"
		}
		names = append(names, dashes+name)
	}
	value, usage := placeholder(doc.GetUsage())
	switch {
	case !doc.TakesValue():
		value = ""
	case value == "":
		value = "VALUE"
	}
	if is := doc.GetDefaultText(); doc.TakesValue() && !slices.Contains([]string{"", "0", "0s", "false"}, is) {
		usage += "; the default is " + is
	}
	if kind, ok := f.(cli.CategorizableFlag); ok && kind.GetCategory() != "" {
		usage += "; " + strings.ToLower(kind.GetCategory())
	}
	if vars := doc.GetEnvVars(); len(vars) > 0 {
		usage += "; in the environment: " + strings.Join(vars, ", ")
	}
	p.option(strings.Join(names, ", "), value, usage)
}

// placeholder takes the name of a flag's value, which stands between backquotes, out of
// these.
func placeholder(usage string) (name, text string) {
	before, rest, ok := strings.Cut(usage, "`")
	name, after, closed := strings.Cut(rest, "`")
	if !ok || !closed {
		return "", usage
	}
	return name, before + name + after
}

func (p *page) option(names, value, text string) {
	p.raw(".TP\n\\fB" + escaped(names) + "\\fR")
	if value != "" {
		p.raw(" \\fI" + escaped(value) + "\\fR")
	}
	p.raw("\n")
	p.text(text)
}

// text writes paragraphs, which an empty line is between. Lines with an indent stay as they
// are.
func (p *page) text(text string) {
	for i, paragraph := range strings.Split(strings.Trim(text, "\n"), "\n\n") {
		if i > 0 {
			p.raw(".PP\n")
		}
		if strings.HasPrefix(paragraph, " ") {
			p.raw(".nf\n")
			for line := range strings.SplitSeq(paragraph, "\n") {
				p.line(line)
			}
			p.raw(".fi\n")
			continue
		}
		const width = 76
		for _, line := range terminal.Wrap(strings.ReplaceAll(paragraph, "\n", " "), width, 0) {
			p.line(line)
		}
	}
}

// line writes one that is no request, whatever it begins with.
func (p *page) line(text string) { p.raw("\\&" + escaped(text) + "\n") }

var special = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, `"`, `\(dq`)

// escaped is a text in which nothing means anything to roff, in ASCII: as it is to be
// copied.
func escaped(text string) string {
	var b strings.Builder
	for _, r := range special.Replace(text) {
		if r < 0x80 {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "\\[u%04X]", r)
		}
	}
	return b.String()
}
