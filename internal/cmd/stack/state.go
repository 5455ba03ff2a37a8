package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/onceward/onceward/internal/process"
)

// server is a process of the stack as state.json remembers it.
type server struct {
	Name   string `json:"name"`
	PID    int    `json:"pid"`
	Marker string `json:"marker"` // is in its command line, and in no other's
	Dir    string `json:"dir"`    // data and log; removed after the server
	Signal int    `json:"signal"` // asks for an orderly end
}

// state is what is running.
type state struct {
	Servers []server `json:"servers"`
}

func stateFile(dir string) string { return filepath.Join(dir, "state.json") }

// load returns the state of the stack in dir, empty when there is none.
func load(dir string) (state, error) {
	text, err := os.ReadFile(stateFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return state{}, nil
	}
	if err != nil {
		return state{}, fmt.Errorf("read the stack's state: %w", err)
	}
	var s state
	if err := json.Unmarshal(text, &s); err != nil {
		return state{}, fmt.Errorf("read the stack's state from %s: %w", stateFile(dir), err)
	}
	return s, nil
}

// add remembers one more server at once, so that `down` finds it whatever
// happens next.
func (s *state) add(dir string, started server) error {
	s.Servers = append(s.Servers, started)
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write the stack's state: %w", err)
	}
	if err := os.WriteFile(stateFile(dir), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the stack's state: %w", err)
	}
	return nil
}

// running lists the servers that run, and those that do not.
func (s *state) running() (up, gone []server) {
	for _, server := range s.Servers {
		if process.Runs(server.PID, server.Marker) {
			up = append(up, server)
		} else {
			gone = append(gone, server)
		}
	}
	return up, gone
}

// vacant returns why no stack can be brought up in the folder; nil: it can.
func (s *state) vacant(dir string) error {
	up, gone := s.running()
	switch {
	case len(s.Servers) == 0:
		return nil
	case len(up) == 0:
		return fmt.Errorf("%s is left from a stack that is gone; `make stack-down` tidies up, and removes its data", dir)
	case len(gone) > 0:
		return fmt.Errorf("%s is running already (process %d), but %s of this stack is gone: why is in %s; `make stack-down` removes what is left, with the data, and `make stack` begins anew",
			up[0].Name, up[0].PID, gone[0].Name, gone[0].Dir)
	}
	return fmt.Errorf("%s is running already (process %d), and all else of the stack: its files are in %s; `make stack-down` stops it and removes its data", up[0].Name, up[0].PID, dir)
}

// stop ends the server and removes its data, unless another process uses them, as a
// server that somebody has started again by hand.
func (s server) stop(ctx context.Context) error {
	if err := process.StopForeign(ctx, s.PID, s.Marker, syscall.Signal(s.Signal)); err != nil {
		return fmt.Errorf("stop %s: %w", s.Name, err)
	}
	if pid := process.Find(s.Marker); pid != 0 {
		return fmt.Errorf("process %d uses the data of %s, and is not the server that this stack started: end it, then `make stack-down` again", pid, s.Name)
	}
	if err := os.RemoveAll(s.Dir); err != nil {
		return fmt.Errorf("remove the data of %s: %w", s.Name, err)
	}
	return nil
}
