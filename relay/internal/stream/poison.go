package stream

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/printed"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/letters"
)

// letterStore keeps what cannot be published. [letters.Store] is the one, over the pump's
// own connection.
type letterStore interface {
	Ended(ctx context.Context, id uuid.UUID, commit pglogrepl.LSN) (bool, error)
	Parked(row *outbox.Row, commit pglogrepl.LSN) bool
	ParkedCount() int
	// LastBefore returns where the newest letter stands of the event's aggregate
	// that is older than the event, by seq; 0 without any.
	LastBefore(ctx context.Context, row *outbox.Row) (pglogrepl.LSN, error)
	// Admit parks an event's aggregate, if that is what its letter does; the
	// letter itself is written later, by park. It refuses one aggregate too many.
	Admit(dead *letters.Dead) *publisher.RouteError
	Write(ctx context.Context, dead ...letters.Dead) error
	// Skip reports whether it was done: the command may have been taken back.
	Skip(ctx context.Context, dead letters.Dead) (done bool, err error)
	// LaneOf returns what a retry of one letter waits behind; zero without such
	// a letter.
	LaneOf(ctx context.Context, id uuid.UUID) (ledger.Lane, error)
	// Apply returns nil when nothing is to be published.
	// What one that waited releases is settled when the control is forgotten.
	Apply(ctx context.Context, c *cdc.Control, bad error, at pglogrepl.LSN, waited bool) (pages, error)
	// Reopen takes back what a control released, from one of its letters on.
	Reopen(ctx context.Context, c *cdc.Control, from uint32) error
	Settle(ctx context.Context, checkpoint pglogrepl.LSN) error
}

// followers is how many letters go to the database at once.
const followers = 256

// unwritten is an event that has ended but for its letter.
type unwritten struct {
	tag uint64
	key string // of a poison event; empty: it follows its aggregate
}

// follow puts an event behind the letters of its aggregate.
func (p *Pump) follow(ctx context.Context, s *step) error {
	return p.keep(ctx, letters.Dead{
		Row: s.it.Row, Commit: s.at.Commit, Class: letters.ClassFollows, Cause: "an older letter holds its aggregate", Holds: true,
	}, unwritten{tag: s.tag})
}

// keep has a letter written, together with others, at the latest before
// anything else is settled.
func (p *Pump) keep(ctx context.Context, dead letters.Dead, u unwritten) error {
	p.following = append(p.following, dead)
	p.followed = append(p.followed, u)
	p.followSize += dead.Size()
	if len(p.following) < followers && p.followSize < letters.BatchBytes {
		return nil
	}
	return p.writeLetters(ctx)
}

// writeLetters writes the letters that are not written yet, in one transaction of the
// database.
func (p *Pump) writeLetters(ctx context.Context) error {
	if len(p.following) == 0 {
		return nil
	}
	fault.Crash(fault.BeforeLetter)
	if err := p.letters.Write(ctx, p.following...); err != nil {
		return err
	}
	fault.Crash(fault.AfterLetter)
	for i, u := range p.followed {
		dead := &p.following[i]
		if u.key != "" {
			p.log.ErrorContext(ctx, "event cannot be published; it is kept as a dead letter", "key", u.key,
				"position", dead.Commit.String(), "holds_aggregate", dead.Parks(), "error", dead.Cause)
		}
		delete(p.refused, dead.ID()) // the letter says it now
		if err := p.end(u.tag, ledger.Letter); err != nil {
			return err
		}
	}
	p.counts.Parked(len(p.following), p.letters.ParkedCount())
	clear(p.following)
	clear(p.followed)
	p.following, p.followed, p.followSize = p.following[:0], p.followed[:0], 0
	return nil
}

// poison keeps an event that can never become a record as a dead letter, and parks its
// aggregate, as the policy of its route says. A replay gets its letter and holds
// nothing. Where its kind has parked as many aggregates as it may, the event waits,
// and its lane with it.
func (p *Pump) poison(ctx context.Context, t *decision) error {
	dead := letters.Dead{
		Row: t.it.Row, Replay: t.it.Replay, Commit: t.at.Commit, Class: t.class, Cause: t.cause.Error(), Holds: p.routing.policy(t.it.Row) == PolicyParkAggregate,
	}
	if full := p.letters.Admit(&dead); full != nil {
		return full
	}
	return p.keep(ctx, dead, unwritten{tag: t.tag, key: printed.Key(t.it.Row)})
}

// halt waits for the operator's command about an event that can never become a
// record.
func (p *Pump) halt(ctx context.Context, t *decision) error {
	if err := p.writeLetters(ctx); err != nil {
		return err
	}
	return p.awaitCommand(ctx, t.step, fmt.Errorf("%w; its route has the policy halt", explain(t.step, t.cause)),
		fmt.Sprintf("mend the cause and start the relay again, or `outboxctl skip %s --relay %s --reason \"…\"`", printed.Argument(t.it.Row.Namespace, t.it.Row.ID), p.routing.relay))
}

// awaitCommand waits for the operator's command about one event, with everything behind it.
// What was handed over before it is settled, and the session is kept. The letter
// keeps the cause, without the cure, which is no use any more.
func (p *Pump) awaitCommand(ctx context.Context, s *step, cause error, cure string) error {
	why := fmt.Errorf("%w: %s", cause, cure)
	p.log.ErrorContext(ctx, "halted: an operator has to decide about an event", "key", printed.Key(s.it.Row), "position", s.at.Commit.String(), "error", why)
	p.Tell(phaseHalted, why)
	for id := s.id(); ; {
		if p.Commands().Skips(id) {
			if done, err := p.skip(ctx, s, cause.Error()); done || err != nil {
				p.Tell(phaseStreams, nil)
				return err
			}
		}
		if err := p.pause(ctx); err != nil {
			return err
		}
	}
}

// haltForGood waits for the end of the process: what is wrong is mended outside, and
// what the relay knows of it would be lost with a restart of its own.
func (p *Pump) haltForGood(ctx context.Context, why error) error {
	if err := p.writeLetters(ctx); err != nil {
		return err
	}
	p.log.ErrorContext(ctx, "halted until the relay is started again", "error", why)
	p.Tell(phaseHalted, why)
	for {
		if err := p.pause(ctx); err != nil {
			return err
		}
	}
}

// pause lets time pass while nothing is published.
func (p *Pump) pause(ctx context.Context) error {
	if err := p.mode.settle(ctx, time.Now(), true); err != nil {
		return err
	}
	timer := time.NewTimer(pulse)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.commanded: // a command
	case <-p.sink.Failed():
		return p.sink.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
