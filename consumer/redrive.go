package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/internal/memory"
	"github.com/onceward/onceward/consumer/internal/transaction"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/record"
)

// redriver handles letters again, and what was parked behind them.
type redriver struct{ *Router }

// all handles what was asked for, then what has its turn by now.
func (d redriver) all(ctx context.Context, limit int) (done int, err error) {
	after := Source{Partition: -1, Offset: -1}
	for done < limit {
		made, taken := d.redriveNext(ctx, after)
		if made.decided {
			done++
		}
		if made.err != nil && err == nil {
			err = fmt.Errorf("redrive: %w", made.err)
		}
		if taken == nil || ctx.Err() != nil {
			break
		}
		after = taken.source()
	}
	released, releaseErr := d.release(ctx, limit-done)
	if err == nil {
		err = releaseErr
	}
	return done + released, err
}

// requested is a letter that is handled again: an operator has asked for it, or it
// was parked and has its turn.
type requested consumerdb.NextRequestedLetterRow

// source is the place of the letter.
func (l *requested) source() Source {
	return Source{Topic: l.Topic, Partition: l.KafkaPartition, Offset: l.KafkaOffset}
}

// read is where its record was read, also when the letter is kept aside; zero for that of
// an event from no topic.
func (l *requested) read() Source {
	src := l.source()
	if strings.HasPrefix(src.Topic, fromMark) {
		return Source{}
	}
	src.Topic, _, _ = strings.Cut(src.Topic, asideMark)
	src.TopicID = l.TopicID
	return src
}

// decision is what became of a letter; err is a failure that leaves it as it is.
type decision struct {
	decided bool
	err     error
}

