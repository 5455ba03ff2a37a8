// Command relay publishes the transactional outbox of one PostgreSQL database
// to Kafka. See package relay for what it guarantees.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/buildinfo"
	"github.com/onceward/onceward/internal/pgconf"
	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/internal/terminal/manual"
	"github.com/onceward/onceward/internal/terminal/shell"
)

// version is set by the build.
var version = "dev"

func main() {
	signal.Ignore(syscall.SIGPIPE) // the end of whoever reads the log is not ours
	os.Exit(run(os.Args, os.Environ(), os.Stdout, os.Stderr))
}

// run is main without the process: it returns the exit code. 0: done, 1:
// failed, 2: wrong usage, 3: a check found something wrong. A second signal ends
// the process without it, see untilSignal.
func run(args, environ []string, stdout, stderr io.Writer) int {
	ctx, stop := untilSignal(context.Background(), os.Exit)
	defer stop()
	log := newLogWriter(stderr)
	defer log.close()
	usage := false
	app := &cli.App{
		Name:    "relay",
		Usage:   "publish a PostgreSQL outbox to Kafka",
		Version: fmt.Sprintf("%s, needs schema of side outbox %d", buildinfo.Describe(version), pgconf.OutboxSchema),
		Writer:  stdout, ErrWriter: log,
		Suggest:        true,
		HideHelp:       false,
		Commands:       []*cli.Command{runCommand(environ, log), checkCommand(environ, stdout), manCommand()},
		ExitErrHandler: func(*cli.Context, error) {}, // run decides
		OnUsageError: func(c *cli.Context, err error, _ bool) error {
			usage = true
			return fmt.Errorf("%s: %s", c.Command.HelpName, shell.FlagError(c.Command.Flags, err))
		},
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				usage = true
				return fmt.Errorf("no command %s; see `relay help`", secret.Argument(c.Args().First()))
			}
			return cli.ShowAppHelp(c)
		},
	}
	for _, c := range app.Commands {
		c.OnUsageError = app.OnUsageError
		c.Before = func(c *cli.Context) error {
			if c.NArg() == 0 {
				return nil
			}
			usage = true
			return fmt.Errorf("%s takes no argument, got %s", c.Command.HelpName, secret.Argument(c.Args().First()))
		}
	}
	err := app.RunContext(ctx, args)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintln(log, "relay:", shell.Unprefixed(app.Name, terminal.Lines(secret.Scrub(err.Error(), args[1:])))) // there is nowhere else to say it
	switch {
	case usage:
		return 2
	case errors.Is(err, errChecksFailed):
		return 3
	}
	return 1
}

func manCommand() *cli.Command {
	return manual.Command([2]string{"EXIT STATUS", "0: done. 1: it failed. 2: it was called wrongly. 3: a check found something wrong. " +
		"130 and 143: ended at once, by a second signal."},
		[2]string{"ENVIRONMENT", "Every key of relay.yaml with one value, as ONCEWARD_ and its name with _ for each dot; GOMEMLIMIT."})
}
