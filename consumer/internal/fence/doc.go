// Package fence is what an effect outside the database needs beside its event: one name
// in its delivery ([Names]), a key for its provider ([ProviderKey]), and a [Lease] on its fence while it is under way.
//
// The invariant: an attempt that was overtaken completes nothing, because a takeover
// raises the epoch in the row that its completion has to find. A lease is ours for as
// long as the row says so or, when nobody can be asked, until it has run out by our own
// clock, counted from before the statement that began or renewed it.
//
// A lease starts one goroutine, the heartbeat, and waits for its end in the function
// that Keep returns. The pool and the transactions are the caller's.
package fence
