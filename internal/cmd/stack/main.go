// Command stack starts a PostgreSQL and a Kafka to try Onceward on, or to
// develop against, and leaves them running: `make stack` and `make stack-down`.
//
// `stack up` starts both on free loopback ports, fetching them where they are
// missing, installs the tables of both sides with outboxctl, and writes into the
// folder .stack what is needed from there: relay.yaml, with which a relay
// publishes, a file with the DSN of each database, brokers, and state.json, by which
// `stack down` finds the servers again. At last it sends a sample event its whole
// way, with a relay that it stops again. It says each step as it begins. When a
// step fails, what was started is stopped.
//
// `stack down` stops the servers by their process ids, after a look at their
// command lines (a process id may belong to somebody else by now), and removes
// .stack and the data. It is also the way out after a crash of the machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
)

// downTimeout is what the servers get to shut down before they are killed.
const downTimeout = 30 * time.Second

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	cancel()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "stack:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("stack up|down", flag.ContinueOnError)
	dir := flags.String("dir", ".stack", "folder for what the stack writes")
	programs := flags.String("bin", "bin", "folder of relay and outboxctl")
	version := flags.String("postgres", "", "major version of PostgreSQL; empty is the system's, or the newest")
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch command {
	case "up":
		return up(ctx, *dir, *programs, *version, out)
	case "down":
		ctx, cancel := context.WithTimeout(ctx, downTimeout)
		defer cancel()
		return down(ctx, *dir, out)
	default:
		return fmt.Errorf("command is %q; want up or down", command)
	}
}
