// Package cdc reads committed rows of the outbox, of the operator's replays and
// of the operator's controls from PostgreSQL's log, in commit order, and confirms
// to the replication slot what has ended.
//
// # Guarantee
//
// Every row of a committed transaction is delivered at least once, after its
// commit and in commit order; rows of rolled-back transactions and savepoints
// are not. The three tables share that one order, so that a word of the operator
// stands among the events exactly where it was committed. The slot is confirmed only up to positions that the
// caller gave to [Reader.Confirm], so nothing is forgotten by the server before it has ended.
//
// # How
//
// pgoutput, protocol version 1, binary, on servers 15 to 18. Version 1 sends a
// transaction only after its commit, row by row, so the reader holds no
// transaction in memory whatever its size.
//
// One goroutine, the one in [Reader.Run], owns the connection. It never waits
// for the sink: when the queue is full it stops reading and goes on sending
// status updates with an unchanged position, so that the server keeps the
// session while Kafka is away.
//
// # Positions
//
// The unit is the commit end LSN. Positions of rows run backwards across
// transactions and several rows share one, so no decision is based on them; see
// Progress in internal/ledger, which holds the invariant.
//
// # Failures
//
// [Check], [EnsureSlot] and [Open] name what is wrong on the server and the command that
// mends it ([StartError]); a slot that another process holds is
// [ErrSlotActive]. Run ends with the error of the connection or of the decoder;
// the caller opens a new reader, and skips what has ended by the position it
// gives to [Reader.Resume].
//
// What is wrong with one row ends nothing, because it would for ever: the row is
// delivered in its place and says so. [Item].Bad: the row breaks the contract by
// itself, whoever reads it. [Item].Incomplete: its table had another layout when
// it was written, which the row in the table may have outlived. Only what is
// wrong with the stream, or with the columns by which rows are told apart, is a
// [DecodeError].
//
// # Stability
//
// For embedders and operators' programs: names may change in a minor version, with a line
// in the changelog (docs/adr/0027-public-packages.md).
package cdc
