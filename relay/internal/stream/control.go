package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/letters"
)

// retry is what a control has released, while it is published. After a
// [publisher.RouteError] it goes on where it stopped. A session that finds part
// of the release committed begins behind that part.
type retry struct {
	p     *Pump
	pages pages
	page  []*letters.Letter // what is left of the present one
	over  bool
	from  uint32 // those before are out
}

// run publishes all of it, and ends the control.
func (r *retry) run(ctx context.Context, s *step) error {
	p := r.p
	for {
		if err := r.publishPage(ctx, s); err != nil {
			return err
		}
		if r.over {
			break
		}
		if err := p.settle(ctx, false); err != nil {
			return err
		}
	}
	// The letters have no tags: what they wait for is the control's.
	if err := p.mode.lettersEnded(ctx); err != nil {
		return fmt.Errorf("publish what control %s released: %w", s.it.Control.ID, err)
	}
	return p.end(s.tag, ledger.Acknowledged)
}

// publishPage publishes one page of letters.
func (r *retry) publishPage(ctx context.Context, s *step) (err error) {
	if len(r.page) == 0 {
		if r.page, err = r.pages.Next(ctx); err != nil {
			return err
		}
		r.over = len(r.page) == 0
	}
	for len(r.page) > 0 {
		l := r.page[0]
		at := s.at
		at.Letter = l.Index
		if !r.isOut(s, at) {
			if err := r.letter(ctx, s, l); err != nil {
				return err
			}
		}
		s.at.Letter = l.Index + 1
		r.p.reading.passed(s.at, s.released)
		if len(r.page) > 0 && r.page[0] == l {
			r.page = r.page[1:]
		}
		if err := r.p.settleAmid(ctx, int(l.Index)); err != nil {
			return err
		}
	}
	return nil
}

// isOut reports whether a letter was out when the session began, or when its
// control was held.
func (r *retry) isOut(s *step, at ledger.Place) bool {
	return at.Letter < r.from || !s.released && r.p.reading.began.Ended(at)
}

// publish hands one letter over.
func (r *retry) publish(ctx context.Context, s *step, l *letters.Letter) error {
	p := r.p
	it := cdc.Item{Kind: cdc.KindEvent, Row: l.Row, Replay: l.Replay, CommitTime: s.it.CommitTime}
	released := step{it: &it, at: ledger.Place{Commit: l.Commit}, tag: noTag}
	ev := p.event(&released)
	ev.Again = true
	if paused := p.pausedRoute(ev); paused != nil {
		return paused
	}
	if err := p.hand(ctx, ev, time.Time{}); err != nil {
		return err
	}
	fault.Crash(fault.MidRetry)
	return p.mode.handed(&released)
}

// aside reports whether the retry of an aggregate goes on without a letter that was
// refused: that of a replay to a topic of its own, which cannot be used. It would
// hold all aggregates of the type for a topic that is none of theirs.
func (s *step) aside(l *letters.Letter, refused error) bool {
	var route *publisher.RouteError
	return s.it.Control.LetterID == uuid.Nil && l.Replay != nil && l.Replay.Topic != "" && errors.As(refused, &route) && !route.Passing
}

// letter publishes one letter, or opens it again, or gives it up.
func (r *retry) letter(ctx context.Context, s *step, l *letters.Letter) error {
	p := r.p
	if p.Commands().Skips(l.ID) {
		if done, err := r.skip(ctx, s, l); done || err != nil {
			return err
		}
	}
	err, class := l.Bad, letters.ClassRecord
	if why, ok := p.letters.refused[l.ID]; ok && r.pages.Again() { // the broker did, in the session before
		err = errors.New(why)
	} else if ok {
		delete(p.letters.refused, l.ID) // of another retry: its letter says so already
	}
	if err == nil {
		err = r.publish(ctx, s, l)
		if s.aside(l, err) {
			class = letters.ClassRoute
		} else if !errors.Is(err, publisher.ErrRecord) {
			return err
		}
	}
	if err := r.pages.Fail(ctx, l, class, err.Error()); err != nil {
		return err
	}
	delete(p.letters.refused, l.ID) // the letter says it now; the next retry asks the broker again
	p.log.ErrorContext(ctx, "a retried dead letter was refused again; it is open again, with the new reason", "key", l.Key(), "control", s.it.Control.ID, "error", err)
	if l.Holds { // the others that hold are behind it again
		rest := make([]*letters.Letter, 0, len(r.page))
		for _, other := range r.page[1:] {
			if !other.Holds {
				rest = append(rest, other)
			}
		}
		r.page = rest
	}
	return nil
}

// skip gives up a letter whose retry is under way, or held.
func (r *retry) skip(ctx context.Context, s *step, l *letters.Letter) (done bool, err error) {
	if done, err = r.pages.Skip(ctx, l); err != nil || !done {
		return false, err
	}
	delete(r.p.letters.refused, l.ID)
	r.p.log.WarnContext(ctx, "retried dead letter given up: an operator said so", "key", l.Key(), "control", s.it.Control.ID)
	return true, nil
}
