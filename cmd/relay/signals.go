package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// untilSignal returns a context that the first SIGINT or SIGTERM ends. The second
// ends the process at once, with the exit code that a shell shows for one that
// died of it: 130 or 143. The channel counts them, so that a second one is never
// taken for the first, however fast it comes. stop gives the signals back; exit
// is os.Exit.
func untilSignal(parent context.Context, exit func(code int)) (ctx context.Context, stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(parent)
	over := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-signals:
			cancel()
		case <-over:
			return
		}
		select {
		case second := <-signals:
			number, _ := second.(syscall.Signal)
			exit(128 + int(number))
		case <-over:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(over)
		<-done
		cancel()
	}
}
