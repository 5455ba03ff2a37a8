package consumer

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// TxHandler applies an event's effect with the given transaction, in which the
// event is claimed already. Returning nil commits both, an error or a panic
// rolls both back and the event is delivered again.
//
// Everything the handler does through tx happens once; what it does elsewhere
// may happen again. It must not call Commit or Rollback; tx.Begin gives a
// savepoint. Nor may it end the transaction by an SQL statement: that is found
// ([ErrTxEnded]), but for COMMIT AND CHAIN and ROLLBACK AND CHAIN, which leave
// another transaction open that looks the same. It should return soon after ctx has ended.
type TxHandler func(ctx context.Context, tx pgx.Tx, ev Event) error

// Router chooses the handler of each event by its type. Register all handlers
// first; [Router.Handle] and [Router.HandleRecord] are then safe for concurrent
// use.
//
// Where an event type is wanted, the beginning of event types followed by "*" is
// a pattern for all of them, as in [Class]: of the registrations that match a type
// the most special one counts, see [ClassOf], whatever their order.
type Router struct {
	processor *Processor
	handlers  map[string]*handler
	patterns  []Class // the keys of handlers that are patterns
	unknown   UnknownPolicy
	err       error // the first wrong registration
	steps     steps
}

// UnknownPolicy is a choice for events of a type that was not registered.
type UnknownPolicy string

// Policies for unknown event types.
const (
	// UnknownStop fails the delivery with [ErrNoHandler], which stops the group.
	UnknownStop UnknownPolicy = "stop"
	// UnknownDeadLetter keeps the event as a dead letter with the reason
	// "no-handler": a redrive applies it when the program has a handler.
	UnknownDeadLetter UnknownPolicy = "dead-letter"
)

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
	begin  func(ctx context.Context, bounds string) (pgx.Tx, error)
	claim  func(ctx context.Context, tx pgx.Tx, items []*item) error
	apply  func(ctx context.Context, handler TxHandler, tx pgx.Tx, ev Event) error
	commit func(ctx context.Context, tx pgx.Tx) error
}

// NewRouter returns a router without handlers.
func NewRouter(p *Processor) *Router {
	r := &Router{processor: p, handlers: make(map[string]*handler)}
	r.steps = steps{begin: p.windows.beginIn, claim: r.claims, apply: p.calls.apply, commit: commit}
	return r
}

// Group returns the name of the consumer group.
func (r *Router) Group() string { return r.processor.group }

// Tx registers the handler of an event type, or of a pattern: claim, handler and
// commit are one transaction. An empty type, a pattern with more than its end open,
// a nil handler or a second registration makes every delivery fail with
// [ErrRegistration]; see [Router.Err].
func (r *Router) Tx(eventType string, h TxHandler) {
	if h == nil {
		r.fail(eventType, "the handler is nil")
		return
	}
	r.register(eventType, &handler{tx: h})
}

// Ignore says that events of this type, or of this pattern, are not for this
// group. They are acknowledged without a claim. Ignore("*") ignores whatever is
// not registered otherwise.
func (r *Router) Ignore(eventType string) {
	if r.free(eventType) {
		r.put(eventType, &handler{ignored: true})
	}
}

// Unknown says what becomes of an event whose type is neither handled nor
// ignored. Default [UnknownStop], because a forgotten type would be an event lost
// in silence; with [UnknownDeadLetter] a producer may begin to publish a type
// before this group knows it. An event from no topic has no place for a letter,
// and fails in any case.
func (r *Router) Unknown(policy UnknownPolicy) {
	if policy != UnknownStop && policy != UnknownDeadLetter {
		r.fail("", fmt.Sprintf("Unknown(%q): want %s or %s", policy, UnknownStop, UnknownDeadLetter))
		return
	}
	r.unknown = policy
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
	r.put(eventType, h)
}

func (r *Router) put(eventType string, h *handler) {
	r.handlers[eventType] = h
	if strings.HasSuffix(eventType, "*") {
		r.patterns = append(r.patterns, Class{Pattern: eventType})
	}
}

func (r *Router) free(eventType string) bool {
	switch {
	case eventType == "":
		r.fail(eventType, "the event type is empty")
	case strings.Contains(strings.TrimSuffix(eventType, "*"), "*"):
		r.fail(eventType, "want an event type, or the beginning of one followed by *")
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

// find returns the handler of a type, nil for none.
func (r *Router) find(eventType string) *handler {
	if h := r.handlers[eventType]; h != nil {
		return h
	}
	if i := ClassOf(r.patterns, eventType); i >= 0 {
		return r.handlers[r.patterns[i].Pattern]
	}
	return nil
}

// route returns the handler of a type.
func (r *Router) route(eventType string) (*handler, error) {
	if r.err != nil {
		return nil, r.err
	}
	if h := r.find(eventType); h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("%w %q of group %q; register one with Router.Tx, say with Router.Ignore that these events are not for this group, or with Router.Unknown that they become dead letters",
		ErrNoHandler, eventType, r.Group())
}
