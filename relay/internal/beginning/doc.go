// Package beginning finds where a session begins, by what PostgreSQL says, and whether
// it may: at the checkpoint of relay_state or Kafka if that fits the server, else anew,
// with a gap that is written down.
//
// # Guarantee
//
// No event passes a relay by in silence. What the stream will not bring is in a gap,
// from the last published snapshot to one taken behind every transaction that was open
// ([Beginner.Prepare]); a gap is repaired by the session that wrote it down, or stops
// the relay until an operator decides. Before the slot is held nothing is changed but
// the slot, and the note that a publication cannot be trusted. What is written then is
// one transaction of the slot's owner, and void if another had the slot meanwhile.
//
// beginner.go has the order of things before the slot is held, barrier.go the wait for
// transactions that are open; binding.go compares the checkpoint with the server;
// gap.go writes a beginning down; filled.go looks for rows that were never sent; and
// decision.go says what a session would do, without doing it.
package beginning
