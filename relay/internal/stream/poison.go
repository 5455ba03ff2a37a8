package stream

import (
	"context"

	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/relay/internal/letters"
)

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
	return p.keep(ctx, dead, unwritten{tag: t.tag, key: label.Key(t.it.Row)})
}
