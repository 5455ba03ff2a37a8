package consumer

import (
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/consumer/internal/memory"
	"github.com/onceward/onceward/consumer/internal/sqlstate"
	"github.com/onceward/onceward/consumer/internal/transaction"
	"github.com/onceward/onceward/internal/pooler"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// Errors that callers branch on. See also [IsInfrastructure] and [Permanent].
var (
	// ErrNoPartition: no partition of onceward.processed_events covers the
	// key's event time, so nobody can tell whether the event is new.
	ErrNoPartition = errors.New("no partition of processed_events covers the event time")
	// ErrDefaultPartition: processed_events has a DEFAULT partition, which takes every
	// replay whose day is gone for new. Its rows cannot be judged.
	ErrDefaultPartition = errors.New("processed_events has a DEFAULT partition: every replay whose day is gone is taken for new")
	// ErrNoHandler: the event's type has neither a handler nor an Ignore.
	ErrNoHandler = errors.New("no handler for the event type")
	// ErrNoClass: no class of Config.Classes matches the event's type.
	ErrNoClass = errors.New("no class for the event type")
	// ErrRegistration: a handler was registered wrongly; every delivery fails.
	ErrRegistration = errors.New("wrong registration of a handler")
	// ErrCommitUnknown: the connection was lost while the commit was under way.
	// Deliver the event again: it is a Duplicate when the commit was done.
	ErrCommitUnknown = errors.New("outcome of the commit is unknown")
	// ErrInstallation: a table, a column or a right of the consumer's side is
	// missing, so that nothing can be claimed or kept.
	ErrInstallation = errors.New("the consumer's side of the database is not as this program needs it; run `outboxctl migrate up --side consumer` and `outboxctl migrate roles --side consumer --apply`")
	// ErrClock: clocks differ so much that events seem to come from the future. They wait, and none becomes a
	// dead letter, until the clock is right or their time has come; the error says whose clock it is.
	ErrClock = memory.ErrClock
	// ErrPooler: the way to the database leads through a pooler that this use does not go well with.
	ErrPooler = pooler.Err
	// ErrAttended: another member of the group runs with this Processor.
	ErrAttended = errors.New("another member of the group runs with this Processor; make a Processor and a Router for each")
)

// What a handler may not do; a [*HandlerError] wraps one of them.
var (
	// ErrHandlerTx: the handler called Commit or Rollback of its transaction.
	ErrHandlerTx = transaction.ErrEnded
	// ErrSwallowed: the handler returned nil although an SQL error had aborted
	// its transaction, so that a COMMIT would be a ROLLBACK.
	ErrSwallowed = errors.New("the handler swallowed an SQL error; return it, or use tx.Begin for a statement that may fail")
	// ErrTxEnded: the handler ended its transaction by an SQL statement. What
	// it had done until then may be committed.
	ErrTxEnded = errors.New("the handler ended the transaction by an SQL statement")
	// ErrOpenQuery: the handler returned while rows of a query were still open.
	ErrOpenQuery = errors.New("the handler left a query open; close its rows")
	// ErrHandlerTimeout: the handler took longer than Config.HandlerTimeout.
	ErrHandlerTimeout = errors.New("the handler took longer than Config.HandlerTimeout")
)

// HandlerError is the failure of a handler. Everything it did was rolled back, the claim too.
type HandlerError struct {
	Err error
	// Attempts are the failures of the event's handler so far, this one included, as the database counts them for all
	// members: what [Retry].MaxAttempts bounds. 0: it was not counted.
	Attempts int32
}

// Error implements error.
func (e *HandlerError) Error() string { return "handler: " + e.Err.Error() }

// Unwrap returns what the handler returned.
func (e *HandlerError) Unwrap() error { return e.Err }

// PanicError is what a handler's panic becomes, inside a [*HandlerError].
type PanicError struct {
	Value any    // what was given to panic
	Stack []byte // of the panicking goroutine
}

// Error implements error; it names the value and shows the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// Unwrap returns the value when it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// MismatchError: an event carries a key that was claimed before by an event
// with other content. Two events were given one key, or one was altered.
type MismatchError struct {
	Key       outbox.Key
	Stored    record.Fingerprint // of the event that was applied
	Given     record.Fingerprint // of this one
	AppliedAt time.Time          // when the stored one was applied
}

// Error implements error.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("key %s was applied at %s with fingerprint %s, this event has %s: same key, other content",
		e.Key, e.AppliedAt.UTC().Format(time.RFC3339), e.Stored, e.Given)
}

// infrastructureError marks an error that says nothing about the event.
type infrastructureError struct {
	err error
}

func (e *infrastructureError) Error() string { return e.err.Error() }
func (e *infrastructureError) Unwrap() error { return e.err }

// IsInfrastructure reports whether a delivery failed for a reason outside the event and its handler: the
// connection, a deadlock or serialization failure, a server that is shutting down, starting or read-only
// after a failover, an ended context. Deliver again, and do not count it as an attempt.
//
// Whose transaction broke decides, then when, then the code: what a handler returns counts as its own
// failure unless the delivery's transaction is broken for such a reason. An error of its other database,
// or of an HTTP call, is the handler's.
func IsInfrastructure(err error) bool {
	if marked, infrastructure := mark(err); marked {
		return infrastructure
	}
	code, ok := sqlstate.Of(err)
	return ok && sqlstate.Infrastructure(code)
}

// mark reports whether an error was judged, and how, by the first mark in its tree from outside in.
func mark(err error) (marked, infrastructure bool) {
	for err != nil {
		switch e := err.(type) { //nolint:errorlint // the tree is walked here
		case *infrastructureError:
			return true, true
		case *HandlerError:
			return true, false
		case interface{ Unwrap() []error }:
			for _, inner := range e.Unwrap() {
				if marked, infrastructure = mark(inner); marked {
					return marked, infrastructure
				}
			}
			return false, false
		}
		err = errors.Unwrap(err)
	}
	return false, false
}

// Permanent reports whether no further delivery can succeed before the program or the database's
// installation is changed: [ErrNoHandler], [ErrNoClass], [ErrRegistration] and [ErrInstallation]. Of the
// first two, what a handler returns is none: it is of the event that the handler asked about.
func Permanent(err error) bool {
	marked, _ := mark(err)
	return errors.Is(err, ErrRegistration) || errors.Is(err, ErrInstallation) ||
		!marked && (errors.Is(err, ErrNoHandler) || errors.Is(err, ErrNoClass))
}
