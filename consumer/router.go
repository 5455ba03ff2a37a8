package consumer

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// TxHandler applies an event's effect with the given transaction, in which the
// event is claimed already. Returning nil commits both, an error or a panic
// rolls both back and the event is delivered again.
//
// Everything the handler does through tx happens once; what it does elsewhere
// may happen again. It must not call Commit or Rollback; tx.Begin gives a
// savepoint. It should return soon after ctx has ended.
type TxHandler func(ctx context.Context, tx pgx.Tx, ev Event) error

// Router chooses the handler of each event by its type. Register all handlers
// first; [Router.Handle] and [Router.HandleRecord] are then safe for concurrent
// use.
type Router struct {
	processor *Processor
	handlers  map[string]TxHandler
	funcs     map[string]FuncHandler
	batches   map[string]*batchHandler
	ignored   map[string]bool
	err       error // the first wrong registration
	steps     steps
}

// steps are the parts of one delivery. Tests replace one to show that the
// checks notice.
type steps struct {
	begin  func(ctx context.Context) (pgx.Tx, error)
	claim  func(ctx context.Context, tx pgx.Tx, ev Event) (Claim, error)
	apply  func(ctx context.Context, handler TxHandler, tx pgx.Tx, ev Event) error
	commit func(ctx context.Context, tx pgx.Tx) error
}

// NewRouter returns a router without handlers.
func NewRouter(p *Processor) *Router {
	return &Router{
		processor: p,
		handlers:  make(map[string]TxHandler),
		funcs:     make(map[string]FuncHandler),
		batches:   make(map[string]*batchHandler),
		ignored:   make(map[string]bool),
		steps:     steps{begin: p.begin, claim: p.claim, apply: apply, commit: commit},
	}
}

// Group returns the name of the consumer group.
func (r *Router) Group() string { return r.processor.group }

// Tx registers the handler of an event type: claim, handler and commit are one
// transaction. An empty type, a nil handler or a second registration of a type
// makes every delivery fail with [ErrRegistration]; see [Router.Err].
func (r *Router) Tx(eventType string, handler TxHandler) {
	if handler == nil {
		r.fail(eventType, "the handler is nil")
		return
	}
	if r.free(eventType) && r.classed(eventType) {
		r.handlers[eventType] = handler
	}
}

// Ignore says that events of this type are not for this group. They are
// acknowledged without a claim. A type that is neither handled nor ignored
// stops the group with [ErrNoHandler], because a forgotten type would be an
// event lost in silence.
func (r *Router) Ignore(eventType string) {
	if r.free(eventType) {
		r.ignored[eventType] = true
	}
}

// Err returns the first wrong registration, or nil. It matches
// [ErrRegistration].
func (r *Router) Err() error { return r.err }

func (r *Router) free(eventType string) bool {
	switch {
	case eventType == "":
		r.fail(eventType, "the event type is empty")
	case r.handlers[eventType] != nil || r.funcs[eventType] != nil || r.batches[eventType] != nil || r.ignored[eventType]:
		r.fail(eventType, "registered twice")
	default:
		return true
	}
	return false
}

// classed reports whether events of the type have a class, which those have to
// have that are claimed.
func (r *Router) classed(eventType string) bool {
	if r.processor.windows.index(eventType) >= 0 {
		return true
	}
	r.fail(eventType, "no class of Config.Classes matches")
	return false
}

func (r *Router) fail(eventType, detail string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: event type %q: %s", ErrRegistration, eventType, detail)
	}
}

// route returns the handler of a type that is not ignored.
func (r *Router) route(eventType string) (TxHandler, error) {
	if r.err != nil {
		return nil, r.err
	}
	if h := r.handlers[eventType]; h != nil {
		return h, nil
	}
	if b := r.batches[eventType]; b != nil {
		return b.single, nil
	}
	return nil, fmt.Errorf("%w %q of group %q; register one with Router.Tx, or say with Router.Ignore that these events are not for this group",
		ErrNoHandler, eventType, r.Group())
}
