// Package state is the relay's row of onceward.relay_state, and its slot, over one
// connection of one goroutine.
//
// # Guarantee
//
// A session owns the slot from [State.Take] until another one has raised the epoch.
// Every write of an owner names its epoch, or holds the row while it lasts
// ([State.Write]), so that a process that wakes after another took over changes
// nothing: its error is [ErrFenced]. Whatever returns without an error is durable.
//
// state.go has the row, slot.go the slot, write.go the transactions of letters and
// of what waits, with the counter that tells a database which lacks one, and
// commands.go what an operator wants of the relay.
package state
