// Package process runs server programs as children for tests, the demo and
// the local stack.
//
// # Guarantee
//
// What [Start] started is waited for: [Process.Done] closes after the child
// was reaped, whoever ended it. On Linux a child with a DeathSignal gets that
// signal from the kernel when this program dies in any way, kill -9 included,
// so no server is left over. Other systems have no such call; there a child
// outlives a parent that was killed.
//
// # States
//
// A process is running until Done is closed, and then ended for good; a server
// that is started again is a new Process.
//
// # Ownership
//
// One goroutine per process, locked to its OS thread for the child's whole
// life, starts the child and waits for it. The lock is what makes the death
// signal right: Linux sends it when the thread that forked ends, not when the
// program does. The child leads a process group (or, detached, a session) of
// its own, so an interrupt typed at a terminal reaches it through this program
// only.
//
// # Failures
//
// A child that ends early is reported by Done; [Tail] reads the end of its log
// for the error message. Windows compiles and starts children, but has neither
// credentials nor signals other than kill.
package process
