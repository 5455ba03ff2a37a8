package stream

import (
	"sync/atomic"

	"github.com/onceward/onceward/relay/internal/state"
)

// commands are the operator's, as the checkpoint's goroutine read them last.
type commands struct {
	last    atomic.Pointer[state.Commands]
	changed chan struct{}
}

func newCommands() *commands {
	c := &commands{changed: make(chan struct{}, 1)}
	c.last.Store(&state.Commands{})
	return c
}

// SetCommands takes the operator's, as they are now. Safe for concurrent use.
func (c *commands) SetCommands(now state.Commands) {
	c.last.Store(&now)
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Commands returns the operator's, as they are now.
func (c *commands) Commands() *state.Commands { return c.last.Load() }
