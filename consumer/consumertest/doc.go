// Package consumertest finds out, in the tests of a service, whether its handlers make
// the effect of each event once.
//
// Package consumer keeps its promises for what a handler does with its transaction, or
// behind a fence. Whether a handler does keep to that, no compiler says: [Exercise]
// delivers its events as bad days do, on a real PostgreSQL, and compares what is there
// afterwards with what one delivery leaves.
//
//	func TestHandlersApplyOnce(t *testing.T) {
//		consumertest.Exercise(t, consumertest.Service{
//			DSN:     os.Getenv("TEST_DSN"),
//			Prepare: createTables,
//			Start:   start, // makes the Processor and the Router, as main does
//			Event:   func(n int) outbox.Event { … },
//			Effects: consumertest.Rows("SELECT order_id FROM shipments"),
//		})
//	}
//
// # What is tried
//
// Each [Promise] in turn; they share a database for as long as all are kept. Connections
// of the service are cut before each statement of a delivery, and behind it with its
// answer lost, so that every point is met: before the claim, behind it, behind the
// handler, before the commit, a commit of unknown outcome, and after it. Statements are
// counted, not named, so that it holds for handlers of Router.Tx, Batch, BatchSet and
// Func alike. Two events at the same moment meet at each COMMIT: one is held before it
// until the other has ended, or waits for a lock.
//
// # What is not
//
// Nothing is cut between two calls of a provider without a statement in between, and a
// fake of a provider fails only as its test lets it. A statement fails by a lost connection,
// and not by a deadlock or a constraint. A race that needs another moment than a COMMIT may
// pass unseen. What passes is a test that has not failed, and no proof.
//
// # Ownership and failures
//
// Databases are made on the server of the DSN, named consumertest_…, and dropped at the
// end, also when something fails. Nothing waits for a length of time but for what does
// not come back. The service's functions are called by one goroutine, its handlers by
// several. A promise that is broken is a [BrokenError]; anything else that fails, such as
// a server that cannot be reached, says nothing of the handlers and is another error.
package consumertest
