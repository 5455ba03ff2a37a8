// Package gaps is what a relay cannot prove that it published: stretches of the outbox
// that may have passed it by. They are listed, one is read with its first events, and it
// is decided: repaired, which the relay does, or accepted.
//
// A decision names the state that was seen; the database refuses it where the gap is in
// another one by then. A repair that has begun is not taken back.
package gaps
