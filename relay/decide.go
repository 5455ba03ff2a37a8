package relay

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/relay/internal/beginning"
	"github.com/onceward/onceward/relay/internal/state"
)

// Decision is one answer that a relay would give at its start.
type Decision struct {
	Name string // what is decided, in words
	Err  error  // why it does not start; nil: it goes on
	// Code of a gap that it writes down and repairs; empty: none.
	Code string
	// Detail says what it finds, or what is left to the start itself.
	Detail string
	// Advice says what somebody should do though it starts; empty: nothing.
	Advice string
	// Skipped: it was not looked at, because one before it keeps the relay from starting.
	Skipped bool
}

// Decide says what [Relay.Run] would decide about the database before it streams:
// by the same code, and without a change. The preconditions of package cdc come
// before it.
func Decide(ctx context.Context, cfg *Config, conn *pgx.Conn) []Decision {
	owner := state.New(conn, cfg.SlotName())
	row, existed, err := owner.Load(ctx)
	if err != nil {
		return []Decision{{Name: "first start", Err: err}}
	}
	b := beginning.New(cfg.beginner(), nil, owner, beginning.Told{})
	var all []Decision
	for _, d := range b.Decide(ctx, row, existed, beginning.Decision(decideSettings(cfg, row))) {
		all = append(all, Decision(d))
	}
	return all
}
