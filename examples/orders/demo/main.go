// Command demo shows the main job in half a minute, on servers of its own: an
// embedded PostgreSQL and an in-process Kafka. Orders flow from the shop's
// transactions through the relay to the shipments of a consumer; the relay is
// killed hard in the middle and started again; one event is delivered five
// times more. At the end table, topic and effects are compared.
//
// DEMO_SECONDS bounds it (default 30, works from 10). The exit code is 0 only if
// enqueued = published = effects >= 1000, at least 4 duplicates were removed and
// the relay was restarted.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"time"
)

const (
	defaultSeconds = 30
	minSeconds     = 10
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo failed:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	length, err := demoLength(os.Getenv("DEMO_SECONDS"))
	if err != nil {
		return err
	}
	s, err := startStage(ctx)
	if err != nil {
		return err
	}
	sum, err := play(ctx, s, length)
	if stopErr := s.stop(ctx); err == nil {
		err = stopErr
	}
	if err != nil {
		return err
	}
	fmt.Println(sum)
	return sum.judge()
}

func demoLength(text string) (time.Duration, error) {
	if text == "" {
		return defaultSeconds * time.Second, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < minSeconds {
		return 0, fmt.Errorf("DEMO_SECONDS=%q: want a whole number from %d", text, minSeconds)
	}
	return time.Duration(n) * time.Second, nil
}
