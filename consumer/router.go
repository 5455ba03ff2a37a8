package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
)

// TxHandler applies an event's effect with the given transaction, in which the
// event is claimed already. Returning nil commits both, an error or a panic
// rolls both back and the event is delivered again.
//
// Everything the handler does through tx happens once; what it does elsewhere
// may happen again. It must not call Commit or Rollback; tx.Begin gives a
// savepoint. Nor may it end the transaction by an SQL statement: that is found
// ([ErrTxEnded]), but for COMMIT AND CHAIN, ROLLBACK AND CHAIN and a BEGIN behind
// either, which leave another transaction open that looks the same. It should return soon after ctx has ended.
type TxHandler func(ctx context.Context, tx pgx.Tx, ev Event) error

// SetHandler applies the effects of several events with one transaction, in
// which they are claimed already; as a [TxHandler] otherwise. The events are in
// the order of their partition. When it fails it is called again with one event
// at a time, so that the one at fault is found.
type SetHandler func(ctx context.Context, tx pgx.Tx, evs []Event) error

// Router chooses the handler of each event by its type. Register all handlers
// first; [Router.Handle] and [Router.HandleRecord] are then safe for concurrent
// use.
//
// Where an event type is wanted, the beginning of event types followed by "*" is
// a pattern for all of them, as in [Class]: of the registrations that match a type
// the most special one counts, see [ClassOf], whatever their order.
type Router struct {
	processor *Processor
	handlers  handlers
	steps     steps
}

// NewRouter returns a router without handlers.
func NewRouter(p *Processor) *Router {
	r := &Router{processor: p, handlers: handlers{windows: &p.windows, of: make(map[string]*handler)}}
	r.steps = steps{processor: p, begin: p.windows.begin, apply: p.calls.apply, commit: commit}
	r.steps.claim = r.steps.claimUnparked
	return r
}

// Group returns the name of the consumer group.
func (r *Router) Group() string { return r.processor.group }

// Tx registers the handler of an event type, or of a pattern: claim, handler and
// commit are one transaction. An empty type, a pattern with more than its end open,
// a nil handler or a second registration makes every delivery fail with
// [ErrRegistration]; see [Router.Err].
func (r *Router) Tx(eventType string, h TxHandler) {
	r.handlers.register(eventType, &handler{tx: h})
}

// Batch registers the handler of an event type whose events share transactions:
// up to Max claims, handlers and one commit. An event still has its effect once,
// and one that fails takes no other with it; see [Router.HandleBatch]. What a
// handler sets with SET LOCAL, such as a role or a search_path, holds for the events
// behind it in the batch, and for the claims, too: it must not.
// Registration as in [Router.Tx].
func (r *Router) Batch(eventType string, options BatchOptions, h TxHandler) {
	r.handlers.register(eventType, &handler{tx: h, batch: options.withDefaults()})
}

// BatchSet is [Router.Batch] with a handler that takes all events of the type
// that follow one another in the batch at once.
func (r *Router) BatchSet(eventType string, options BatchOptions, h SetHandler) {
	r.handlers.register(eventType, &handler{set: h, batch: options.withDefaults()})
}

// Func registers the handler of an event type whose effects lie outside one
// transaction. The event is open from its first effect to the end of its handler:
// then its claim is written, and the delivery is [Processed]. A delivery that
// fails is tried again, and what is complete by then answers with its first
// result. One that fails for good becomes a dead letter; its effects are kept, and
// a redrive goes on where it ended. [InProgress] while another attempt holds an
// effect. Registration as in [Router.Tx]; of a type whose class is keyed by content
// ([Class].Content) it is refused.
func (r *Router) Func(eventType string, h FuncHandler) {
	r.handlers.register(eventType, &handler{fn: h})
}

