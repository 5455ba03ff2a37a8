// Command outboxctl installs Onceward's tables, answers questions about the
// events in them, and says what becomes of those that need a decision.
//
// # Exit codes
//
//	0  fine
//	1  it failed: a server did not answer, a statement was refused
//	2  it was called wrongly
//	3  it worked and found something wrong: an unknown key, a lost slot, a dead
//	   letter that was refused again
//
// # Output
//
// Answers go to standard output, as a table for people or, with --output json,
// as one JSON document; everything else goes to standard error. At a terminal a
// table is as wide as that, with --output wide as wide as needed. Connection
// strings and passwords are never printed.
//
// # Files
//
// A command has a file: its flags, what is checked of them without a server, and how
// its answer looks to a person. That is why there are so many. What a command asks or
// orders is internal/operator's; ask.go and confirm.go join the two.
//
// # Safety
//
// Most commands only read. migrate and partitions maintain change tables, under
// a lock of the database, so that two runs do not mix. replay, dead, pause,
// resume and skip write orders, which the relay carries out; what is for good
// asks first, and a script says --yes. A command that is interrupted has
// either done a step or not begun it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the build.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
