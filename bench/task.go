package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/onceward/onceward/internal/process"
)

// taskVariable makes this program one of the processes that are measured. It holds a task as
// JSON, because command lines can be read by everybody.
const taskVariable = "ONCEWARD_BENCH_TASK"

// task is what such a process does.
type task struct {
	Kind    string   `json:"kind"`
	DSN     string   `json:"dsn,omitempty"`
	Slot    string   `json:"slot,omitempty"`
	Events  int      `json:"events,omitempty"` // to read, then end
	Brokers []string `json:"brokers,omitempty"`
	Topic   string   `json:"topic,omitempty"`
}

// The kinds of tasks, beside those of the sides ceiling, reader and polling.
const hogTask = "hog"

// span is when a task had its first event and its last.
type span struct {
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// startTask starts this program again with a task.
func startTask(t task, logFile string) (*process.Process, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("write a task: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return process.Start(process.Spec{Path: self, Env: []string{taskVariable + "=" + string(text)}, LogFile: logFile, DeathSignal: syscall.SIGKILL})
}

// runTask is the whole life of such a process. What it finds out is its last line.
func runTask(ctx context.Context, text string) error {
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return fmt.Errorf("read the task: %w", err)
	}
	switch t.Kind {
	case "ceiling", "reader":
		read := readSlot
		if t.Kind == "reader" {
			read = readItems
		}
		found, err := read(ctx, t)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(found)
	case "polling":
		return poller{task: t}.run(ctx)
	case hogTask:
		for n := 0; ctx.Err() == nil; n++ {
		}
		return nil
	}
	return fmt.Errorf("there is no task %q", t.Kind)
}

// lastLine reads what a task found out.
func lastLine(logFile string, into any) error {
	text, err := os.ReadFile(logFile) //nolint:gosec // G304: a log of ours
	if err != nil {
		return fmt.Errorf("read what a task found out: %w", err)
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	if err := json.Unmarshal(lines[len(lines)-1], into); err != nil {
		return fmt.Errorf("read what a task found out: %w%s", err, process.Tail(logFile))
	}
	return nil
}
