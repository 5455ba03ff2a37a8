package operator

import "context"

// Order is what an operator decided, after it was planned and before it is carried out:
// nothing is changed yet. R is the report of what became of it.
type Order[R any] interface {
	// Question says what the order means, for who is to confirm it: an imperative.
	Question() string
	// CarryOut does it, unless what was planned is not so any more. The reason is kept.
	CarryOut(ctx context.Context, db *Database, reason string) (R, error)
}
