package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
)

// lettersKept is how long a letter is kept after it was redriven.
const lettersKept = 30 * 24 * time.Hour

// Redrive handles the group's dead letters again for which `outboxctl dead
// redrive` has asked, at most limit of them, and returns how many it has decided
// about: redriven, or open again with the reason why not.
//
// Claim, effect and the letter's new state are one transaction, which one member
// of the group has, so that the effect is made once whatever crashes, and while
// the same record is delivered again. The claim of an event that was given up
// becomes that of an event applied. An event outside its window is claimed by
// arrival, whatever its class says; one that was applied meanwhile is redriven
// without a second effect. A letter stays open that holds another event's key, a
// record that still cannot be read, an event whose time has not come, or whose
// type has no handler.
//
// The handler of [Router.Func] runs outside any transaction, on several members
// at once perhaps, and the letter is decided after it: [Fence] and [Do] make
// their effects once, as at every delivery.
//
// One failure of the handler opens the letter again. Failures of infrastructure
// leave it as it is, for the next call; so does a claim that is held elsewhere.
// The first such failure is returned after all letters have been tried.
// Call it now and then; saramagroup.Run does. Safe for concurrent use.
func (r *Router) Redrive(ctx context.Context, limit int) (done int, err error) {
	if r.err != nil {
		return 0, r.err
	}
	after := Source{Partition: -1, Offset: -1}
	for done < limit {
		d, taken := r.redriveNext(ctx, after)
		if d.decided {
			done++
		}
		if d.err != nil && err == nil {
			err = fmt.Errorf("redrive: %w", d.err)
		}
		if taken == nil || ctx.Err() != nil {
			break
		}
		after = taken.source()
	}
	return done, err
}

// requested is a letter whose redrive was asked for.
type requested consumerdb.TakeRequestedLetterRow

func (l *requested) source() Source {
	return Source{Topic: l.Topic, Partition: l.KafkaPartition, Offset: l.KafkaOffset}
}

// decision is what became of a letter; err is a failure that leaves it as it is.
type decision struct {
	decided bool
	err     error
}

