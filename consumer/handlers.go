package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

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

// AtLeastOnceOption is an option of [Router.AtLeastOnce].
type AtLeastOnceOption uint8

// Remembered has Config.Completed remember, for a window of its class, each event whose handler has
// returned nil, and never another one. A delivery of what it knows is a [Duplicate]. What it
// does not know is handled again, for the reasons that AtLeastOnce has:
//
//   - after a crash at most one event for each delivery that ran at once; copies at the same time;
//   - all that the memory has forgotten, or was not told, or not asked, while it was away or slow;
//   - all that was handled before the database was started anew, has failed over or was restored, the class was
//     registered again or a claim forgotten; what is delivered while the database does not answer;
//   - an operator's copies (replay, repair), and what a redrive has handled.
//
// It says nothing to handlers of another kind, and they nothing to it. It needs a session
// ([Router.BeginProgress]) and Config.Completed.
const Remembered AtLeastOnceOption = 1

// Defaults and bounds of [BatchOptions].
const (
	defaultBatchMax    = 100
	defaultBatchLinger = 20 * time.Millisecond
	maxBatch           = 10_000
)

// BatchOptions say how many events share a transaction. The zero value means
// the defaults.
type BatchOptions struct {
	// Max is the most events in one transaction. Default 100, at most
	// 10,000.
	Max int
	// Linger is how long a batch that is not full waits for more. Default
	// 20 ms.
	Linger time.Duration
}

func (o BatchOptions) withDefaults() *BatchOptions {
	if o.Max == 0 {
		o.Max = defaultBatchMax
	}
	if o.Linger == 0 {
		o.Linger = defaultBatchLinger
	}
	return &o
}

// handler is what an event type was registered with: one of the three functions,
// or that it is ignored.
type handler struct {
	tx         TxHandler
	set        SetHandler
	fn         FuncHandler
	ignored    bool
	again      bool          // fn may be called again for an event that it has handled
	remembered bool          // with again: not for one that Config.Completed knows
	batch      *BatchOptions // not nil: its events share transactions
}

// memorable: what it has handled may be remembered by Config.Completed.
func (h *handler) memorable() bool { return h != nil && (!h.again || h.remembered) }

// single handles one event.
func (h *handler) single(ctx context.Context, tx pgx.Tx, ev Event) error {
	if h.set != nil {
		return h.set(ctx, tx, []Event{ev})
	}
	return h.tx(ctx, tx, ev)
}

// handlers are those of a router, by event type.
type handlers struct {
	windows  *windows
	of       map[string]*handler
	patterns []Class // the keys that are patterns
	unknown  UnknownPolicy
	err      error // the first wrong registration
}

// register keeps the handler of a type whose events are claimed, so that it has
// to have a class.
func (hs *handlers) register(eventType string, h *handler) {
	switch b := h.batch; {
	case h.tx == nil && h.set == nil && h.fn == nil:
		hs.fail(eventType, "the handler is nil")
	case b != nil && (b.Max < 0 || b.Max > maxBatch || b.Linger < 0):
		hs.fail(eventType, fmt.Sprintf("BatchOptions{Max: %d, Linger: %s}: want 1 to %d and 0 or more", b.Max, b.Linger, maxBatch))
	case !hs.free(eventType):
	case hs.windows.index(eventType) < 0:
		hs.fail(eventType, "no class of Config.Classes matches")
	case h.outlives(hs.windows, eventType):
		hs.fail(eventType, errContent.Error())
	default:
		hs.put(eventType, h)
	}
}

// errContent: what an effect of an event is known by outlives the class of that.
var errContent = errors.New("its class is keyed by content (Class.Content), and what Fence and Do know an effect by, as does the provider, is kept beyond the window: " +
	"what says the same later would be taken for done; use Router.Tx, Batch or BatchSet, and for an effect outside let them enqueue an event with a key of its own (outbox.NewKey), which a handler of Router.Func takes")

// outlives reports whether the handler leaves effects of events that are known by their content.
func (h *handler) outlives(w *windows, eventType string) bool {
	return h.fn != nil && !h.again && w.byContent(eventType)
}

// check returns the first wrong registration, also of a pattern that is too wide.
func (hs *handlers) check() error {
	for _, c := range hs.windows.classes {
		if h := hs.find(c.Pattern); hs.err == nil && h != nil && h.outlives(hs.windows, c.Pattern) {
			return fmt.Errorf("%w: event type %q: %w", ErrRegistration, c.Pattern, errContent)
		}
	}
	return hs.err
}

func (hs *handlers) put(eventType string, h *handler) {
	hs.of[eventType] = h
	if strings.HasSuffix(eventType, "*") {
		hs.patterns = append(hs.patterns, Class{Pattern: eventType})
	}
}

func (hs *handlers) free(eventType string) bool {
	switch {
	case eventType == "":
		hs.fail(eventType, "the event type is empty")
	case strings.Contains(strings.TrimSuffix(eventType, "*"), "*"):
		hs.fail(eventType, "want an event type, or the beginning of one followed by *")
	case hs.of[eventType] != nil:
		hs.fail(eventType, "registered twice")
	default:
		return true
	}
	return false
}

func (hs *handlers) fail(eventType, detail string) {
	if hs.err == nil {
		hs.err = fmt.Errorf("%w: event type %q: %s", ErrRegistration, eventType, detail)
	}
}

// find returns the handler of a type, nil for none.
func (hs *handlers) find(eventType string) *handler {
	if h := hs.of[eventType]; h != nil {
		return h
	}
	if i := ClassOf(hs.patterns, eventType); i >= 0 {
		return hs.of[hs.patterns[i].Pattern]
	}
	return nil
}

// get returns the handler of a type.
func (hs *handlers) get(eventType string) (*handler, error) {
	if hs.err != nil {
		return nil, hs.err
	}
	switch h := hs.find(eventType); {
	case h == nil:
	case h.outlives(hs.windows, eventType):
		return nil, fmt.Errorf("%w: event type %q: %w", ErrRegistration, eventType, errContent)
	default:
		return h, nil
	}
	return nil, fmt.Errorf("%w %q of group %q; register one with Router.Tx, say with Router.Ignore that these events are not for this group, or with Router.Unknown that they become dead letters",
		ErrNoHandler, eventType, hs.windows.group)
}

// ofBatch returns the handler of an event that comes with others.
func (hs *handlers) ofBatch(ev *Event) (*handler, error) {
	if err := ev.validate(); err != nil {
		return nil, err
	}
	h, err := hs.get(ev.Type)
	if err == nil && h.batch == nil {
		err = fmt.Errorf("%w %q of group %q that takes batches; register one with Router.Batch", ErrNoHandler, ev.Type, hs.windows.group)
	}
	return h, err
}
