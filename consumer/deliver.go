package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/internal/aside"
	"github.com/onceward/onceward/consumer/internal/statement"
	"github.com/onceward/onceward/consumer/internal/transaction"
	"github.com/onceward/onceward/internal/consumerdb"
)

// steps take deliveries through the same path: claim, apply, write, commit. Tests
// replace one of the functions to show that the checks notice.
type steps struct {
	processor *Processor
	begin     func(ctx context.Context) (pgx.Tx, error)
	claim     func(ctx context.Context, tx pgx.Tx, items []*item) error
	apply     func(ctx context.Context, turn *aside.Turn, handler TxHandler, tx pgx.Tx, ev Event) error
	commit    func(ctx context.Context, tx pgx.Tx) error
}

// deliver delivers the items, each as far as it gets, and leaves in each what
// became of it. Several share transactions; one of a Func handler comes alone.
func (s *steps) deliver(ctx context.Context, items []*item) {
	switch {
	case len(items) == 0:
		return
	case !s.processor.breaks.owedBy(items):
	case len(items) > 1:
		s.alone(ctx, items, make(held))
		return
	case s.pay(ctx, items[0]):
		return
	}
	if h := items[0].handler; h.again && items[0].redrive == nil {
		s.unclaimed(ctx, items[0])
		return
	} else if h.fn != nil {
		s.outside(ctx, items[0])
		return
	}
	err := s.together(ctx, items)
	switch {
	case err == nil:
	case len(items) > 1 && (cannotShare(err) || s.processor.breaks.again(ctx, items, err)):
		s.alone(ctx, items, make(held))
	case len(items) == 1:
		s.failed(ctx, items[0], err)
	case isHandlers(err):
		s.isolate(ctx, items)
	default:
		fail(items, err)
	}
}

// isHandlers reports whether an error is a failure of the handler alone.
func isHandlers(err error) bool {
	var handler *HandlerError
	return errors.As(err, &handler) && !IsInfrastructure(err)
}

// inTx runs one transaction over the items, and makes the endings that they have, from the first item on, count
// when it was committed.
func (s *steps) inTx(ctx context.Context, items []*item, work func(tx pgx.Tx) error) (err error) {
	for _, it := range items {
		it.reset()
	}
	tx, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer transaction.Rollback(ctx, tx)
	defer func() { err = judge(ctx, tx, err) }()
	if items[0].redrive != nil {
		if err := s.processor.letters.lock(ctx, tx, items[0].redrive); err != nil {
			return err
		}
	}
	if err := work(tx); err != nil {
		return s.ended(ctx, tx, items, judge(ctx, tx, err))
	}
	if n := slices.IndexFunc(items, func(it *item) bool { return it.end.outcome == 0 && it.end.err == nil }); n >= 0 {
		items = items[:n]
	}
	if err := s.write(ctx, tx, items); err != nil {
		return err
	}
	if err := s.commit(ctx, tx); err != nil {
		return err
	}
	for _, it := range items {
		it.delivery = Delivery{Outcome: it.end.outcome, Err: it.end.err}
		switch l := it.end.letter; {
		case l != nil:
			s.processor.letters.announce(ctx, *l)
		case it.end.outcome == Processed:
			s.processor.letters.brake.Applied()
		}
		if it.delivery.Finished() {
			s.processor.breaks.Finish(it.tries)
		}
	}
	return nil
}

