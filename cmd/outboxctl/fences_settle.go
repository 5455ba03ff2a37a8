package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/operator/windows"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// settledReport is the JSON answer of fences reconcile and fences release.
type settledReport struct {
	Key    string   `json:"key"`
	Group  string   `json:"group"`
	Name   string   `json:"name"`
	Did    string   `json:"did"` // made, not-made or released
	Reason string   `json:"reason"`
	Epoch  int64    `json:"epoch"`
	Notes  []string `json:"notes"`
}

// errFenceMoved: the compare-and-set did not find the fence as it was seen.
var errFenceMoved = errors.New("nothing was changed: an attempt has taken the fence, or its lease has run out, since it was looked at; look again with `outboxctl fences show KEY`")

// settling is one fence about which somebody decides.
type settling struct {
	key    operator.Name
	fence  fenceReport
	letter *letters.GroupLetter // of the event, with which it waits; nil: none
	reason string
	db     *operator.Database
}

// settlement is what is to be done about a fence, and how it is asked for.
type settlement struct {
	question string
	write    func(*cli.Context) (*settledReport, error)
}

// settle finds the fence, asks and does what is planned for it.
func settle(c *cli.Context, plan func(*cli.Context, *settling) (settlement, error)) error {
	key, err := readOneName(c)
	if err != nil {
		return err
	}
	s := &settling{key: key}
	if s.reason, err = readReason(c); err != nil {
		return err
	}
	if s.db, err = connect(c); err != nil {
		return err
	}
	defer s.db.Close()
	if s.fence, err = onePending(c, s.db, key); err != nil {
		return err
	}
	if kept := s.fence.event.Key; kept != "" {
		if s.key, err = operator.ParseName(kept); err != nil {
			return err
		}
	}
	if err := s.findLetter(c.Context); err != nil {
		return fmt.Errorf("look for a dead letter of the event: %w", operator.Explain(err, migrations.Consumer))
	}
	do, err := plan(c, s)
	if err != nil {
		return err
	}
	if err := confirm(c, do.question); err != nil {
		return err
	}
	report, err := do.write(c)
	if err != nil {
		return fmt.Errorf("%s %s: %w", c.Command.HelpName, key, explainFence(err))
	}
	report.Key, report.Group, report.Name, report.Reason, report.Epoch = key.String(), s.fence.Group, s.fence.Name, s.reason, s.fence.Epoch+1
	return answer(c, report, printSettled)
}

// onePending finds the PENDING fence that is meant.
func onePending(c *cli.Context, db *operator.Database, key operator.Name) (f fenceReport, err error) {
	all, err := fencesOf(c.Context, consumerdb.New(db), key, c.String("group"), c.String("name"))
	if err != nil {
		return f, fmt.Errorf("look for the fence: %w", operator.Explain(err, migrations.Consumer))
	}
	var pending []fenceReport
	var names []string
	for _, v := range all {
		if v.Status == states.FencePending {
			pending, names = append(pending, v), append(names, fmt.Sprintf("%s of group %s", v.Name, v.Group))
		}
	}
	switch {
	case len(pending) == 0:
		return f, fmt.Errorf("no PENDING fence of %s is meant; `outboxctl fences show %s` tells what there is", key, key)
	case len(pending) > 1:
		return f, usage("which fence? there are %s; give --group and --name", strings.Join(names, ", "))
	}
	return pending[0], nil
}

