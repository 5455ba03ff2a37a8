package fences

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

// Settled is what was done about a fence.
type Settled struct {
	Key    string   `json:"key"`
	Group  string   `json:"group"`
	Name   string   `json:"name"`
	Did    string   `json:"did"` // made, not-made or released
	Reason string   `json:"reason"`
	Epoch  int64    `json:"epoch"`
	Notes  []string `json:"notes"`
}

// ErrMoved: the compare-and-set did not find the fence as it was seen.
var ErrMoved = errors.New("nothing was changed: an attempt has taken the fence, or its lease has run out, since it was looked at; look again with `outboxctl fences show KEY`")

// One says which fence is meant; an empty group or name is any.
type One struct {
	Key         operator.Name
	Group, Name string
}

// settling is one fence about which somebody decides.
type settling struct {
	key    operator.Name
	fence  Fence
	letter *letters.GroupLetter // of the event, with which it waits; nil: none
}

// settlement is what is to be done about a fence.
type settlement struct {
	question string
	given    operator.Name
	of       *settling
	write    func(ctx context.Context, q *consumerdb.Queries, reason string) (*Settled, error)
}

// PlanMade says that the effect of a fence was made. It changes nothing. The type of the
// event is given where the fence does not keep its event; the result is what deliveries
// get, and nil is none.
func PlanMade(ctx context.Context, db *operator.Database, one One, eventType string,
	result []byte) (operator.Order[*Settled], error) {
	s, err := reconcilable(ctx, db, one)
	if err != nil {
		return nil, err
	}
	claim, err := s.claimOf(ctx, consumerdb.New(db), eventType)
	if err != nil {
		return nil, err
	}
	claim.result = result
	return &settlement{"record that the " + s.effect() + " was made", one.Key, s, func(ctx context.Context, q *consumerdb.Queries, reason string) (*Settled, error) {
		return s.made(ctx, q, claim, reason)
	}}, nil
}

// PlanNotMade lets the next attempt make the effect. It changes nothing.
func PlanNotMade(ctx context.Context, db *operator.Database, one One) (operator.Order[*Settled], error) {
	s, err := reconcilable(ctx, db, one)
	if err != nil {
		return nil, err
	}
	return &settlement{"let the next attempt make the " + s.effect(), one.Key, s, s.notMade}, nil
}

// PlanRelease ends the lease of an attempt that is known to be dead. It changes nothing.
func PlanRelease(ctx context.Context, db *operator.Database, one One) (operator.Order[*Settled], error) {
	s, err := findPending(ctx, db, one)
	if err != nil {
		return nil, err
	}
	if !s.fence.Live {
		return nil, fmt.Errorf("the lease of fence %q ran out at %s: the next attempt takes it without waiting", s.fence.Name, terminal.Stamp(&s.fence.LeaseUntil))
	}
	return &settlement{
		fmt.Sprintf("end the lease of fence %q of %s, which an attempt of group %s holds until %s", s.fence.Name, s.key, s.fence.Group, terminal.Stamp(&s.fence.LeaseUntil)), one.Key, s, s.release,
	}, nil
}

// Question implements [operator.Order].
func (d *settlement) Question() string { return d.question }

// CarryOut settles the fence, if it is as it was when it was planned.
func (d *settlement) CarryOut(ctx context.Context, db *operator.Database, reason string) (*Settled, error) {
	report, err := d.write(ctx, consumerdb.New(db), reason)
	if err != nil {
		return nil, explainFence(err)
	}
	f := d.of.fence
	report.Key, report.Group, report.Name = d.given.String(), f.Group, f.Name
	report.Reason, report.Epoch = reason, f.Epoch+1
	return report, nil
}

// findPending finds the PENDING fence that is meant, and its event's letter.
func findPending(ctx context.Context, db *operator.Database, one One) (s *settling, err error) {
	s = &settling{key: one.Key}
	if s.fence, err = onePending(ctx, db, one); err != nil {
		return nil, err
	}
	if kept := s.fence.event.Key; kept != "" {
		if s.key, err = operator.ParseName(kept); err != nil {
			return nil, err
		}
	}
	if err := s.findLetter(ctx, consumerdb.New(db)); err != nil {
		return nil, fmt.Errorf("look for a dead letter of the event: %w", operator.Explain(err, migrations.Consumer))
	}
	return s, nil
}