// AtLeastOnce registers the handler of an event type whose events leave no claim: for
// statistics and caches, where a rare second effect costs less than a row for each
// event. Nothing is lost, and offsets follow the group's marks. The handler is called
// again for an event that it has handled
//
//   - in the next session of its partition, for what was finished behind the first message
//     that was not; after a crash also for what was finished since the offset was
//     committed, which goes on while the database or Kafka is away;
//   - when the database has lost marks, or an offset was set back;
//   - for each further copy of the event, of a producer, of a relay or of a replay;
//   - when it has returned an error, or not in time, and when its letter is redriven.
//
// Windows, floors and fingerprints are not looked at, and no letter is waited for
// ([LetterPark]). An event whose handler has used up its attempts is claimed as given up,
// and becomes a dead letter like any other, and there window and floor count, which the
// letter may name in place of the failure; its redrive claims it as one of [Router.Func].
// [Fence] and [Do] in the handler are [ErrInTx]. Registration as in [Router.Tx]. The one
// option is [Remembered].
func (r *Router) AtLeastOnce(eventType string, h FuncHandler, options ...AtLeastOnceOption) {
	remembered := slices.Contains(options, Remembered)
	if remembered && r.processor.memory.of == nil {
		r.handlers.fail(eventType, "Remembered, and Config.Completed is nil; give one (package redisfast), or leave it out")
		return
	}
	r.handlers.register(eventType, &handler{fn: h, again: true, remembered: remembered})
}

// Ignore says that events of this type, or of this pattern, are not for this
// group. They are acknowledged without a claim. Ignore("*") ignores whatever is
// not registered otherwise.
func (r *Router) Ignore(eventType string) {
	if r.handlers.free(eventType) {
		r.handlers.put(eventType, &handler{ignored: true})
	}
}

// Unknown says what becomes of an event whose type is neither handled nor
// ignored. Default [UnknownStop], because a forgotten type would be an event lost
// in silence; with [UnknownDeadLetter] a producer may begin to publish a type
// before this group knows it. An event from no topic has no place for a letter,
// and fails in any case.
func (r *Router) Unknown(policy UnknownPolicy) {
	if policy != UnknownStop && policy != UnknownDeadLetter {
		r.handlers.fail("", fmt.Sprintf("Unknown(%q): want %s or %s", policy, UnknownStop, UnknownDeadLetter))
		return
	}
	r.handlers.unknown = policy
}

// Err returns the first wrong registration, or nil. It matches
// [ErrRegistration].
func (r *Router) Err() error { return r.handlers.check() }

// Handle delivers one event: it claims the event, runs the handler of its type
// and commits, in one transaction; that of [Router.Func] runs before the claim.
// It blocks until that is done, and waits for another delivery of the same key up
// to Config.LockTimeout.
//
// Acknowledge the message if and only if the error is nil and
// [Outcome.Acknowledges]. With an error nothing of this delivery is in the
// database, except after [ErrCommitUnknown] and [ErrTxEnded], where it may be, and
// the effects of a Func handler that are complete; deliver again, unless
// [Permanent].
//
// A handler that fails again and again makes a dead letter of the event, as
// Config.Retry says. So does a mismatch, and an event outside the window of its
// [Class] unless that applies it; these are [DeadLettered]. For an event without
// Source there is no place for a letter: the outcome is [Mismatch] together with
// a [*MismatchError], [Replay] or [FromFuture], and the caller decides. A replay
// in the mode [record.ReplayReprocess] that is for another group and lies below the
// floor is a Replay without a letter.
func (r *Router) Handle(ctx context.Context, ev Event) (Outcome, error) {
	d := r.handle(ctx, ev).told(ctx, r.processor, &ev)
	return d.Outcome, d.Err
}

func (r *Router) handle(ctx context.Context, ev Event) Delivery {
	if err := ev.validate(); err != nil {
		return Delivery{Err: err}
	}
	h, err := r.handlers.get(ev.Type)
	switch {
	case errors.Is(err, ErrNoHandler) && r.handlers.unknown == UnknownDeadLetter && ev.Source.Topic != "":
		return r.steps.unhandled(ctx, ev, err)
	case err != nil:
		return Delivery{Err: err}
	case h.ignored:
		return Delivery{Outcome: Ignored}
	}
	it := r.processor.newItem(ev)
	it.handler = h
	r.processor.memory.deliver(ctx, []*item{it}, r.steps.deliver)
	return it.delivery
}

