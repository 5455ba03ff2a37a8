// Package check looks at every precondition of a relay on both ends and says of
// each whether it is met and what mends it. It is the engine of `relay check`
// and of `outboxctl doctor`, and prints for both ([Printer]).
//
// It changes nothing: no slot is made, no topic is created. It holds one
// connection to each end while it runs, and starts no goroutine that outlives
// [Run].
package check
