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

// running lists the servers that run.
func (s *state) running() []server {
	var up []server
	for _, server := range s.Servers {
		if process.Runs(server.PID, server.Marker) {
			up = append(up, server)
		}
	}
	return up
}

// stop ends the server and removes its data.
func (s server) stop(ctx context.Context) error {
	if err := process.StopForeign(ctx, s.PID, s.Marker, syscall.Signal(s.Signal)); err != nil {
		return fmt.Errorf("stop %s: %w", s.Name, err)
	}
	if err := os.RemoveAll(s.Dir); err != nil {
		return fmt.Errorf("remove the data of %s: %w", s.Name, err)
	}
	return nil
}