// redriveNext redrives the next letter after a place. It returns the letter, nil
// when there is none or none could be asked for.
func (d redriver) redriveNext(ctx context.Context, after Source) (decision, *requested) {
	row, err := consumerdb.New(d.processor.db).NextRequestedLetter(ctx, consumerdb.NextRequestedLetterParams{
		ConsumerGroup: d.processor.group, Topic: after.Topic, KafkaPartition: after.Partition,
		KafkaOffset: after.Offset,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return decision{}, nil
	}
	if err != nil {
		return decision{err: &infrastructureError{fmt.Errorf("take a letter: %w", err)}}, nil
	}
	l := (*requested)(&row)
	return d.decide(ctx, l), l
}

// decide handles a letter again, and says what became of it.
func (d redriver) decide(ctx context.Context, l *requested) decision {
	if l.State == stateParked && reason(l.Reason) != reasonParked {
		return d.processor.letters.stopRelease(ctx, l)
	}
	outcome, err := d.redrive(ctx, l)
	switch {
	case errors.Is(err, errDecided):
		return decision{}
	case IsInfrastructure(err), errors.Is(err, ErrInstallation):
		return decision{err: fmt.Errorf("letter %s: %w", l.source(), err)}
	case err != nil:
		return d.reopen(ctx, l, err)
	case outcome == InProgress:
		return decision{}
	}
	d.processor.log.InfoContext(ctx, "dead letter redriven", "source", l.source().String(), "outcome", outcome.String())
	return decision{decided: true}
}

// redrive delivers the event of a letter; its transactions lock the letter, and
// settle it. An error that is none of infrastructure says why it stays a letter.
func (d redriver) redrive(ctx context.Context, l *requested) (Outcome, error) {
	ev, err := l.event(d.processor)
	if err != nil {
		return 0, err
	}
	if err := d.processor.letters.name(ctx, l, ev); err != nil {
		return 0, err
	}
	h, err := d.handlers.get(ev.Type)
	if err != nil {
		return 0, err
	}
	if h.ignored {
		return 0, fmt.Errorf("event type %q is ignored by this group; discard the letter, or register a handler", ev.Type)
	}
	it := d.processor.newItem(ev)
	it.handler, it.redrive, it.tries = h, l, memory.Tries(it.id, it.content, l.source())
	starts, may, err := d.processor.attempts.start(ctx, it.tries)
	switch {
	case err != nil:
		return 0, err
	case !may:
		return d.processor.attempts.usedUp(ctx, it.tries)
	}
	defer d.processor.attempts.end(ctx, it.tries, starts)
	d.steps.deliver(ctx, []*item{it})
	return it.delivery.Outcome, it.delivery.Err
}

// name has the letter of a record that nobody could read hold its event from now on,
// whatever becomes of the redrive: its handler may leave effects.
func (ls *letters) name(ctx context.Context, l *requested, ev Event) error {
	if reason(l.Reason) != reasonMalformed {
		return nil
	}
	id, claim, sum := ev.Key.UUID(), ls.claimID(ev), ev.Fingerprint()
	namespace := ev.Key.Namespace()
	n, err := consumerdb.New(ls.db).NameLetterEvent(ctx, consumerdb.NameLetterEventParams{
		ConsumerGroup: ls.group, Topic: l.Topic, KafkaPartition: l.KafkaPartition, KafkaOffset: l.KafkaOffset,
		Was: l.State, Generation: l.Generation,
		EventID: &id, Namespace: &namespace, EventType: &ev.Type, ClaimID: &claim, Fingerprint: sum[:],
	})
	switch {
	case err != nil:
		return unusable(fmt.Errorf("name the event of the letter: %w", err))
	case n == 0:
		return errDecided
	}
	return nil
}

// lock keeps a letter from being decided about for as long as the transaction
// takes.
func (ls *letters) lock(ctx context.Context, tx pgx.Tx, l *requested) error {
	if err := ls.inTurn(ctx, tx, l); err != nil {
		return err
	}
	_, err := consumerdb.New(tx).LockRequestedLetter(ctx, consumerdb.LockRequestedLetterParams{
		ConsumerGroup: ls.group, Topic: l.Topic, KafkaPartition: l.KafkaPartition, KafkaOffset: l.KafkaOffset,
		Was: l.State, Generation: l.Generation,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return errDecided
	}
	if err != nil {
		return fmt.Errorf("lock the letter: %w", err)
	}
	return nil
}

// event reads the letter's record again, as the program reads records now.
func (l *requested) event(p *Processor) (Event, error) {
	if reason(l.Reason) == reasonMismatch {
		return Event{}, errors.New("this event carries the key of another one that was applied, so that it can never be; publish it under a new key, then discard the letter")
	}
	headers, err := record.LoadHeaders(l.RecordHeaders)
	if err != nil {
		return Event{}, err
	}
	ev, err := p.parse(Record{Source: l.read(), Key: l.RecordKey, Value: l.RecordValue, Headers: headers})
	if err != nil {
		return Event{}, err
	}
	ev.redriven, ev.unseen, ev.arrived, ev.claimed = true, l.firstSight(p, &ev), l.CreatedAt, reason(l.Reason).claims()
	return ev, nil
}

// firstSight reports whether the letter says that the group had not applied its event:
// it was late, or its claim was new. Where replays are applied, one may have that too;
// and of what could not be read nobody has asked whether it was a copy.
func (l *requested) firstSight(p *Processor, ev *Event) bool {
	why := reason(l.Reason)
	if why == reasonLate || why == reasonReplay {
		return why == reasonLate
	}
	if why == reasonMalformed {
		return !p.copied(ev)
	}
	class := p.windows.index(ev.Type)
	return class < 0 || p.windows.known.Load().of[class].replay == ReplayDeadLetter
}

// refusedAgain is the error of a letter whose event cannot be claimed even by an
// operator's command.
func refusedAgain(c Claim) error {
	switch {
	case c.Mismatch != nil:
		return c.Mismatch
	case c.Outcome == FromFuture:
		return errors.New("the event time has still not come: a copy that is delivered later would be applied again; redrive the letter then")
	}
	return fmt.Errorf("the event cannot be claimed: %s", c.Outcome)
}

// settle ends the redrive of a letter.
func (ls *letters) settle(ctx context.Context, tx pgx.Tx, l *requested) error {
	n, err := consumerdb.New(tx).RedriveLetter(ctx, consumerdb.RedriveLetterParams{
		Keep: consumerdb.Interval(consumerdb.LettersKept), ConsumerGroup: ls.group, Topic: l.Topic,
		KafkaPartition: l.KafkaPartition, KafkaOffset: l.KafkaOffset,
		Was: l.State, Generation: l.Generation,
	})
	switch {
	case err != nil:
		return fmt.Errorf("settle the letter: %w", err)
	case n == 0:
		return errDecided
	case !l.queued():
		return nil
	}
	return ls.unpark(ctx, tx, l.Topic, l.RecordKey)
}

// errDecided: an operator, or another member that has the same event of a
// [FuncHandler], was faster. What is said of the letter by now stands.
var errDecided = &infrastructureError{errors.New("the letter was decided about meanwhile")}

// reopen gives the letter back to the operators, in a transaction of its own,
// because that of the attempt has failed.
func (d redriver) reopen(ctx context.Context, l *requested, cause error) decision {
	reopened, err := d.reopenIn(ctx, l, cause)
	if err != nil {
		return decision{err: fmt.Errorf("open letter %s again: %w", l.source(), errors.Join(err, cause))}
	}
	if reopened {
		d.processor.log.WarnContext(ctx, "dead letter not redriven; it is open again", "source", l.source().String(), "error", cause)
	}
	return decision{decided: reopened}
}

func (d redriver) reopenIn(ctx context.Context, l *requested, cause error) (bool, error) {
	var handler *HandlerError
	var crash *crashError
	var mismatch *MismatchError
	var tried int32
	if errors.As(cause, &handler) {
		tried = 1
	}
	tx, err := d.processor.windows.begin(ctx)
	if err != nil {
		return false, err
	}
	defer transaction.Rollback(ctx, tx)
	if errors.As(cause, &crash) {
		tried = crash.times
		if err := d.processor.attempts.forget(ctx, tx, crash.id, tried); err != nil {
			return false, judge(ctx, tx, err)
		}
	}
	n, err := consumerdb.New(tx).ReopenLetter(ctx, consumerdb.ReopenLetterParams{
		Error: consumerdb.Reason(cause), Tried: tried, Crashed: crash != nil,
		Mismatch:      handler == nil && errors.As(cause, &mismatch),
		ConsumerGroup: d.processor.group, Topic: l.Topic, KafkaPartition: l.KafkaPartition, KafkaOffset: l.KafkaOffset,
		Was: l.State, Generation: l.Generation,
	})
	if err != nil {
		return false, judge(ctx, tx, err)
	}
	return n == 1, d.steps.commit(ctx, tx)
}
