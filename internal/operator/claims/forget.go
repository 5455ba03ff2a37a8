package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/fences"
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

// Forgotten is what a group has forgotten of an event.
type Forgotten struct {
	Key       string      `json:"key"`
	Group     string      `json:"group"`
	Reason    string      `json:"reason"`
	Forgotten []uuid.UUID `json:"forgotten"` // the ids of the claims
	Notes     []string    `json:"notes"`
}

// ForgetOrder makes a group forget an event.
type ForgetOrder struct {
	key   operator.Name
	group string
	found *Report
}

// PlanForget finds what there is to forget. It changes nothing. Where there is no claim
// there is no order, and a report says so.
func PlanForget(ctx context.Context, db *operator.Database, key operator.Name, group string) (*ForgetOrder, *Forgotten,
	error) {
	found, err := Read(ctx, db, key, group)
	if err != nil {
		return nil, nil, err
	}
	o := &ForgetOrder{key, group, found}
	if len(found.Claims) == 0 {
		return nil, o.report("", nil, found.Notes), nil
	}
	return o, nil, nil
}

// CarryOut forgets what was found.
func (o *ForgetOrder) CarryOut(ctx context.Context, db *operator.Database, reason string) (*Forgotten, error) {
	forgotten, err := o.found.forget(ctx, db, o.key, o.group, reason)
	if err != nil {
		return nil, operator.Explain(err, migrations.Consumer)
	}
	return o.report(reason, forgotten, o.found.afterwards(o.group)), nil
}

func (o *ForgetOrder) report(reason string, forgotten []uuid.UUID, notes []string) *Forgotten {
	return &Forgotten{Key: o.key.String(), Group: o.group, Reason: reason,
		Forgotten: append([]uuid.UUID{}, forgotten...), Notes: notes}
}

// Question also says what does without forgetting, where that is the shorter way.
func (o *ForgetOrder) Question() string {
	r, group := o.found, o.group
	first := r.Claims[0]
	q := fmt.Sprintf("forget that group %s has claimed %s (%s, %s), so that its next delivery applies it again", group, r.Key, first.Outcome, terminal.Stamp(&first.ClaimedAt))
	if w := r.refusing(); w != nil {
		q += fmt.Sprintf(" (below the floor of class %s a replayed copy of it becomes a dead letter; without forgetting, `outboxctl replay %s --reprocess %s --config FILE --reason \"…\"` has it applied)", w.class, r.Key, terminal.Word(group))
	}
	return q
}

// forget removes what was found; a fence that has begun since is respected by
// the statement.
func (r *Report) forget(ctx context.Context, db *operator.Database, key operator.Name, group,
	reason string) ([]uuid.UUID, error) {
	ids := []uuid.UUID{key.ID}
	for _, v := range r.Claims {
		ids = append(ids, v.ID)
	}
	forgotten, err := consumerdb.New(db).ForgetClaims(ctx, consumerdb.ForgetClaimsParams{
		ConsumerGroup: group, Ids: ids, EventID: key.ID, Target: key.String(), Reason: reason,
	})
	if err == nil && len(forgotten) == 0 {
		err = errors.New("nothing was forgotten: since it was looked at the claim is gone or an effect of the event has begun, or its dead letter waits: redrive or discard that first")
	}
	return forgotten, err
}

// Forgettable refuses while an effect outside the database is under way: nobody
// knows yet whether it was made.
func (o *ForgetOrder) Forgettable() error {
	r := o.found
	i := slices.IndexFunc(r.Fences, func(v fences.Fence) bool { return v.Status == states.FencePending })
	if i < 0 {
		return nil
	}
	f := r.Fences[i]
	return fmt.Errorf("fence %q of %s is PENDING: nobody knows yet whether its effect was made; settle it with `outboxctl fences reconcile %s --group %s --name %s --made --reason \"…\"`, or --not-made, then forget the claim",
		f.Name, r.Key, r.Key, terminal.Word(f.Group), terminal.Word(f.Name))
}

// afterwards says what delivers the event again, and what forgetting does not do.
func (r *Report) afterwards(group string) []string {
	notes := []string{r.deliverAgain(group)}
	var complete []string
	for _, f := range r.Fences {
		complete = append(complete, f.Name)
	}
	if len(complete) > 0 {
		notes = append(notes, fmt.Sprintf("its fences stay: the effects %s are not made again", strings.Join(complete, ", ")))
	}
	for _, l := range r.Letters {
		switch {
		case !l.Unsettled():
		case l.Cause == states.CauseMismatch:
			notes = append(notes, fmt.Sprintf("its dead letter %s has other content, and can never be applied: `outboxctl dead discard --side consumer %s --group %s --reason \"…\"`", l.Place, l.Place, terminal.Word(l.Group)))
		default:
			notes = append(notes, fmt.Sprintf("its dead letter %s still waits: `outboxctl dead redrive %s --group %s --reason \"…\"` or `outboxctl dead discard --side consumer %s --group %s --reason \"…\"`",
				l.Place, l.Place, terminal.Word(l.Group), l.Place, terminal.Word(l.Group)))
		}
	}
	return notes
}

// deliverAgain says what has a forgotten event applied, once. Where letters are asked, below
// the floor and by arrival, plain copies of one that was given up are left out; below the
// floor another by outboxctl becomes a letter, and one that the producer or the relay sends
// again is late. A reprocessing replay is claimed under an id of its own: copies meet the
// event's claim only, which is gone.
func (r *Report) deliverAgain(group string) string {
	plain := fmt.Sprintf("in the producer's database `outboxctl replay %s --config FILE --reason \"…\"`", r.Key)
	const alone = ". Not --reprocess as well: of what the one has applied the other does not know, so that it would be applied twice"
	w := r.class()
	below := w != nil && w.keyed != consumer.ByArrival && r.EventTime.Before(w.floor)
	switch {
	case w != nil && (below || w.keyed == consumer.ByArrival) &&
		slices.ContainsFunc(r.Letters, letters.GroupLetter.GivenUp):
		return fmt.Sprintf("the event was given up, so that plain copies of it are left out: in the producer's database "+
			"`outboxctl replay %s --reprocess %s --config FILE --reason \"…\"`", r.Key, terminal.Word(group))
	case r.refusing() == nil:
		return "nothing delivers it again by itself: " + plain + ", whose copies are applied once" + alone
	}
	return fmt.Sprintf("the event is below the floor %s of class %s, so that a replayed copy of it becomes a dead letter, which is to be redriven: %s "+
		"(not where a letter of it waits already), then in this one `outboxctl dead redrive %s --group %s --reason \"…\"`. "+
		"A copy that the producer or the relay sends again is late, and applied as the class says of late events",
		terminal.Stamp(&w.floor), w.class, plain, r.Key, terminal.Word(group)) + alone
}

// class is that of what was claimed, nil when it is not known.
func (r *Report) class() *window {
	var classes []consumer.Class
	for _, w := range r.windows {
		classes = append(classes, consumer.Class{Pattern: w.class})
	}
	i := consumer.ClassOf(classes, r.Claims[0].EventType)
	if i < 0 {
		return nil
	}
	return &r.windows[i]
}

// refusing returns the class of what was claimed when a plain copy of the event
// would not be applied by it.
func (r *Report) refusing() *window {
	w := r.class()
	if w == nil || w.keyed == consumer.ByArrival || w.replay != consumer.ReplayDeadLetter ||
		!r.EventTime.Before(w.floor) {
		return nil
	}
	return w
}

// Wrong tells that there was nothing to forget.
func (r *Forgotten) Wrong() bool { return len(r.Forgotten) == 0 }