// reconcilable finds a PENDING fence that no attempt holds.
func reconcilable(ctx context.Context, db *operator.Database, one One) (*settling, error) {
	s, err := findPending(ctx, db, one)
	if err == nil && s.fence.Live {
		return nil, fmt.Errorf("an attempt holds the lease of fence %q until %s: wait for its end or, when it is known to be dead, `outboxctl fences release %s --group %s --name %s --reason \"…\"`",
			s.fence.Name, terminal.Stamp(&s.fence.LeaseUntil), s.key, terminal.Word(s.fence.Group),
			terminal.Word(s.fence.Name))
	}
	return s, err
}

// effect names what the fence guards.
func (s *settling) effect() string {
	return fmt.Sprintf("effect %q of %s for group %s", s.fence.Name, s.key, s.fence.Group)
}

// onePending finds the PENDING fence that is meant.
func onePending(ctx context.Context, db *operator.Database, one One) (f Fence, err error) {
	all, err := OfEvent(ctx, consumerdb.New(db), one.Key, one.Group, one.Name)
	if err != nil {
		return f, fmt.Errorf("look for the fence: %w", operator.Explain(err, migrations.Consumer))
	}
	var pending []Fence
	var names []string
	for _, v := range all {
		if v.Status == states.FencePending {
			pending, names = append(pending, v), append(names, fmt.Sprintf("%s of group %s", v.Name, v.Group))
		}
	}
	switch {
	case len(pending) == 0:
		return f, fmt.Errorf("no PENDING fence of %s is meant; `outboxctl fences show %s` tells what there is", one.Key, one.Key)
	case len(pending) > 1:
		return f, operator.Unclear("which fence? there are %s; give --group and --name", strings.Join(names, ", "))
	}
	return pending[0], nil
}

// findLetter looks for the letter of the event whose redrive goes on with it.
func (s *settling) findLetter(ctx context.Context, q *consumerdb.Queries) error {
	found, err := letters.UnsettledOfEvent(ctx, q, s.key, s.fence.Group)
	for i, l := range found {
		if !slices.Contains([]string{states.CauseMismatch, states.CauseUnreadable}, l.Cause) {
			s.letter = &found[i]
			break
		}
	}
	return err
}

// next says who does what is to be done now. An event with a letter that waits is
// left alone by deliveries and the recovery job.
func (s *settling) next(does string) string {
	switch l := s.letter; {
	case l == nil:
		return "the next delivery, or the recovery job of the group, " + does
	case l.State == states.LetterOpen:
		return fmt.Sprintf("the dead letter %s of the event waits, and only its redrive %s: `outboxctl dead redrive %s --group %s --reason \"…\"`", l.Place, does, l.Place, terminal.Word(l.Group))
	default:
		return fmt.Sprintf("the dead letter %s of the event is %s: a member of the group handles it, and %s", l.Place, l.State, does)
	}
}

func (s *settling) release(ctx context.Context, q *consumerdb.Queries, reason string) (*Settled, error) {
	n, err := q.EndLease(ctx, consumerdb.EndLeaseParams{
		EventID: s.key.ID, ConsumerGroup: s.fence.Group, Name: s.fence.Name, Epoch: s.fence.Epoch,
		Target: targetOf(s.key, s.fence.Name), Reason: reason,
	})
	return &Settled{Did: "released", Notes: []string{s.next("takes the fence over")}}, moved(n, err)
}

func (s *settling) notMade(ctx context.Context, q *consumerdb.Queries, reason string) (*Settled, error) {
	n, err := q.FenceNotMade(ctx, consumerdb.FenceNotMadeParams{
		EventID: s.key.ID, ConsumerGroup: s.fence.Group, Name: s.fence.Name, Epoch: s.fence.Epoch,
		Target: targetOf(s.key, s.fence.Name), Reason: reason,
		Keep: keepFor(0),
	})
	note := s.next("makes the effect")
	if s.ended() {
		note = "the event has ended, so that nobody makes the effect, unless a handler is called for the event again"
	}
	return &Settled{Did: "not-made", Notes: []string{note}}, moved(n, err)
}

// ended reports whether the handler has ended the event without this effect: then
// nothing keeps the event.
func (s *settling) ended() bool { return !s.fence.Alone && s.fence.event.Type == "" }

func moved(n int64, err error) error {
	if err == nil && n == 0 {
		return ErrMoved
	}
	return err
}

// explainFence names what makes the partition that a claim lacks.
func explainFence(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "23514" {
		return fmt.Errorf("%w; the day of the claim has no partition: run `outboxctl partitions maintain --side consumer`", err)
	}
	return operator.Explain(err, migrations.Consumer)
}