// HandleRecord reads the event of a Kafka record, from any client, and handles
// it. A record that breaks the wire contract is kept as a dead letter with the
// reason "malformed" and is [DeadLettered]: no later delivery could mend it.
// Record.Source must be set. Otherwise as [Router.Handle].
func (r *Router) HandleRecord(ctx context.Context, rec Record) (Outcome, error) {
	if rec.Source.Topic == "" {
		return 0, fmt.Errorf("%w: Record.Source.Topic is empty", ErrEvent)
	}
	ev, err := r.processor.parse(rec)
	if err != nil {
		d := r.steps.quarantine(ctx, letter{record: rec, reason: reasonMalformed, cause: err})
		return d.Outcome, d.Err
	}
	return r.Handle(ctx, ev)
}

// HandleCautiously is [Router.HandleRecord] for a record that may be what has killed
// a process: that the handling of its event begins is counted in a transaction of
// its own, before it does, and taken back when it has ended, however. An event
// whose handling has not come back Retry.MaxAttempts times becomes a dead letter
// with the reason "crash". Nothing else may be handled meanwhile that could be to
// blame for a crash.
func (r *Router) HandleCautiously(ctx context.Context, rec Record) (Outcome, error) {
	ev, err := r.processor.parse(rec)
	h := r.handlers.find(ev.Type)
	if err != nil || r.handlers.err != nil || h == nil || h.ignored || ev.Source.Topic == "" || ev.validate() != nil {
		return r.HandleRecord(ctx, rec) // no handler gets it
	}
	it := r.processor.newItem(ev)
	it.handler = h
	starts, may, err := r.processor.attempts.start(ctx, it.tries)
	if err == nil && !may {
		var left consumerdb.StartsLeftRow
		if left, err = r.processor.attempts.left(ctx, it.tries); err == nil {
			return r.steps.crashed(ctx, it, left.Starts)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("handle %s %s: %w", ev.Type, ev.Key, err)
	}
	defer r.processor.attempts.end(ctx, it.tries, starts)
	return r.Handle(ctx, ev)
}

// HandleBatch delivers events, in their order, whose types were registered with
// [Router.Batch] or [Router.BatchSet], and returns what became of each. They
// share a transaction: claims, handlers, commit. When a handler fails all is
// rolled back, and the events are tried again in small transactions with a
// savepoint around each:
//
//   - one that fails has its attempt counted and its claim taken back, and
//     later events of its aggregate are [ErrHeldBack]; other aggregates go on;
//   - one that cannot share a transaction (no partition for its time, a claim
//     held elsewhere, [ErrClock], a deferred constraint that fails at the commit) is
//     delivered alone, as are its neighbours;
//   - one that has used up its attempts, or is marked by [DeadLetter], becomes a
//     dead letter in the transaction of its neighbours;
//   - one whose handler has committed the transaction is [ErrTxEnded], once, and a
//     Duplicate then; those behind it are applied, unless that fails (docs/consuming.md).
//
// A failure of the connection or of the server fails all events that were not
// committed by then; deliver them again. Of two events with one key in the batch
// the second is a Duplicate, or a mismatch.
func (r *Router) HandleBatch(ctx context.Context, evs []Event) []Delivery {
	all, good, held := make([]*item, len(evs)), make([]*item, 0, len(evs)), make(map[string]bool)
	for i := range evs {
		h, err := r.handlers.ofBatch(&evs[i])
		if err == nil && held[evs[i].AggregateID] {
			err = ErrHeldBack
		}
		if err != nil {
			all[i], held[evs[i].AggregateID] = &item{ev: evs[i], delivery: Delivery{Err: err}}, true
			continue
		}
		all[i] = r.processor.newItem(evs[i])
		all[i].handler = h
		good = append(good, all[i])
	}
	r.processor.memory.deliver(ctx, good, r.steps.deliver)
	deliveries := make([]Delivery, len(evs))
	for i, it := range all {
		deliveries[i] = it.delivery.told(ctx, r.processor, &it.ev)
	}
	return deliveries
}

// HandleRecords delivers the events of several records of one partition, in
// their order, as [Router.HandleBatch] does; each must be one whose [Peek] has a
// Batch.
func (r *Router) HandleRecords(ctx context.Context, recs []Record) []Delivery {
	evs := make([]Event, len(recs))
	for i, rec := range recs {
		// One that cannot be read is refused by HandleBatch for want of a key.
		evs[i], _ = r.processor.parse(rec)
	}
	return r.HandleBatch(ctx, evs)
}

// Peek looks at a record. It asks nobody.
func (r *Router) Peek(rec Record) Peek {
	ev, err := r.processor.parse(rec)
	if err != nil {
		return Peek{}
	}
	p := Peek{EventTime: r.processor.windows.timeOf(&ev)}
	r.processor.marks.reads.Raise(rec.Source.Topic, rec.Source.Partition, p.EventTime)
	if h := r.handlers.find(ev.Type); h != nil {
		p.Batch = h.batch
	}
	return p
}

// Redrive handles the group's dead letters again for which `outboxctl dead
// redrive` has asked, at most limit of them, and returns how many it has decided
// about: redriven, or open again with the reason why not.
//
// Claim, effect and the letter's new state are one transaction, which one member
// of the group has, so that the effect is made once whatever crashes, and while
// the same record is delivered again, or another letter of the event asked for: that
// one waits, and is a duplicate then. The claim of an event that was given up
// becomes that of an event applied. An event outside its window is claimed by
// arrival, whatever its class says; one that was applied meanwhile is redriven
// without a second effect. A letter stays open that holds another event's key, as a mismatch, a
// record that still cannot be read, an event whose time has not come, or whose
// type has no handler.
//
// The handler of [Router.Func] runs outside any transaction, on several members
// at once perhaps, and the letter is decided with the end of the event: what
// [Fence] and [Do] have completed before answers with its first result.
//
// What was parked behind a letter is handled with it, in order, see [LetterPark].
// One failure of the handler opens the letter again. Failures of infrastructure, and
// [ErrInstallation], leave it as it is, for the next call; so does a claim that is held elsewhere. One
// of which the process has died Retry.MaxAttempts times is open again as well.
// The first such failure is returned after all letters have been tried.
// Call it now and then; saramagroup.Run does. Safe for concurrent use.
func (r *Router) Redrive(ctx context.Context, limit int) (done int, err error) {
	if r.handlers.err != nil {
		return 0, r.handlers.err
	}
	return redriver{r}.all(ctx, limit)
}

// RecoverFences drives open events whose process died within their handler, when
// nobody delivers the event again: it gives the event, which its first effect has
// kept, to the handler that was registered with [Router.Func]. At most limit
// events; it returns how many were ended.
//
// An event is taken when nobody has been at it for more than a minute, and after
// each attempt the next one waits longer, up to 17 hours. A failure counts as at a
// delivery, see [Retry]. Left to an operator are, with the reason in the column
// stuck of onceward.fences, where `outboxctl fences list` shows it, and one line
// in the log: [ErrFenceStale], an event that cannot be read, and an effect that
// the handler did not call. They are driven again when an operator has decided,
// or when the event is delivered or redriven. An event that was given up waits
// with its dead letter; one whose letter was discarded is ended, also while its redrive
// is under way. Events of types without a Func handler in this program are left alone.
//
// The first failure is returned after all have been tried. Call it now and then;
// saramagroup.Run does. Safe for concurrent use.
func (r *Router) RecoverFences(ctx context.Context, limit int) (done int, err error) {
	if r.handlers.err != nil {
		return 0, r.handlers.err
	}
	return recoverEvents(ctx, r, limit)
}

// SendLetters gives the group's dead letters that were not sent yet, and about
// which nobody has decided, to send: a few at a time, in the order of their
// records' places. Send returns those that arrived, as they were given, which are
// remembered; the others are given to it again at a later call, and so is one that
// was decided about, or replaced, meanwhile. An error of send ends the call and is
// returned.
//
// Each letter is sent at least once: a failure between send and the memory of it
// sends it again. One member of the group sends at a time; for the others the
// call does nothing. Send is called within a transaction of this database that is
// idle meanwhile, so it should return long before Config.SessionTimeout. It
// returns how many letters were sent. saramagroup.Run calls it.
func (r *Router) SendLetters(ctx context.Context, send func(ctx context.Context, letters []Letter) (sent []Letter,
	err error)) (total int, err error) {
	after := Source{Partition: -1, Offset: -1}
	for {
		page, sent, err := sending{&r.steps, send}.page(ctx, after)
		total += sent
		if err != nil {
			return total, fmt.Errorf("send dead letters: %w", err)
		}
		if len(page) < lettersPage {
			return total, nil
		}
		after = page[len(page)-1].Record.Source
	}
}

// KeepUnreadable keeps a range as one dead letter with the reason "unreadable",
// which has the place of the first message, and neither key, value nor headers.
// Once it returns nil the group may go on behind the range. A range that is kept
// already, or is the rest of such a one, stays as it is. What the group's mark of this
// very topic proves finished, so that it could be read then, is passed over; what is
// left of the range on either side has a letter. A letter can be discarded; a redrive
// has nothing to handle, and is not taken. Safe for concurrent use; saramagroup.Run
// calls it.
func (r *Router) KeepUnreadable(ctx context.Context, u Unreadable) error {
	if u.From.Topic == "" || u.Until <= u.From.Offset || u.Why == nil {
		return fmt.Errorf("%w: unreadable range of %s until %d: it wants a topic, at least one offset and a cause", ErrEvent, u.From, u.Until)
	}
	rest, err := u.unfinished(ctx, r.processor)
	for _, part := range rest {
		if err == nil {
			err = part.keep(ctx, &r.steps)
		}
	}
	return err
}

// SaveProgress is [Processor.SaveProgress].
func (r *Router) SaveProgress(ctx context.Context, history string, marks []Mark) error {
	return r.processor.SaveProgress(ctx, history, marks)
}

// Attend begins the membership of the group for as long as leave is not called. One
// Processor has one at a time, else the error is [ErrAttended]: marks say whose
// session has a partition by its Processor, so that of two members the end of the one
// would be taken for that of the other, and its crash would not be seen.
func (r *Router) Attend() (leave func(), err error) {
	p := r.processor
	if !p.marks.attended.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("group %q: %w", p.group, ErrAttended)
	}
	return func() { p.marks.attended.Store(false) }, nil
}

// BeginProgress saves the marks with which a session begins, and that it has
// begun, until EndProgress. A mark whose topic id was not known before gets it. One
// of another topic of the same name and partition is retired: it stays, and
// stream time goes on without it. Otherwise as SaveProgress.
func (r *Router) BeginProgress(ctx context.Context, history string, marks []Mark) error {
	return r.processor.marks.save(ctx, history, marks, true)
}

// EndProgress says that a session that had these partitions has ended, and did not
// crash. Where it is not said, the next session finds Mark.Crashed; so it does where
// a mark is given with Crashed: what an earlier crash has left in doubt still is.
func (r *Router) EndProgress(ctx context.Context, marks []Mark) error {
	return r.processor.marks.end(ctx, marks)
}

// Progress is [Processor.Progress].
func (r *Router) Progress(ctx context.Context) (Progress, error) { return r.processor.Progress(ctx) }
