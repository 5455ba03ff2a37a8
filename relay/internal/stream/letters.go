package stream

import (
	"context"
	"log/slog"

	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/relay/internal/letters"
)

// followers is how many letters go to the database at once.
const followers = 256

// unwritten is an event that has ended but for its letter.
type unwritten struct {
	tag uint64
	key string // of a poison event; empty: it follows its aggregate
}

// deadLetters are the letters of a session: those that its store has, and those that
// are on their way to it, which are written together.
type deadLetters struct {
	*progress
	store   letterStore
	refused Refused
	log     *slog.Logger

	following []letters.Dead // to be written
	followed  []unwritten
	size      int // of them in memory, in bytes
}

// follow puts an event behind the letters of its aggregate.
func (d *deadLetters) follow(ctx context.Context, s *step) error {
	return d.keep(ctx, letters.Dead{
		Row: s.it.Row, Commit: s.at.Commit, Class: letters.ClassFollows, Cause: "an older letter holds its aggregate", Holds: true,
	}, unwritten{tag: s.tag})
}

// keep has a letter written, together with others, at the latest before
// anything else is settled.
func (d *deadLetters) keep(ctx context.Context, dead letters.Dead, u unwritten) error {
	d.following = append(d.following, dead)
	d.followed = append(d.followed, u)
	d.size += dead.Size()
	if len(d.following) < followers && d.size < letters.BatchBytes {
		return nil
	}
	return d.write(ctx)
}

// write writes the letters that are not written yet, in one transaction of the
// database.
func (d *deadLetters) write(ctx context.Context) error {
	if len(d.following) == 0 {
		return nil
	}
	fault.Crash(fault.BeforeLetter)
	if err := d.store.Write(ctx, d.following...); err != nil {
		return err
	}
	fault.Crash(fault.AfterLetter)
	for i, u := range d.followed {
		dead := &d.following[i]
		if u.key != "" {
			d.log.ErrorContext(ctx, "event cannot be published; it is kept as a dead letter", "key", u.key,
				"position", dead.Commit.String(), "holds_aggregate", dead.Parks(), "error", dead.Cause)
		}
		delete(d.refused, dead.ID()) // the letter says it now
		if err := d.end(u.tag, ledger.Letter); err != nil {
			return err
		}
	}
	d.counts.Parked(len(d.following))
	clear(d.following)
	clear(d.followed)
	d.following, d.followed, d.size = d.following[:0], d.followed[:0], 0
	return nil
}

// poison keeps an event that can never become a record as a dead letter, and parks its
// aggregate, as the policy of its route says. A replay gets its letter and holds
// nothing. Where its kind has parked as many aggregates as it may, the event waits,
// and its lane with it.
func (d *deadLetters) poison(ctx context.Context, t *decision) error {
	dead := letters.Dead{
		Row: t.it.Row, Replay: t.it.Replay, Commit: t.at.Commit, Class: t.class, Cause: t.cause.Error(),
		Holds: t.policy == PolicyParkAggregate,
	}
	if full := d.store.Admit(&dead); full != nil {
		return full
	}
	return d.keep(ctx, dead, unwritten{tag: t.tag, key: label.Key(t.it.Row)})
}

// skip ends an event because an operator said so, and reports whether it did: the
// command may have been taken back.
func (d *deadLetters) skip(ctx context.Context, s *step, cause string) (done bool, err error) {
	if err := d.write(ctx); err != nil {
		return false, err
	}
	dead := letters.Dead{Row: s.it.Row, Replay: s.it.Replay, Commit: s.at.Commit, Cause: cause}
	if done, err = d.store.Skip(ctx, dead); err != nil || !done {
		return false, err
	}
	fault.Crash(fault.AfterSkip)
	delete(d.refused, dead.ID())
	d.log.WarnContext(ctx, "event skipped: an operator said so", "key", label.Key(s.it.Row), "position", s.at.Commit.String())
	d.counts.Skipped(skippedByCommand)
	return true, d.end(s.tag, ledger.Skipped)
}

// findLane looks up what a retry of one letter waits behind: whatever later
// event of the letter's aggregate comes, comes after it.
func (d *deadLetters) findLane(ctx context.Context, s *step) (err error) {
	if err = d.write(ctx); err != nil { // the letter may be among them
		return err
	}
	s.letter, err = d.store.LaneOf(ctx, s.it.Control.LetterID)
	return err
}

// apply lets a control act, and returns what it releases; nil: nothing is to be published.
func (d *deadLetters) apply(ctx context.Context, s *step) (pages, error) {
	if err := d.write(ctx); err != nil { // they may be what it is about
		return nil, err
	}
	released, err := d.store.Apply(ctx, s.it.Control, s.it.Bad, s.at.Commit, s.released)
	if err != nil {
		return nil, err
	}
	fault.Crash(fault.AfterRetrying)
	d.counts.Control(s.it.Control.Action)
	return released, nil
}

// place is the position of an event that comes from the table: as given, or behind
// the letters of its aggregate that are older, which may stand beyond it. What a repair
// brings has no position of its own: it is placed among the letters by its seq, and
// one that is older than all of them comes first.
func (d *deadLetters) place(ctx context.Context, row *outbox.Row, at pglogrepl.LSN,
	repairing bool) (pglogrepl.LSN, error) {
	last, oldest, err := d.store.Around(ctx, row)
	switch {
	case !repairing || oldest == 0:
		return max(at, last), err
	case last == 0:
		return min(at, oldest), err
	}
	return last, err
}
