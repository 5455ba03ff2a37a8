package manual

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"
)

func TestPage(t *testing.T) {
	app := &cli.App{Name: "tool", Usage: "does it", Version: "v1 (go)", Commands: []*cli.Command{
		{Name: "dead", Usage: "look", Subcommands: []*cli.Command{{
			Name: "show", Usage: "show it", ArgsUsage: "KEY", Description: "One\nparagraph of `tool x`.\n\n  a  block\n\n.begins with a dot…",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "`FORMAT` it's in"},
				&cli.BoolFlag{Name: "yes", Usage: "do not ask", EnvVars: []string{"TOOL_YES"}},
				&cli.DurationFlag{Name: "wait", Value: time.Second, Usage: "wait", Category: "Only with --side x"},
				&cli.StringFlag{Name: "old", Hidden: true},
			},
		}}},
		{Name: "secret", Usage: "none", Hidden: true},
	}}
	require.Equal(t, `.TH "TOOL" 1 "" "tool v1" "Onceward"
.nh
.ad l
.SH "NAME"
\&tool \- does it
.SH "SYNOPSIS"
\&tool COMMAND [FLAG\[u2026]] [ARGUMENT\[u2026]]
.SH OPTIONS
.TP
\fB\-\-help, \-h\fR
\&say what a command does, and which flags it has
.TP
\fB\-\-version, \-v\fR
\&print the version, alone
.SH COMMANDS
.SS "tool dead"
\&Look.
.SS "tool dead show KEY"
\&Show it.
.PP
\&One paragraph of \(gatool x\(ga.
.PP
.nf
\&  a  block
.fi
.PP
\&.begins with a dot\[u2026]
.TP
\fB\-\-output, \-o\fR \fIFORMAT\fR
\&FORMAT it\(aqs in; the default is \(dqtable\(dq
.TP
\fB\-\-yes\fR
\&do not ask; in the environment: TOOL_YES
.TP
\fB\-\-wait\fR \fIVALUE\fR
\&wait; the default is 1s; only with \-\-side x
.SH "EXIT STATUS"
\&0 or 1
`, Page(app, [2]string{"EXIT STATUS", "0 or 1"}))
}
