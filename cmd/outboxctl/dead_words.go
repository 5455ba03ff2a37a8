package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/relays"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/migrations"
)

// letterRef is one letter of one slot, as it was when the word was said.
type letterRef struct {
	slot      string
	id        uuid.UUID
	namespace string
	attempts  int32
}

// aggregateRef names an aggregate.
type aggregateRef struct{ namespace, aggregateType, id string }

// word is one row of onceward.controls, and the letters that it is about.
type word struct {
	control   outboxdb.InsertControlParams
	aggregate aggregateRef
	letters   []letterRef
}

func (l *deadReport) aggregate() aggregateRef {
	return aggregateRef{l.namespace, l.AggregateType, l.AggregateID}
}

// alone says that a letter is outside of its aggregate's order.
func (l *deadReport) alone() bool { return l.ReplayOf != "" || !l.Holds }

func deadRetry(c *cli.Context) error {
	if c.Bool("only") {
		return usage("dead retry: there is no --only any more: a letter out of its aggregate's order would reach consumers before older events. " +
			"Without it, KEY publishes all that waits of its aggregate, oldest first; `outboxctl dead discard KEY --reason \"…\"` gives up those before it that are not wanted")
	}
	s, reason, err := readWord(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	letters, err := findLetters(c, db, s)
	if err != nil || len(letters) == 0 {
		return err
	}
	words, aggregates, err := retryWords(c.Context, outboxdb.New(db), letters)
	if err != nil {
		return fmt.Errorf("dead retry: %w", operator.Explain(err, migrations.Outbox))
	}
	what := fmt.Sprintf("publish %d dead letters", countLetters(words))
	if aggregates > 0 {
		what += fmt.Sprintf(", all that wait of %d aggregates", aggregates)
	}
	return say(c, db, what, reason, words)
}

// retryWords makes one word for each aggregate, because its letters go out in
// their order or not at all; and one for each letter that is outside of that
// order: of a replay, or of an event whose route goes on without it. Such a one goes
// out with its aggregate where that is retried.
func retryWords(ctx context.Context, q *outboxdb.Queries, letters []deadReport) (words []*word, aggregates int, err error) {
	singles := make(map[uuid.UUID]*word)
	whole := make(map[aggregateRef]*word)
	var all outboxdb.LettersOfAggregatesParams
	for _, l := range letters {
		a := l.aggregate()
		if l.alone() || whole[a] != nil {
			continue
		}
		whole[a] = &word{aggregate: a, control: outboxdb.InsertControlParams{
			Action: states.ActionRetry, Namespace: &a.namespace, AggregateType: &a.aggregateType, AggregateID: &a.id,
		}}
		words = append(words, whole[a])
		all.Namespaces, all.AggregateTypes = append(all.Namespaces, a.namespace), append(all.AggregateTypes, a.aggregateType)
		all.AggregateIds = append(all.AggregateIds, a.id)
	}
	for _, l := range letters {
		if whole[l.aggregate()] == nil {
			words = addSingle(words, singles, states.ActionRetry, l)
		}
	}
	if len(whole) == 0 {
		return words, 0, nil
	}
	rows, err := q.LettersOfAggregates(ctx, all)
	for _, v := range rows {
		w := whole[aggregateRef{v.Namespace, v.AggregateType, v.AggregateID}]
		w.letters = append(w.letters, letterRef{slot: v.Slot, id: v.LetterID, namespace: v.Namespace, attempts: v.Attempts})
	}
	return words, len(whole), err
}

// addSingle adds a word about one letter; that of another slot joins it.
func addSingle(words []*word, singles map[uuid.UUID]*word, action string, l deadReport) []*word {
	w := singles[l.id]
	if w == nil {
		namespace := l.namespace
		w = &word{aggregate: l.aggregate(), control: outboxdb.InsertControlParams{Action: action, Namespace: &namespace, LetterID: &l.id}}
		singles[l.id] = w
		words = append(words, w)
	}
	w.letters = append(w.letters, letterRef{slot: l.Slot, id: l.id, namespace: l.namespace, attempts: l.Attempts})
	return words
}

func deadDiscard(c *cli.Context) error {
	s, reason, err := readWord(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	letters, err := findLetters(c, db, s)
	if err != nil || len(letters) == 0 {
		return err
	}
	var words []*word
	singles := make(map[uuid.UUID]*word)
	for _, l := range letters {
		words = addSingle(words, singles, states.ActionDiscard, l)
	}
	return say(c, db, fmt.Sprintf("give up %d dead letters for good", countLetters(words)), reason, words)
}

func countLetters(words []*word) (n int) {
	for _, w := range words {
		n += len(w.letters)
	}
	return n
}

// readWord checks what needs no server, of retry and discard.
func readWord(c *cli.Context) (s operator.Selection, reason string, err error) {
	if err := checkOutput(c); err != nil {
		return s, "", err
	}
	if s, err = readSelection(c); err != nil {
		return s, "", err
	}
	chosen := len(s.Keys) > 0 || s.Filtered() || c.String("class") != ""
	switch {
	case !chosen && !c.Bool("all"):
		return s, "", usage("%s: say which letters: KEYs, filters such as --aggregate, --type or --class, or --all", c.Command.HelpName)
	case chosen && c.Bool("all"):
		return s, "", usage("%s: --all goes without KEYs and filters", c.Command.HelpName)
	case c.Duration("wait") < 0:
		return s, "", usage("--wait %s: want 0 or more", c.Duration("wait"))
	}
	reason, err = readReason(c)
	return s, reason, err
}

// findLetters returns the waiting letters that are meant. It answers itself, with none,
// where there is nothing to do; a KEY without a waiting letter is wrong.
func findLetters(c *cli.Context, db *operator.Database, s operator.Selection) ([]deadReport, error) {
	q := outboxdb.New(db)
	rows, err := q.ListLetters(c.Context, waitingLetters(c, s))
	if err != nil {
		return nil, fmt.Errorf("look for letters: %w", operator.Explain(err, migrations.Outbox))
	}
	if len(rows) == operator.MaxListed {
		return nil, fmt.Errorf("%d letters or more: narrow the filters, for example with --from and --to", operator.MaxListed)
	}
	found := make(map[string]bool, len(rows))
	var letters []deadReport
	for _, v := range rows {
		l := newDeadReport(v)
		found[operator.NameText(l.namespace, l.id)], found[l.id.String()] = true, true
		letters = append(letters, l)
	}
	report := &wordReport{Action: c.Command.Name, Letters: []letterOutcome{}, Problems: []string{}}
	for _, key := range s.Keys {
		if !found[key.String()] {
			problem, err := notWaiting(c.Context, q, key)
			if err != nil {
				return nil, fmt.Errorf("look for letters: %w", operator.Explain(err, migrations.Outbox))
			}
			report.Problems = append(report.Problems, problem)
		}
	}
	if len(report.Problems) == 0 && len(letters) > 0 {
		return letters, nil
	}
	if err := answer(c, report, printDecided); err != nil || len(report.Problems) == 0 {
		return nil, err
	}
	return nil, errWrong
}

// notWaiting says why there is nothing to do about a key, and what to do instead.
func notWaiting(ctx context.Context, q *outboxdb.Queries, key operator.Name) (string, error) {
	letters, err := q.LettersNow(ctx, []uuid.UUID{key.ID})
	if err != nil {
		return "", err
	}
	if len(letters) > 0 {
		return fmt.Sprintf("%s is no dead letter that waits; `outboxctl dead show %s` tells what became of it", key, key), nil
	}
	p, err := relays.HaltsAt(ctx, q, key.ID)
	if err != nil {
		return "", err
	}
	if p != nil {
		return fmt.Sprintf("%s is no dead letter: relay %s halts at %s: `outboxctl skip %s --relay %s --reason \"…\"` leaves it out", key, p.Relay, key, key, p.Relay), nil
	}
	return fmt.Sprintf("%s is no dead letter; `outboxctl show %s` tells where the event is", key, key), nil
}

// maxWordsAtOnce bounds a transaction of words.
const maxWordsAtOnce = 500

// errOrderGiven marks the errors of a command that has said its words already.
var errOrderGiven = errors.New("the order is given")

// say asks, writes the words in small transactions, waits and answers.
func say(c *cli.Context, db *operator.Database, what, reason string, words []*word) error {
	if err := confirm(c, what); err != nil {
		return err
	}
	for at := 0; at < len(words); at += maxWordsAtOnce {
		if err := writeWords(c.Context, db, reason, words[at:min(at+maxWordsAtOnce, len(words))]); err != nil {
			return fmt.Errorf("%s: %w; the words before this were said: %d of %d", c.Command.HelpName, operator.ExplainWrite(err), at, len(words))
		}
	}
	report, err := await(c.Context, db, words, c.Duration("wait"))
	if err != nil {
		return fmt.Errorf("%w; wait for the relay: %w", errOrderGiven, operator.Explain(err, migrations.Outbox))
	}
	report.Action, report.Reason, report.Waited = c.Command.Name, reason, c.Duration("wait") > 0
	if report.Left, err = leftBehind(c.Context, outboxdb.New(db), words, report); err != nil {
		return fmt.Errorf("%w; look what waits behind: %w", errOrderGiven, operator.Explain(err, migrations.Outbox))
	}
	if err := answer(c, report, printDecided); err != nil {
		return err
	}
	return report.verdict()
}

func writeWords(ctx context.Context, db *operator.Database, reason string, words []*word) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return insertWords(ctx, outboxdb.New(tx), reason, words) })
}

func insertWords(ctx context.Context, q *outboxdb.Queries, reason string, words []*word) error {
	for _, w := range words {
		id, err := uuid.NewV7()
		if err != nil {
			return fmt.Errorf("make a control id: %w", err)
		}
		w.control.ControlID, w.control.Reason = id, reason
		if err := q.InsertControl(ctx, w.control); err != nil {
			return err
		}
	}
	return nil
}