// findLetter looks for the letter of the event whose redrive goes on with it.
func (s *settling) findLetter(ctx context.Context) error {
	found, err := letters.UnsettledOfEvent(ctx, consumerdb.New(s.db), s.key, s.fence.Group)
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

func fencesReconcile(c *cli.Context) error {
	switch made := c.Bool("made"); {
	case made == c.Bool("not-made"):
		return usage("%s: give one of --made and --not-made: ask the provider first", c.Command.HelpName)
	case !made && (c.IsSet("result") || c.IsSet("type")):
		return usage("%s: --result and --type go with --made", c.Command.HelpName)
	case c.IsSet("result") && !json.Valid([]byte(c.String("result"))):
		return usage("--result %q: want JSON, e.g. '{\"charge\": \"ch_1\"}'", c.String("result"))
	}
	return settle(c, planReconcile)
}

func planReconcile(c *cli.Context, s *settling) (settlement, error) {
	if s.fence.Live {
		return settlement{}, fmt.Errorf("an attempt holds the lease of fence %q until %s: wait for its end or, when it is known to be dead, `outboxctl fences release %s --group %s --name %s --reason \"…\"`",
			s.fence.Name, terminal.Stamp(&s.fence.LeaseUntil), s.key, terminal.Word(s.fence.Group), terminal.Word(s.fence.Name))
	}
	what := fmt.Sprintf("effect %q of %s for group %s", s.fence.Name, s.key, s.fence.Group)
	if c.Bool("not-made") {
		return settlement{"let the next attempt make the " + what, s.notMade}, nil
	}
	claim, err := s.claimOf(c)
	return settlement{
		"record that the " + what + " was made", func(c *cli.Context) (*settledReport, error) { return s.made(c, claim) },
	}, err
}

func fencesRelease(c *cli.Context) error { return settle(c, planRelease) }

func planRelease(_ *cli.Context, s *settling) (settlement, error) {
	if !s.fence.Live {
		return settlement{}, fmt.Errorf("the lease of fence %q ran out at %s: the next attempt takes it without waiting", s.fence.Name, terminal.Stamp(&s.fence.LeaseUntil))
	}
	return settlement{
		fmt.Sprintf("end the lease of fence %q of %s, which an attempt of group %s holds until %s", s.fence.Name, s.key, s.fence.Group, terminal.Stamp(&s.fence.LeaseUntil)), s.release,
	}, nil
}

func (s *settling) release(c *cli.Context) (*settledReport, error) {
	n, err := consumerdb.New(s.db).EndLease(c.Context, consumerdb.EndLeaseParams{
		EventID: s.key.ID, ConsumerGroup: s.fence.Group, Name: s.fence.Name, Epoch: s.fence.Epoch, Target: targetOf(s.key, s.fence.Name), Reason: s.reason,
	})
	return &settledReport{Did: "released", Notes: []string{s.next("takes the fence over")}}, moved(n, err)
}

func (s *settling) notMade(c *cli.Context) (*settledReport, error) {
	n, err := consumerdb.New(s.db).FenceNotMade(c.Context, consumerdb.FenceNotMadeParams{
		EventID: s.key.ID, ConsumerGroup: s.fence.Group, Name: s.fence.Name, Epoch: s.fence.Epoch, Target: targetOf(s.key, s.fence.Name), Reason: s.reason,
		Keep: keepFor(0),
	})
	note := s.next("makes the effect")
	if s.ended() {
		note = "the event has ended, so that nobody makes the effect, unless a handler is called for the event again"
	}
	return &settledReport{Did: "not-made", Notes: []string{note}}, moved(n, err)
}

// ended reports whether the handler has ended the event without this effect: then
// nothing keeps the event.
func (s *settling) ended() bool { return !s.fence.Alone && s.fence.event.Type == "" }

// keepFor is how long the effects of an event are kept after its end, in a class
// of this window.
func keepFor(window time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: (2*window + 24*time.Hour).Microseconds(), Valid: true}
}

func moved(n int64, err error) error {
	if err == nil && n == 0 {
		return errFenceMoved
	}
	return err
}

// claimOfFence is how the event of a fence is claimed.
type claimOfFence struct {
	eventType string
	ids       []uuid.UUID
	window    time.Duration
}

