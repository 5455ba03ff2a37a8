package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// down stops what runs and removes the folder. Where no server runs it only
// tidies up, and a folder without a stack's state is left alone unless it is
// empty.
func down(ctx context.Context, dir string, out io.Writer) error {
	stack, err := load(dir)
	if err != nil {
		return err
	}
	if len(stack.Servers) == 0 {
		_ = os.Remove(dir) // fails when it is not there, or not empty: both are as they should be
		_, err := fmt.Fprintf(out, "no stack in %s\n", dir)
		return err
	}
	var errs []error
	for _, server := range stack.Servers {
		errs = append(errs, server.stop(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return err // .stack stays, for the next try
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the stack's folder: %w", err)
	}
	_, err = fmt.Fprintf(out, "the stack is down: %s and the data are removed\n", dir)
	return err
}
