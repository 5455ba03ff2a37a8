package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/buildinfo"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/internal/terminal/manual"
	"github.com/onceward/onceward/internal/terminal/shell"
	"github.com/onceward/onceward/migrations"
)

// Exit codes.
const (
	exitFine   = 0
	exitFailed = 1
	exitUsage  = 2
	exitWrong  = 3
)

// errWrong: the command worked, and what it found is not as it should be. The
// answer is on standard output already.
var errWrong = errors.New("found something wrong")

// usageError is a call that cannot be understood.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

func usage(format string, args ...any) error {
	return &usageError{msg: fmt.Sprintf(format, args...)}
}

// run is the whole program: args as in os.Args, the exit code back. It touches
// no global state, so that tests may call it side by side.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	app := newApp(stdout, stderr)
	app.Reader = stdin
	err := app.RunContext(ctx, shell.FlagsFirst(app.Commands, args))
	if err == nil {
		return exitFine
	}
	said := shell.Unprefixed(app.Name, terminal.Lines(secret.Scrub(err.Error(), args[1:])))
	var wrongCall *usageError
	var unclear *operator.UnclearError
	switch {
	case errors.Is(err, errWrong):
		return exitWrong
	case errors.As(err, &wrongCall), errors.As(err, &unclear):
		fmt.Fprintf(stderr, "outboxctl: %s\nRun `%s` to see what there is.\n", said, helpFor(app, args)) //nolint:errcheck // nobody is left to tell
		return exitUsage
	case ctx.Err() != nil:
		if errors.Is(err, letters.ErrOrderGiven) {
			said = "the order is given, and will be carried out"
		}
		fmt.Fprintf(stderr, "outboxctl: interrupted: %s\n", said) //nolint:errcheck // nobody is left to tell
		return exitFailed
	}
	fmt.Fprintf(stderr, "outboxctl: %s\n", said) //nolint:errcheck // nobody is left to tell
	return exitFailed
}

// helpFor is what shows the flags of the command that was called, or the commands.
func helpFor(app *cli.App, args []string) string {
	leaf, depth := shell.Find(app.Commands, args[min(1, len(args)):])
	if leaf == nil {
		return "outboxctl help"
	}
	return "outboxctl " + strings.Join(args[1:1+depth], " ") + " --help"
}

func newApp(stdout, stderr io.Writer) *cli.App {
	app := &cli.App{
		Name:            "outboxctl",
		Usage:           "install Onceward's tables, look at the events in them, and decide what becomes of them",
		Writer:          stdout,
		ErrWriter:       stderr,
		Version:         versions(),
		HideHelpCommand: false,
		ExitErrHandler:  func(*cli.Context, error) {}, // the exit code is run's answer
		Action:          unknownCommand,
		OnUsageError:    badFlag,
		Commands: []*cli.Command{
			migrateCommand(), statusCommand(), doctorCommand(), listCommand(), showCommand(), replayCommand(),
			deadCommand(), gapCommand(), adoptCommand(), retireCommand(),
			pauseCommand(), resumeCommand(), skipCommand(), processedCommand(), fencesCommand(), windowsCommand(),
			partitionsCommand(), topicsCommand(), auditCommand(), configCommand(), completionCommand(),
			manCommand(),
		},
	}
	refuseBadFlags(app.Commands)
	return app
}

func manCommand() *cli.Command {
	c := manual.Command([2]string{"EXIT STATUS", "0: fine. 1: it failed. 2: it was called wrongly. 3: it worked and found something wrong."},
		[2]string{"ENVIRONMENT", dsnVariable + " is the connection string where no flag gives one; " + insecureVariable + "=true is --insecure; " +
			"COLUMNS, LINES, NO_COLOR and TERM say what the terminal is like. What begins with ONCEWARD_ is the relay's."})
	shown := c.Action
	c.Action = func(c *cli.Context) error {
		if err := noArgument(c, ""); err != nil {
			return err
		}
		return shown(c)
	}
	return c
}

// versions is of the program, and of the tables that it installs.
func versions() string {
	all := []string{buildinfo.Describe(version)}
	for _, side := range []migrations.Side{migrations.Outbox, migrations.Consumer} {
		if latest, err := side.Latest(); err == nil {
			all = append(all, fmt.Sprintf("schema of side %s %d", side, latest))
		}
	}
	return strings.Join(all, ", ")
}

// refuseBadFlags gives every command the same answer to a flag that it does
// not have.
func refuseBadFlags(commands []*cli.Command) {
	for _, c := range commands {
		c.OnUsageError = badFlag
		if len(c.Subcommands) > 0 {
			c.Action = unknownCommand
			refuseBadFlags(c.Subcommands)
		} else {
			c.HideHelpCommand = true // a positional argument may be "help"
		}
	}
}

// unknownCommand runs where a command was expected and none was found.
func unknownCommand(c *cli.Context) error {
	commands := c.Command.Subcommands
	if len(commands) == 0 {
		commands = c.App.Commands
	}
	given := c.Args().First()
	if given == "" {
		return usage("%s: a command is missing; want one of %s", c.Command.HelpName, strings.Join(shell.Names(commands), ", "))
	}
	return usage("unknown command %s; did you mean %q?", secret.Argument(given), terminal.Nearest(given, shell.Names(commands)))
}

// badFlag turns the flag package's words into ours.
func badFlag(c *cli.Context, err error, _ bool) error {
	return usage("%s: %s", c.Command.HelpName, shell.FlagError(c.Command.Flags, err))
}
