package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/migrations"
)

// discardedKept is how long a discarded letter of a group is kept.
const discardedKept = 30 * 24 * time.Hour

// decision is what redrive and discard do to letters.
type decision struct {
	verb   string                     // for questions
	unable func(l groupLetter) string // why it cannot be done to a letter; "" when it can
	states []string
	write  func(ctx context.Context, q *consumerdb.Queries, letters []groupLetter, reason string) error
	judge  func(before groupLetter, found bool, is groupLetterNow) groupLetterOutcome
}

func lettersRedrive(c *cli.Context) error {
	return decide(c, decision{verb: "handle again", states: []string{states.LetterOpen}, unable: unreadable, write: requestRedrive, judge: judgeRedrive})
}

// unreadable says why a range that no member could read is not handled again.
func unreadable(l groupLetter) string {
	if l.Cause != states.CauseUnreadable {
		return ""
	}
	return fmt.Sprintf("%s stands for messages that no member could read, and holds nothing to handle: `outboxctl dead show --side consumer %s` says how to have them read; "+
		"then, or to give them up, discard it; --cause leaves it out", l.Place, l.Place)
}

func able(groupLetter) string { return "" }

func lettersDiscard(c *cli.Context) error {
	return decide(c, decision{verb: "give up for good", states: unsettledStates, unable: able, write: discardLetters, judge: judgeDiscard})
}

