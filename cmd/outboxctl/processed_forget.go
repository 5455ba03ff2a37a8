package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// forgetReport is the JSON answer of processed forget.
type forgetReport struct {
	Key       string      `json:"key"`
	Group     string      `json:"group"`
	Reason    string      `json:"reason"`
	Forgotten []uuid.UUID `json:"forgotten"` // the ids of the claims
	Notes     []string    `json:"notes"`
}

func processedForget(c *cli.Context) error {
	key, group, reason, err := readOneOfGroup(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	found, err := readProcessed(c.Context, db, key, group)
	if err != nil {
		return fmt.Errorf("processed forget %s: %w", key, explain(err, migrations.Consumer))
	}
	report := &forgetReport{Key: key.String(), Group: group, Reason: reason, Forgotten: []uuid.UUID{}, Notes: found.Notes}
	if len(found.Claims) == 0 {
		if err := answer(c, report, report.print); err != nil {
			return err
		}
		return errWrong
	}
	if err := found.forgettable(); err != nil {
		return err
	}
	first := found.Claims[0]
	if err := confirm(c, fmt.Sprintf("forget that group %s has claimed %s (%s, %s), so that its next delivery applies it again", group, key, first.Outcome, stamp(&first.ClaimedAt))); err != nil {
		return err
	}
	if report.Forgotten, err = found.forget(c.Context, db, key, group, reason); err != nil {
		return fmt.Errorf("processed forget %s: %w", key, explainOperator(err, migrations.Consumer))
	}
	report.Notes = found.afterwards(group)
	return answer(c, report, report.print)
}

// readOneOfGroup checks what needs no server, of commands about one event of
// one group.
func readOneOfGroup(c *cli.Context) (key outbox.Key, group, reason string, err error) {
	if key, err = readOneKey(c); err != nil {
		return key, "", "", err
	}
	if group = c.String("group"); group == "" {
		return key, "", "", usage("%s: --group is missing; want the name of a consumer group", c.Command.HelpName)
	}
	reason, err = readReason(c)
	return key, group, reason, err
}

// forget removes what was found; a fence that has begun since is respected by
// the statement.
func (r *processedReport) forget(ctx context.Context, db *database, key outbox.Key, group, reason string) ([]uuid.UUID, error) {
	ids := []uuid.UUID{key.UUID()}
	for _, v := range r.Claims {
		ids = append(ids, v.ID)
	}
	forgotten, err := consumerdb.New(db).ForgetClaims(ctx, consumerdb.ForgetClaimsParams{
		ConsumerGroup: group, Ids: ids, EventID: key.UUID(), Target: key.String(), Reason: reason,
	})
	if err == nil && len(forgotten) == 0 {
		err = errors.New("nothing was forgotten: since it was looked at the claim is gone or an effect of the event has begun, or its dead letter waits: redrive or discard that first")
	}
	return forgotten, err
}

// forgettable refuses while an effect outside the database is under way: nobody
// knows yet whether it was made.
func (r *processedReport) forgettable() error {
	i := slices.IndexFunc(r.Fences, func(v fenceReport) bool { return v.Status == fencePending })
	if i < 0 {
		return nil
	}
	f := r.Fences[i]
	return fmt.Errorf("fence %q of %s is PENDING: nobody knows yet whether its effect was made; settle it with `outboxctl fences reconcile %s --group %s --name %s`, then forget the claim",
		f.Name, r.Key, r.Key, f.Group, f.Name)
}

// afterwards says what forgetting does not do.
func (r *processedReport) afterwards(group string) []string {
	notes := []string{fmt.Sprintf("nothing delivers it again by itself; in the producer's database: `outboxctl replay %s --reprocess %s`", r.Key, group)}
	var complete []string
	for _, f := range r.Fences {
		complete = append(complete, f.Name)
	}
	if len(complete) > 0 {
		notes = append(notes, fmt.Sprintf("its fences stay: the effects %s are not made again", strings.Join(complete, ", ")))
	}
	for _, w := range r.windows {
		if r.EventTime.Before(w.floor) {
			notes = append(notes, fmt.Sprintf("the event is below the floor %s of class %s: of that class, a plain copy is judged late or a replay", stamp(&w.floor), w.class))
		}
	}
	for _, l := range r.Letters {
		if slices.Contains(unsettledStates, l.State) {
			notes = append(notes, fmt.Sprintf("its dead letter %s still waits: `outboxctl dead redrive` or `dead discard`", l.Place))
		}
	}
	return notes
}

func (r *forgetReport) print(p *page) {
	if len(r.Forgotten) == 0 {
		p.line("group %s has no claim on %s; nothing was forgotten", r.Group, r.Key)
	} else {
		p.line("group %s has forgotten %s", r.Group, r.Key)
	}
	for _, note := range r.Notes {
		p.line("%s", note)
	}
}
