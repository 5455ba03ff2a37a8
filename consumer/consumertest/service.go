package consumertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
)

// Service is what [Exercise] has to know of a service.
type Service struct {
	// DSN leads to a PostgreSQL server for tests, 15 or newer, with a login that may make
	// databases and, in them, schemas. Not through a pooler. Required.
	DSN string
	// Prepare makes the service's own tables, in a database that has those of the
	// consumer's side. Called once. May be nil.
	Prepare func(ctx context.Context, db *pgxpool.Pool) error
	// Start is what the service does when its process starts: it makes the Processor, on
	// this very pool, and the Router with its handlers. Called for every process that is
	// played, so that nothing in memory is left of the one before. The pool is closed
	// for it. Required.
	Start func(ctx context.Context, db *pgxpool.Pool) (*consumer.Router, error)
	// Event returns the n-th event, counted from 0, each of an aggregate of its own, with
	// an effect of its own, and independent of the others. Without a Key it gets one. Where
	// a service handles several types, exercise one after the other. Called once for each n,
	// up to some hundred. Required.
	Event func(n int) outbox.Event
	// Effects reads what the handlers have done so far, in the database and, with its
	// fakes, outside: one line for each thing that must be there once, as a person would say
	// it. Leave out what differs each time, such as serial numbers, instants and random ids.
	// The order of the lines means nothing. [Rows] reads them by a query. Required.
	Effects func(ctx context.Context, db *pgxpool.Pool) ([]string, error)
	// Reset makes the fakes of what is outside the database forget what they were asked.
	// Called before each of the databases. May be nil.
	Reset func()
	// RetryDelay is for how long a retry queue may keep a message before it is delivered
	// again. Default: the window of the event's class, within which any copy is known.
	RetryDelay time.Duration
	// Absolute says that an event sets a state, so that one of the same content and
	// another key leaves the effects as they are. Default: it has effects of its own, as
	// a second payment of the same amount has.
	Absolute bool
}

// TB is what [Exercise] needs of a *testing.T.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Context() context.Context
}

// Exercise delivers events of the service to its handlers in every way in which they
// may come, and reports each promise that is not kept: at which delivery, what differs
// from one undisturbed delivery, and what to do. It takes some seconds, more for handlers
// with many statements.
func Exercise(t TB, s Service) {
	t.Helper()
	report, err := Check(t.Context(), s)
	for _, broken := range report.Broken {
		t.Errorf("consumertest: %v", broken)
	}
	if err != nil {
		t.Fatalf("consumertest: %v", err)
		return
	}
	t.Logf("consumertest: %d events, cut at each of: %s", report.Events, strings.Join(report.Statements, "; "))
}

// Report is what [Check] has found.
type Report struct {
	// Broken are the promises that are not kept, each with its first failure.
	Broken []*BrokenError
	// Statements are those of one delivery, at each of which the service was cut off.
	Statements []string
	// Events is how many events of the service were delivered, each many times.
	Events int
}

// Check is [Exercise] for who is no test. Where a promise is broken, those that would fail for
// the same reason are not tried: all others behind [Once], what comes hours later behind
// [Restart]. The error is of the server or of the service's functions.
func Check(ctx context.Context, s Service) (report Report, err error) {
	if s.Start == nil || s.Event == nil || s.Effects == nil {
		return report, errors.New("check the service: Start, Event and Effects are required")
	}
	e, err := newExercise(ctx, s)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, e.close(ctx)) }()
	if err = e.prepare(ctx); err != nil {
		return report, fmt.Errorf("prepare a database: %w", err)
	}
	err = e.run(ctx)
	return e.report, err
}

// Rows returns a [Service].Effects that reads the rows of a query, a line for each: its
// columns, separated by spaces.
func Rows(query string) func(ctx context.Context, db *pgxpool.Pool) ([]string, error) {
	return func(ctx context.Context, db *pgxpool.Pool) ([]string, error) {
		rows, err := db.Query(ctx, query)
		if err != nil {
			return nil, fmt.Errorf("read effects: %w", err)
		}
		lines, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
			values, err := row.Values()
			return strings.TrimSuffix(fmt.Sprintln(values...), "\n"), err
		})
		if err != nil {
			return nil, fmt.Errorf("read effects: %w", err)
		}
		return lines, nil
	}
}
