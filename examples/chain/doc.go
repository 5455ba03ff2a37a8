// Package chain is the second of two services: it consumes the event of the first,
// and says its own in the same transaction. Claim, row and next event commit
// together, or none of them does.
package chain
