// Package memory is what a process remembers between deliveries, beside what it has read
// of the floors: counts and times that a database need not know, or will be told later.
// A restart forgets all of it, and costs a look at the database, or a few more attempts.
//
// It asks nobody and keeps no connection. The zero value of each type remembers nothing
// and is ready; all are safe for concurrent use.
//
//	breaks.go   how often the transaction of an event broke
//	brake.go    how many events came from the future, and whose clock is wrong
//	ages.go     how late duplicates came
//	marks.go    how far marks have got, and times of events that were read or finished
//	tries.go    under which id they are counted
package memory
