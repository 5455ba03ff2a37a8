package main

import (
	"context"
	"log/slog"
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

// ignoreHangup says of each SIGHUP that it does nothing, where the default would
// end the process without a flush: whoever sends one wants a reload, and there is
// nothing to reload. stop gives the signal back.
func ignoreHangup(log *slog.Logger) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range hangups {
			log.Info("SIGHUP ignored: secrets are read again at every connect, and another relay.yaml needs a restart")
		}
	}()
	return func() {
		signal.Stop(hangups)
		close(hangups)
		<-done
	}
}