// redriveNext redrives the next letter after a place. It returns the letter, nil
// when there is none or none could be asked for.
func (r *Router) redriveNext(ctx context.Context, after Source) (decision, *requested) {
	tx, err := r.steps.begin(ctx)
	if err != nil {
		return decision{err: err}, nil
	}
	defer rollback(ctx, tx)
	row, err := consumerdb.New(tx).TakeRequestedLetter(ctx, consumerdb.TakeRequestedLetterParams{
		ConsumerGroup: r.Group(), Topic: after.Topic, KafkaPartition: after.Partition, KafkaOffset: after.Offset,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return decision{}, nil
	}
	if err != nil {
		return decision{err: judge(ctx, tx, fmt.Errorf("take a letter: %w", err))}, nil
	}
	l := (*requested)(&row)
	outcome, err := r.redrive(ctx, tx, l)
	switch {
	case errors.Is(err, errDecided):
		return decision{}, l
	case IsInfrastructure(err):
		return decision{err: fmt.Errorf("letter %s: %w", l.source(), err)}, l
	case err != nil:
		rollback(ctx, tx) // or else the letter would wait for itself
		return r.reopen(ctx, l, err), l
	case outcome == InProgress:
		return decision{}, l
	}
	r.processor.log.InfoContext(ctx, "dead letter redriven", "source", l.source().String(), "outcome", outcome.String())
	return decision{decided: true}, l
}

// redrive handles the event of a letter, in the transaction that has locked the
// letter. An error that is none of infrastructure says why it stays a letter.
func (r *Router) redrive(ctx context.Context, tx pgx.Tx, l *requested) (Outcome, error) {
	ev, err := l.event()
	if err != nil {
		return 0, err
	}
	if r.ignored[ev.Type] {
		return 0, fmt.Errorf("event type %q is ignored by this group; discard the letter, or register a handler", ev.Type)
	}
	if fn := r.funcs[ev.Type]; fn != nil {
		rollback(ctx, tx)
		return r.redriveFunc(ctx, fn, l, ev)
	}
	handler, err := r.route(ev.Type)
	if err != nil {
		return 0, err
	}
	outcome, err := r.redriveTx(ctx, tx, handler, l, ev)
	return outcome, judge(ctx, tx, err)
}

func (r *Router) redriveTx(ctx context.Context, tx pgx.Tx, handler TxHandler, l *requested, ev Event) (Outcome, error) {
	claim, err := r.claimAgain(ctx, tx, ev)
	if err != nil || claim.Outcome == InProgress {
		return claim.Outcome, err
	}
	if claim.Outcome == Processed {
		ev.Late, ev.Unprotected = claim.Late, claim.Unprotected
		if err := r.steps.apply(ctx, handler, tx, ev); err != nil {
			return 0, err
		}
	}
	return claim.Outcome, r.settle(ctx, tx, l)
}

// claimAgain claims the event of a letter. Without an error the outcome is
// Processed, Duplicate or InProgress.
func (r *Router) claimAgain(ctx context.Context, tx pgx.Tx, ev Event) (Claim, error) {
	claim, err := r.steps.claim(ctx, tx, ev)
	if err != nil {
		return Claim{}, err
	}
	if claim.Outcome != Processed && claim.Outcome != Duplicate && claim.Outcome != InProgress {
		return Claim{}, refusedAgain(claim)
	}
	return claim, nil
}

// redriveFunc handles an event whose effects lie outside the database. The claim
// of one that was given up, and whose handler claims nothing, is revived here.
func (r *Router) redriveFunc(ctx context.Context, handler FuncHandler, l *requested, ev Event) (Outcome, error) {
	outcome, _, err := invoke(ctx, handler, ev)
	switch {
	case err != nil || outcome == InProgress:
		return outcome, err
	case outcome != Processed && outcome != Duplicate:
		return 0, refusedAgain(Claim{Outcome: outcome})
	}
	tx, err := r.steps.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer rollback(ctx, tx)
	if reason(l.Reason) == reasonHandler {
		claim, err := r.claimAgain(ctx, tx, ev)
		if err != nil || claim.Outcome == InProgress {
			return claim.Outcome, judge(ctx, tx, err)
		}
	}
	return outcome, judge(ctx, tx, r.settle(ctx, tx, l))
}

// event reads the letter's record again, as the program reads records now.
func (l *requested) event() (Event, error) {
	if reason(l.Reason) == reasonMismatch {
		return Event{}, errors.New("this event carries the key of another one that was applied, so that it can never be; publish it under a new key, then discard the letter")
	}
	headers, err := decodeHeaders(l.RecordHeaders)
	if err != nil {
		return Event{}, err
	}
	ev, err := EventFromRecord(l.RecordKey, l.RecordValue, headers)
	if err != nil {
		return Event{}, err
	}
	ev.Source, ev.redriven = l.source(), true
	return ev, nil
}

// refusedAgain is the error of a letter whose event cannot be claimed even by an
// operator's word.
func refusedAgain(c Claim) error {
	switch {
	case c.Mismatch != nil:
		return c.Mismatch
	case c.Outcome == FromFuture:
		return errors.New("the event time has still not come: a copy that is delivered later would be applied again; redrive the letter then")
	}
	return fmt.Errorf("the event cannot be claimed: %s", c.Outcome)
}

// settle ends the redrive of a letter, and the transaction.
func (r *Router) settle(ctx context.Context, tx pgx.Tx, l *requested) error {
	n, err := consumerdb.New(tx).RedriveLetter(ctx, consumerdb.RedriveLetterParams{
		Keep: interval(lettersKept), ConsumerGroup: r.Group(), Topic: l.Topic, KafkaPartition: l.KafkaPartition, KafkaOffset: l.KafkaOffset,
		Generation: l.Generation,
	})
	if err != nil {
		return fmt.Errorf("settle the letter: %w", err)
	}
	if n == 0 {
		return errDecided
	}
	return r.steps.commit(ctx, tx)
}

// errDecided: an operator, or another member that has the same event of a
// [FuncHandler], was faster. What is said of the letter by now stands.
var errDecided = &infrastructureError{errors.New("the letter was decided about meanwhile")}

// reopen gives the letter back to the operators, in a transaction of its own,
// because that of the attempt is spoilt.
func (r *Router) reopen(ctx context.Context, l *requested, cause error) decision {
	reopened, err := r.reopenIn(ctx, l, cause)
	if err != nil {
		return decision{err: fmt.Errorf("open letter %s again: %w", l.source(), errors.Join(err, cause))}
	}
	if reopened {
		r.processor.log.WarnContext(ctx, "dead letter not redriven; it is open again", "source", l.source().String(), "error", cause)
	}
	return decision{decided: reopened}
}

func (r *Router) reopenIn(ctx context.Context, l *requested, cause error) (bool, error) {
	var handler *HandlerError
	var tried int32
	if errors.As(cause, &handler) {
		tried = 1
	}
	tx, err := r.steps.begin(ctx)
	if err != nil {
		return false, err
	}
	defer rollback(ctx, tx)
	n, err := consumerdb.New(tx).ReopenLetter(ctx, consumerdb.ReopenLetterParams{
		Error: errorText(cause), Tried: tried, ConsumerGroup: r.Group(), Topic: l.Topic, KafkaPartition: l.KafkaPartition, KafkaOffset: l.KafkaOffset,
		Generation: l.Generation,
	})
	if err != nil {
		return false, judge(ctx, tx, err)
	}
	return n == 1, r.steps.commit(ctx, tx)
}

// claimTaken says what a claim that is in the way means. That of an event which
// was given up is no obstacle to its redrive: it is taken back and made afresh,
// in one transaction, so that who else wants the event meets one or the other.
func (p *Processor) claimTaken(ctx context.Context, q claimQueries, ev Event, given Fingerprint, ids []uuid.UUID) (Claim, error) {
	c, err := p.compareStored(ctx, q, ev, given, ids)
	if err != nil || !ev.redriven || c.Outcome != DeadLettered {
		return c, err
	}
	for _, id := range ids {
		if err := q.ReviveClaim(ctx, consumerdb.ReviveClaimParams{ConsumerGroup: p.group, EventID: id}); err != nil {
			return Claim{}, fmt.Errorf("claim %s: revive the claim of an event that was given up: %w", ev.Key, err)
		}
	}
	return p.claimWith(ctx, q, ev)
}