// decide asks, writes in small transactions, waits where there is something to
// wait for, and answers.
func decide(c *cli.Context, d decision) error {
	s, reason, err := readDecision(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	letters, err := s.find(c, db, d)
	if err != nil || len(letters) == 0 {
		return err
	}
	if err := confirm(c, fmt.Sprintf("%s %s", d.verb, summary(letters))); err != nil {
		return err
	}
	if err := d.writeAll(c, db, letters, reason); err != nil {
		return err
	}
	report, err := d.await(c.Context, db, letters, c.Duration("wait"))
	if err != nil {
		return fmt.Errorf("%w; wait for the group: %w", errOrderGiven, operator.Explain(err, migrations.Consumer))
	}
	report.Action, report.Reason, report.Waited = c.Command.Name, reason, c.Duration("wait") > 0
	if err := answer(c, report, printRedriven); err != nil {
		return err
	}
	return report.verdict()
}

func (d decision) writeAll(c *cli.Context, db *operator.Database, letters []groupLetter, reason string) error {
	line := newProgress(c.App.ErrWriter, "decided", len(letters))
	defer line.end()
	for at := 0; at < len(letters); at += maxWordsAtOnce {
		line.show(at)
		if err := d.write(c.Context, consumerdb.New(db), letters[at:min(at+maxWordsAtOnce, len(letters))], reason); err != nil {
			return fmt.Errorf("%s: %w; the letters before this were decided: %d of %d", c.Command.HelpName, operator.ExplainOperator(err, migrations.Consumer), at, len(letters))
		}
	}
	line.show(len(letters))
	return nil
}

// readDecision checks what needs no server.
func readDecision(c *cli.Context) (s letterSelection, reason string, err error) {
	if s, err = readLetterSelection(c); err != nil {
		return s, "", err
	}
	switch {
	case !s.chosen() && !c.Bool("all"):
		return s, "", usage("%s: say which letters: PLACEs, KEYs, filters such as --group, --cause or --type, or --all", c.Command.HelpName)
	case s.chosen() && c.Bool("all"):
		return s, "", usage("%s: --all goes without PLACEs, KEYs and filters", c.Command.HelpName)
	case c.Duration("wait") < 0:
		return s, "", usage("--wait %s: want 0 or more", c.Duration("wait"))
	}
	reason, err = readReason(c)
	return s, reason, err
}

// find returns the letters that are meant and wait. It answers itself, with
// none, where there is nothing to do; a PLACE or KEY without such a letter is
// wrong, and so is one of which several groups have letters: a letter is a
// matter of its group.
func (s letterSelection) find(c *cli.Context, db *operator.Database, d decision) ([]groupLetter, error) {
	rows, err := consumerdb.New(db).ListGroupLetters(c.Context, s.query(d.states, operator.MaxListed))
	if err != nil {
		return nil, fmt.Errorf("look for letters: %w", operator.Explain(err, migrations.Consumer))
	}
	if len(rows) > operator.MaxListed {
		return nil, fmt.Errorf("more than %d letters: narrow the filters, for example with --from and --to", operator.MaxListed)
	}
	report := &redriveReport{Action: c.Command.Name, Letters: []groupLetterOutcome{}, Problems: []string{}}
	found := make(map[string][]string, 2*len(rows)) // groups
	var letters []groupLetter
	for _, v := range rows {
		l := newGroupLetter(v)
		if s.elsewhere(l) {
			continue
		}
		for _, text := range []string{l.Key, l.Place} {
			if !slices.Contains(found[text], l.Group) {
				found[text] = append(found[text], l.Group)
			}
		}
		letters = append(letters, l)
		if why := d.unable(l); why != "" {
			report.Problems = append(report.Problems, why)
		}
	}
	why, parked, err := s.parked(c.Context, consumerdb.New(db), d, len(letters) > 0, func(text string) bool { return found[text] != nil })
	if err != nil {
		return nil, fmt.Errorf("look for letters: %w", operator.Explain(err, migrations.Consumer))
	}
	report.Problems = append(report.Problems, why...)
	for _, text := range s.given() {
		if groups := found[text]; len(groups) > 1 {
			return nil, usage("whose letter? of %s there are letters of the groups %s; give --group", text, strings.Join(groups, ", "))
		}
		if found[text] == nil && !slices.Contains(parked, text) {
			report.Problems = append(report.Problems, fmt.Sprintf("%s is no dead letter that can be decided; `outboxctl dead show --side consumer %s` tells what became of it", text, text))
		}
	}
	if len(report.Problems) == 0 && len(letters) > 0 {
		return letters, nil
	}
	if err := answer(c, report, printRedriven); err != nil || len(report.Problems) == 0 {
		return nil, err
	}
	return nil, errWrong
}

// elsewhere tells a letter that has the UUID of a KEY in another namespace.
func (s letterSelection) elsewhere(l groupLetter) bool {
	texts := s.given()
	return len(texts) > 0 && !slices.Contains(texts, l.Key) && !slices.Contains(texts, l.Place)
}

// given are the PLACEs and KEYs as texts.
func (s letterSelection) given() (texts []string) {
	for _, k := range s.Keys {
		texts = append(texts, k.String())
	}
	for _, p := range s.places {
		texts = append(texts, p.String())
	}
	return texts
}

// summary counts letters by group and cause, for a question.
func summary(letters []groupLetter) string {
	type kind struct{ group, cause string }
	counts := make(map[kind]int)
	var kinds []kind
	for _, l := range letters {
		k := kind{l.Group, l.Cause}
		if counts[k] == 0 {
			kinds = append(kinds, k)
		}
		counts[k]++
	}
	var parts []string
	for _, k := range kinds {
		parts = append(parts, fmt.Sprintf("%d %s of group %s", counts[k], k.cause, k.group))
	}
	return fmt.Sprintf("%d dead letters (%s)", len(letters), strings.Join(parts, ", "))
}

// refs takes letters apart into the arrays that a statement wants.
func refs(letters []groupLetter) (p consumerdb.RequestRedriveParams) {
	for _, l := range letters {
		p.ConsumerGroups, p.Topics = append(p.ConsumerGroups, l.Group), append(p.Topics, l.at.Topic)
		p.KafkaPartitions, p.KafkaOffsets = append(p.KafkaPartitions, l.at.Partition), append(p.KafkaOffsets, l.at.Offset)
		p.Generations = append(p.Generations, l.Generation)
	}
	return p
}

// requestRedrive leaves alone what another operator or a member has decided
// meanwhile: the generation tells.
func requestRedrive(ctx context.Context, q *consumerdb.Queries, letters []groupLetter, reason string) error {
	p := refs(letters)
	p.Reason = reason
	_, err := q.RequestRedrive(ctx, p)
	return err
}

func discardLetters(ctx context.Context, q *consumerdb.Queries, letters []groupLetter, reason string) error {
	p := refs(letters)
	_, err := q.DiscardGroupLetters(ctx, consumerdb.DiscardGroupLettersParams{
		ConsumerGroups: p.ConsumerGroups, Topics: p.Topics, KafkaPartitions: p.KafkaPartitions, KafkaOffsets: p.KafkaOffsets, Generations: p.Generations,
		Reason: reason, Keep: pgtype.Interval{Microseconds: discardedKept.Microseconds(), Valid: true},
	})
	return err
}
