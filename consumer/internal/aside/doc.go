// Package aside calls functions in other goroutines, as the go statement does, but in ones
// that have just been used where there are some: a goroutine begins with a small stack, and what calls a
// handler and the driver below it has that copied several times, which costs an event a
// tenth of its CPU time.
//
// [Watch.Run] watches what it calls so, and does not wait for what does not return.
//
// Both may be called concurrently. A goroutine that has nothing to do ends after a tenth of
// a second, so that there is nothing to close. A function may end its goroutine
// (runtime.Goexit); a panic ends the process, as ever.
package aside
