// Command outboxctl installs Onceward's tables and answers questions about the
// events in them.
//
// # Exit codes
//
//	0  fine
//	1  it failed: a server did not answer, a statement was refused
//	2  it was called wrongly
//	3  it worked and found something wrong: an unknown key, a lost slot
//
// # Output
//
// Answers go to standard output, as a table for people or, with --output json,
// as one JSON document; everything else goes to standard error. Connection
// strings and passwords are never printed.
//
// Every command reads, except migrate up and migrate down; those take a lock of
// the database, so that two runs do not mix. A command that is interrupted has
// either done a step or not begun it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
