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
	handlers  map[string]*handler
	err       error // the first wrong registration
	steps     steps
}

// handler is what an event type was registered with: one of the three functions,
// or that it is ignored.
type handler struct {
	tx      TxHandler
	set     SetHandler
	fn      FuncHandler
	ignored bool
	batch   *BatchOptions // not nil: its events share transactions
}

// single handles one event.
func (h *handler) single(ctx context.Context, tx pgx.Tx, ev Event) error {
	if h.set != nil {
		return h.set(ctx, tx, []Event{ev})
	}
	return h.tx(ctx, tx, ev)
}

// steps are the parts of one delivery. Tests replace one to show that the
// checks notice.
type steps struct {
	begin  func(ctx context.Context) (pgx.Tx, error)
	claim  func(ctx context.Context, tx pgx.Tx, items []*item) error
	apply  func(ctx context.Context, handler TxHandler, tx pgx.Tx, ev Event) error
	commit func(ctx context.Context, tx pgx.Tx) error
}

// NewRouter returns a router without handlers.
func NewRouter(p *Processor) *Router {
	return &Router{
		processor: p,
		handlers:  make(map[string]*handler),
		steps: steps{
			begin:  p.begin,
			claim:  func(ctx context.Context, tx pgx.Tx, items []*item) error { return p.claims(ctx, on(tx), items) },
			apply:  p.apply,
			commit: commit,
		},
	}
}

// Group returns the name of the consumer group.
func (r *Router) Group() string { return r.processor.group }

// Tx registers the handler of an event type: claim, handler and commit are one
// transaction. An empty type, a nil handler or a second registration of a type
// makes every delivery fail with [ErrRegistration]; see [Router.Err].
func (r *Router) Tx(eventType string, h TxHandler) {
	if h == nil {
		r.fail(eventType, "the handler is nil")
		return
	}
	r.register(eventType, &handler{tx: h})
}

// Ignore says that events of this type are not for this group. They are
// acknowledged without a claim. A type that is neither handled nor ignored
// stops the group with [ErrNoHandler], because a forgotten type would be an
// event lost in silence.
func (r *Router) Ignore(eventType string) {
	if r.free(eventType) {
		r.handlers[eventType] = &handler{ignored: true}
	}
}

// Err returns the first wrong registration, or nil. It matches
// [ErrRegistration].
func (r *Router) Err() error { return r.err }

// register keeps the handler of a type whose events are claimed, so that it has
// to have a class.
func (r *Router) register(eventType string, h *handler) {
	if !r.free(eventType) {
		return
	}
	if r.processor.windows.index(eventType) < 0 {
		r.fail(eventType, "no class of Config.Classes matches")
		return
	}
	r.handlers[eventType] = h
}

func (r *Router) free(eventType string) bool {
	switch {
	case eventType == "":
		r.fail(eventType, "the event type is empty")
	case r.handlers[eventType] != nil:
		r.fail(eventType, "registered twice")
	default:
		return true
	}
	return false
}

func (r *Router) fail(eventType, detail string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: event type %q: %s", ErrRegistration, eventType, detail)
	}
}

// route returns the handler of a type.
func (r *Router) route(eventType string) (*handler, error) {
	if r.err != nil {
		return nil, r.err
	}
	if h := r.handlers[eventType]; h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("%w %q of group %q; register one with Router.Tx, or say with Router.Ignore that these events are not for this group",
		ErrNoHandler, eventType, r.Group())
}
