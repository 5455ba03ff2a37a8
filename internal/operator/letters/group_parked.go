package letters

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
)

// parked says of the letters that are meant and parked why they are not redriven, by
// their keys. The texts are their PLACEs and KEYs. A hundred are looked at: who asks
// for more wants to know why, and not of each. Of one whose PLACE or KEY is known,
// because of another letter, nothing is said. Filters mean what is parked when they say
// so, or match nothing else.
func (s GroupFilter) parked(ctx context.Context, q *consumerdb.Queries, d Decision, others bool,
	known func(text string) bool) (why, texts []string, err error) {
	why = []string{}
	if slices.Contains(d.states, states.LetterParked) || s.Cause != states.LetterParked && len(s.given()) == 0 &&
		others {
		return why, nil, nil // nobody asks for them
	}
	rows, err := q.ListGroupLetters(ctx, s.query([]string{states.LetterParked}, 99))
	if err != nil {
		return nil, nil, err
	}
	var first []GroupLetter // of each key
	behind := make(map[string]int)
	for _, v := range rows {
		l := newGroupLetter(v)
		if s.elsewhere(l) || known(l.Place) || l.Key != "" && known(l.Key) {
			continue
		}
		texts = append(texts, l.Place, l.Key)
		head, state, err := headOf(ctx, q, l)
		if err != nil {
			return nil, nil, err
		}
		id := l.Group + " " + head.String()
		if behind[id]++; behind[id] == 1 {
			l.At, l.State = head, state
			first = append(first, l)
		}
	}
	for _, l := range first {
		these := fmt.Sprintf("%s is parked", l.Place)
		if n := behind[l.Group+" "+l.At.String()]; n > 1 {
			these = fmt.Sprintf("%s and %d more of its key are parked", l.Place, n-1)
		}
		if l.At.String() == l.Place {
			why = append(why, fmt.Sprintf("%s, and no letter is before it: a member of group %s handles what is parked, in order, when one runs", these, l.Group))
			continue
		}
		todo := fmt.Sprintf("see `outboxctl dead show --side consumer %s --group %s`, and redrive or discard that one", l.At, terminal.Word(l.Group))
		if l.State == states.LetterRequested {
			todo = "its redrive is asked for, and a member does it when one runs; " + instead(l)
		}
		why = append(why, fmt.Sprintf("%s: what is parked is not redriven; a member of group %s handles it, in order, as soon as %s is settled, the first letter of its key: %s", these, l.Group, l.At, todo))
	}
	return why, texts, nil
}

// instead is how a letter whose redrive is asked for is given up.
func instead(l GroupLetter) string {
	return fmt.Sprintf("to give it up instead, `outboxctl dead discard --side consumer %s --group %s --reason \"…\"`", l.At, terminal.Word(l.Group))
}

// requested says of the letters that are given by PLACE or KEY, and whose redrive is asked for
// already, what they wait for. The texts are their PLACEs and KEYs. A hundred are looked at, and of
// one whose PLACE or KEY is known nothing is said, as of those that are [GroupFilter.parked].
func (s GroupFilter) requested(ctx context.Context, q *consumerdb.Queries, d Decision,
	known func(text string) bool) (why, texts []string, err error) {
	if slices.Contains(d.states, states.LetterRequested) || len(s.given()) == 0 {
		return nil, nil, nil // nobody asks for them: filters mean what they match
	}
	rows, err := q.ListGroupLetters(ctx, s.query([]string{states.LetterRequested}, 99))
	for _, v := range rows {
		l := newGroupLetter(v)
		if s.elsewhere(l) || known(l.Place) || l.Key != "" && known(l.Key) {
			continue
		}
		texts = append(texts, l.Place, l.Key)
		why = append(why, fmt.Sprintf("the redrive of %s is asked for already: it waits for a member of group %s, which handles it as soon as one runs; %s", l.Place, l.Group, instead(l)))
	}
	return why, texts, err
}

// headOf returns the first letter of a letter's key that is not settled, and its state.
func headOf(ctx context.Context, q *consumerdb.Queries, l GroupLetter) (head Place, state string, err error) {
	at := consumerdb.ReadGroupLetterParams{ConsumerGroup: l.Group, Topic: l.At.Topic, KafkaPartition: l.At.Partition,
		KafkaOffset: l.At.Offset}
	record, err := q.ReadGroupLetter(ctx, at)
	if err == nil {
		var first consumerdb.FirstOfKeyRow
		first, err = q.FirstOfKey(ctx, consumerdb.FirstOfKeyParams{ConsumerGroup: l.Group, Topic: l.At.Topic,
			RecordKey: record.RecordKey})
		if err == nil {
			return Place{l.At.Topic, first.KafkaPartition, first.KafkaOffset}, first.State, nil
		}
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return l.At, l.State, nil // it was settled just now
	}
	return Place{}, "", err
}
