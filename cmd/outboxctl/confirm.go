package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/internal/terminal/device"
)

// errDeclined: a person was asked and did not say yes.
var errDeclined = errors.New("not confirmed; nothing was done (--yes does it without asking)")

func yesFlag() cli.Flag {
	return &cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"}
}

// confirm shows what would be done and asks whether to do it. Without --yes it
// refuses where nobody can answer.
func confirm(c *cli.Context, what string) error {
	if c.Bool("yes") {
		return nil
	}
	if !device.IsTerminal(c.App.Reader) {
		return usage("%s: this would %s; standard input is no terminal to ask at: add --yes to do it", c.Command.HelpName, what)
	}
	if _, err := fmt.Fprintf(c.App.ErrWriter, "%s? [y/N] ", terminal.Escape(strings.ToUpper(what[:1])+what[1:])); err != nil {
		return fmt.Errorf("ask for confirmation: %w", err)
	}
	answer, err := readLine(c.Context, c)
	if err != nil {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errDeclined
}

// readLine waits for a line or for the context's end. A read of a terminal
// cannot be called off: its goroutine ends with the process, which is what the
// context's end leads to.
func readLine(ctx context.Context, c *cli.Context) (string, error) {
	line := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(c.App.Reader).ReadString('\n') // what came before the end is the answer
		line <- text
	}()
	select {
	case text := <-line:
		return text, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
