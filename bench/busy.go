package main

import (
	"context"
	"runtime"
	"time"

	"github.com/onceward/onceward/bench/internal/procfs"
	"github.com/onceward/onceward/bench/internal/report"
)

// A machine is busy when others use more than this share of a core while nothing of ours runs.
const busyFrom = 0.2

// lookFor is how long others are watched.
const lookFor = 2 * time.Second

// look finds out whether the machine has other work, unless it was told.
func look(ctx context.Context, p plan, results *report.Results) error {
	m := &results.Machine
	if p.busy != "auto" {
		m.Busy = p.busy == "yes"
		return nil
	}
	before, err := procfs.CPU(procfs.Machine)
	if err == nil {
		began := time.Now()
		select {
		case <-time.After(lookFor):
		case <-ctx.Done():
			return ctx.Err()
		}
		after, err := procfs.CPU(procfs.Machine)
		if err != nil {
			return err
		}
		m.Used = float64(after-before) / float64(time.Since(began))
	} else if runtime.GOOS == "linux" {
		return err
	}
	m.Busy = m.Used > busyFrom
	if m.Busy {
		say("the machine has %.1f cores of other work: compare costs and batches, not rates", m.Used)
	}
	return nil
}