// ended asks, when work has failed, whether a handler has committed the transaction, of which a connection that is gone
// may not have heard. Then claims are there of events that no handler has had: they are taken back. That of its own
// event stays, because the effect may be there, and the event fails.
func (s *steps) ended(ctx context.Context, tx pgx.Tx, items []*item, cause error) error {
	first, on := slices.IndexFunc(items, (*item).fresh), tx.Conn
	if first < 0 || len(items) < 2 || !transaction.Ended(tx) && !on().IsClosed() && on().PgConn().TxStatus() != 'I' {
		return cause
	}
	transaction.Rollback(ctx, tx) // gives its connection back
	var guilty []*item
	var unused []uuid.UUID
	for _, it := range items {
		switch {
		case it.called && it.end.outcome == 0:
			guilty = append(guilty, it)
		case it.fresh() && it.end.outcome != Processed:
			unused = append(unused, it.claim.ids...)
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cameBackTimeout)
	defer cancel()
	committed, err := consumerdb.New(s.processor.db).TakeBackClaims(ctx, consumerdb.TakeBackClaimsParams{
		Xact: items[first].claim.xact, ConsumerGroup: s.processor.group, EventIds: consumerdb.Texts(unused)})
	if err != nil {
		return unusable(fmt.Errorf("take back the claims of a batch whose transaction a handler has ended: %w", err))
	}
	for _, it := range guilty {
		if committed {
			it.delivery.Err = &HandlerError{Err: ErrTxEnded}
			s.processor.log.WarnContext(ctx, "a handler has committed the transaction of its batch; what is behind is claimed anew", "event", it.ev.Key.String())
		}
	}
	return cause
}

// write writes what the transaction makes of the items. It is the one place that writes endings.
func (s *steps) write(ctx context.Context, tx pgx.Tx, items []*item) error {
	if !slices.ContainsFunc(items, (*item).writes) {
		return nil
	}
	return transaction.InOwnRole(ctx, tx, func() error {
		for _, it := range items {
			if it.end.dead {
				if err := s.dead(ctx, tx, it); err != nil {
					return err
				}
			}
			if err := s.processor.letters.end(ctx, tx, it); err != nil {
				return err
			}
		}
		return claimant{s.processor, statement.On(tx)}.remember(ctx, items)
	})
}

// dead has the claims of an item say so. What says the same later has all attempts.
func (s *steps) dead(ctx context.Context, tx pgx.Tx, it *item) error {
	if err := (claimant{s.processor, statement.On(tx)}).markDead(ctx, it); err != nil || !it.content {
		return err
	}
	it.end.letter.claimed = it.claim.ids
	return consumerdb.New(tx).ForgetAttempts(ctx, consumerdb.ForgetAttemptsParams{EventID: it.tries,
		ConsumerGroup: s.processor.group})
}

// together is the transaction without savepoints: all or nothing.
func (s *steps) together(ctx context.Context, items []*item) error {
	return s.inTx(ctx, items, func(tx pgx.Tx) error {
		if err := s.claim(ctx, tx, items); err != nil {
			return err
		}
		if len(items) == 1 {
			return s.inOrder(ctx, nil, tx, items)
		}
		// In one goroutine: to change it for each would cost as much as a claim does.
		all := func(turn *aside.Turn) error { return s.inOrder(ctx, turn, tx, items) }
		err := s.processor.calls.bounded(ctx, tx, all)
		if errors.Is(err, aside.ErrExited) {
			err = errAlone // each in a turn of its own, after which somebody can look at what it has done
		}
		return err
	})
}

// inOrder applies the items.
func (s *steps) inOrder(ctx context.Context, turn *aside.Turn, tx pgx.Tx, items []*item) error {
	for len(items) > 0 {
		run := runOf(items)
		items = items[len(run):]
		if err := s.one(ctx, turn, tx, run); err != nil {
			return err
		}
		if err := s.holdBackBehind(ctx, tx, run[0], items); err != nil {
			return err
		}
	}
	return nil
}

// claimUnparked claims the items, but for those that have to wait behind a letter.
func (s *steps) claimUnparked(ctx context.Context, tx pgx.Tx, items []*item) error {
	if err := s.processor.letters.lookForParked(ctx, tx, items); err != nil {
		return err
	}
	c := claimant{s.processor, statement.On(tx)}
	if err := c.claim(ctx, items); err != nil {
		return err
	}
	if s.processor.letters.overtaken(items) {
		return errAlone
	}
	return c.holdBack(ctx, items)
}

// holdBackBehind holds back what comes behind an item of this transaction that has become a letter.
func (s *steps) holdBackBehind(ctx context.Context, tx pgx.Tx, it *item, later []*item) error {
	if it.end.letter == nil || !s.processor.letters.parks(it.end.letter) {
		return nil
	}
	for _, next := range later {
		next.parked = next.parked || next.behindOf(it)
	}
	return claimant{s.processor, statement.On(tx)}.holdBack(ctx, later)
}

// runOf returns the run at the beginning that one call handles: of a set handler's fresh items, else one.
func runOf(items []*item) []*item {
	n, h := 1, items[0].handler
	for items[0].fresh() && h.set != nil && n < len(items) && items[n].fresh() && items[n].handler == h {
		n++
	}
	return items[:n]
}

// one applies the items of a run, or refuses the one that is not fresh.
func (s *steps) one(ctx context.Context, turn *aside.Turn, tx pgx.Tx, run []*item) (err error) {
	if !run[0].fresh() {
		run[0].end, err = run[0].refuse(s.processor)
		return err
	}
	handler := run[0].handler.single
	if run[0].handler.set != nil {
		evs := make([]Event, len(run))
		for i, it := range run {
			evs[i] = it.event()
		}
		handler = func(ctx context.Context, tx pgx.Tx, _ Event) error { return run[0].handler.set(ctx, tx, evs) }
	}
	for _, it := range run {
		it.called = true
	}
	began := time.Now()
	err = s.apply(ctx, turn, handler, tx, run[0].event())
	s.processor.calls.tell(run[0].ev.Type, began)
	if err == aside.ErrLeft { //nolint:errorlint // as in apply
		return err
	}
	if err != nil {
		for _, it := range run {
			it.broke = errors.Is(err, errBroken)
		}
		return err
	}
	for _, it := range run {
		it.end = ending{outcome: Processed}
	}
	return nil
}

// unhandled gives up an event without a handler, so that no program that has one
// applies it beside its letter. One of no class cannot be claimed.
func (s *steps) unhandled(ctx context.Context, ev Event, cause error) Delivery {
	if s.processor.windows.index(ev.Type) < 0 {
		return s.quarantine(ctx, letter{record: ev.Record(), event: ev, reason: reasonNoHandler, cause: cause})
	}
	it := s.processor.newItem(ev)
	it.handler = &handler{}
	err := s.inTx(ctx, []*item{it}, func(tx pgx.Tx) error {
		return s.giveUp(ctx, tx, it, givenUp(it, reasonNoHandler, cause, 0))
	})
	return it.after(err)
}

// quarantine keeps a record that no handler can take.
func (s *steps) quarantine(ctx context.Context, l letter) Delivery {
	it := &item{ev: Event{Source: l.record.Source, raw: &l.record}}
	err := s.inTx(ctx, []*item{it}, func(tx pgx.Tx) error {
		err := s.processor.letters.lookForParked(ctx, tx, []*item{it})
		l.parked = it.parked
		it.end = ending{outcome: DeadLettered, letter: &l}
		return err
	})
	d := it.after(err)
	if d.Err != nil {
		d.Err = fmt.Errorf("keep record %s: %w", l.record.Source, d.Err)
	}
	return d
}

// fail gives the error to all items that have none and are not finished.
func fail(items []*item, err error) {
	for _, it := range items {
		if it.delivery.Err == nil && it.delivery.Outcome == 0 {
			it.delivery.Err = err
		}
	}
}