// claimOf chooses the ids as the group itself would: the event's own, that of
// its reprocessing replay, or by arrival. None for one effect of several: the
// handler ends the event.
func (s *settling) claimOf(c *cli.Context) (claim claimOfFence, err error) {
	if !s.fence.Alone {
		return claim, nil
	}
	if s.key.Bare {
		return claim, usage("%s: the event is claimed with its namespace, which the fence does not keep: give the whole KEY; %s", s.key, operator.KeyExample)
	}
	if claim.eventType = s.fence.event.Type; claim.eventType == "" {
		claim.eventType = c.String("type")
	}
	if claim.eventType == "" {
		return claim, usage("the fence does not keep its event: give the event's type with --type")
	}
	if given := c.String("type"); given != "" && given != claim.eventType {
		return claim, usage("--type %q: the event of the fence is of type %q", given, claim.eventType)
	}
	q := consumerdb.New(s.db)
	rows, err := q.ListWindows(c.Context, s.fence.Group)
	if err != nil {
		return claim, fmt.Errorf("read the windows of group %s: %w", s.fence.Group, err)
	}
	var classes []consumer.Class
	for _, v := range rows {
		classes = append(classes, consumer.Class{Pattern: v.Class})
	}
	at := consumer.ClassOf(classes, claim.eventType)
	if at < 0 {
		return claim, fmt.Errorf("group %s has no class for event type %q; `outboxctl windows list` shows what there is", s.fence.Group, claim.eventType)
	}
	claim.window = time.Duration(rows[at].WindowMs) * time.Millisecond
	id := s.key.ID
	if e := s.fence.event; string(e.ReplayMode) == string(consumer.ReplayReprocess) && string(e.ReplayGroup) == s.fence.Group {
		id = e.ReplayID
	}
	now, err := q.DatabaseTime(c.Context)
	if err != nil {
		return claim, err
	}
	claim.ids = []uuid.UUID{id}
	if rows[at].Keyed == string(consumer.ByArrival) || outbox.IDTime(id).Before(rows[at].Floor) {
		attached, err := q.AttachedDays(c.Context)
		if err != nil {
			return claim, fmt.Errorf("list the partitions of processed_events: %w", err)
		}
		claim.ids = windows.BucketsOf(rows[at]).IDs(id, now, attached)
	}
	return claim, nil
}

func (s *settling) made(c *cli.Context, claim claimOfFence) (*settledReport, error) {
	var result []byte
	if c.IsSet("result") {
		result = []byte(c.String("result"))
	}
	row, err := consumerdb.New(s.db).FenceMade(c.Context, consumerdb.FenceMadeParams{
		EventID: s.key.ID, ConsumerGroup: s.fence.Group, Name: s.fence.Name, Epoch: s.fence.Epoch, Result: result,
		Keep: keepFor(claim.window), EventType: claim.eventType, Namespace: s.key.Namespace, Ids: claim.ids,
		Target: targetOf(s.key, s.fence.Name), Reason: s.reason,
	})
	report := &settledReport{Did: "made", Notes: []string{"what the program's Commit would have written with the result is not written: do it by hand where it is needed"}}
	switch {
	case s.ended():
		report.Notes = append(report.Notes, "the event had ended without it")
	case !s.fence.Alone:
		report.Notes = append(report.Notes, s.next("runs the handler on and ends the event"))
	case row.Claimed == 0:
		report.Notes = append(report.Notes, fmt.Sprintf("the group had claimed the event before; `outboxctl processed show %s` tells how", s.key))
	}
	return report, moved(row.Settled, err)
}

// explainFence names what makes the partition that a claim lacks.
func explainFence(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "23514" {
		return fmt.Errorf("%w; the day of the claim has no partition: run `outboxctl partitions maintain --side consumer`", err)
	}
	return operator.ExplainOperator(err, migrations.Consumer)
}

func printSettled(p *page, r *settledReport) {
	did := map[string]string{"made": "recorded as made", "not-made": "free to be made again", "released": "released"}[r.Did]
	p.line("fence %s of %s, group %s: %s, epoch %d", terminal.Preview([]byte(r.Name), terminal.PreviewBytes), r.Key, r.Group, did, r.Epoch)
	for _, note := range r.Notes {
		p.line("%s", note)
	}
}
