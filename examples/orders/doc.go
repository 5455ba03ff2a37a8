// Package orders is a small shop, as a reader would write it: a producing
// service that places orders and says so in the same transaction, and a
// consuming service that ships each order once.
//
// It is the example of README.md and the load of `make demo` (package
// orders/demo, which brings the servers).
package orders
