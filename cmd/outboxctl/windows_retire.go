package main

import (
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/migrations"
)

// restedFor is for how long a group must not have saved progress before it, or
// its place in a topic, is given up: one that runs saves it every few seconds
// while it has something to do.
const restedFor = time.Minute

func windowsRetire(c *cli.Context) error {
	change, err := readRetire(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	if change.Topic != nil {
		err = retireTopic(c, db, change)
	} else {
		err = retireClasses(c, db, change)
	}
	if err != nil {
		return err
	}
	return answer(c, change, printWindowChange)
}

// readRetire checks what needs no server.
func readRetire(c *cli.Context) (*windowChange, error) {
	if err := checkOutput(c); err != nil {
		return nil, err
	}
	if c.NArg() != 1 {
		return nil, usage("%s takes one GROUP, got %d arguments", c.Command.HelpName, c.NArg())
	}
	if c.IsSet("class") && c.IsSet("topic") {
		return nil, usage("%s: --class and --topic: give one of them", c.Command.HelpName)
	}
	change := &windowChange{Group: c.Args().First(), Class: c.String("class"), Notes: []string{}}
	if c.IsSet("topic") {
		topic := c.String("topic")
		change.Topic = &topic
	}
	var err error
	change.Reason, err = readReason(c)
	return change, err
}

func retireClasses(c *cli.Context, db *operator.Database, change *windowChange) error {
	q := consumerdb.New(db)
	var last *time.Time
	if change.Class == "" {
		var err error
		if last, err = rested(c, q, consumerdb.MarksOfGroupParams{ConsumerGroup: change.Group}); err != nil {
			return err
		}
	}
	if err := confirm(c, fmt.Sprintf("retire group %s%s: retention drops claims that only it still needs", change.Group, ofClass(change.Class))); err != nil {
		return err
	}
	n, err := q.RetireWindows(c.Context, consumerdb.RetireWindowsParams{ConsumerGroup: change.Group, Class: change.Class, Reason: change.Reason})
	marks := int64(0)
	if err == nil && last != nil { // who reads nothing any more holds nothing back
		marks, err = q.RetireTopic(c.Context, consumerdb.RetireTopicParams{ConsumerGroup: change.Group, AllTopics: true, SavedUntil: *last, Reason: change.Reason})
	}
	if err == nil && n+marks == 0 {
		err = errNoClass
	}
	if err != nil {
		return fmt.Errorf("windows retire %s: %w", change.Group, operator.ExplainOperator(err, migrations.Consumer))
	}
	change.Changed = []string{fmt.Sprintf("%d classes retired", n)}
	if n == 0 { // it has none, or they were retired before
		change.Changed = []string{fmt.Sprintf("marks of %d partitions retired", marks)}
	}
	change.Notes = []string{"a program that has them in its configuration registers them again, with floors above what was dropped meanwhile"}
	return nil
}

func retireTopic(c *cli.Context, db *operator.Database, change *windowChange) error {
	q := consumerdb.New(db)
	last, err := rested(c, q, consumerdb.MarksOfGroupParams{ConsumerGroup: change.Group, OneTopic: true, Topic: *change.Topic})
	if err != nil {
		return err
	}
	if last == nil {
		return fmt.Errorf("group %s has no marks of topic %q; `outboxctl windows list` shows what holds its stream time back", change.Group, *change.Topic)
	}
	if err := confirm(c, fmt.Sprintf("let the stream time of group %s go on without topic %q; how far it has got there is kept, should it read the topic again", change.Group, *change.Topic)); err != nil {
		return err
	}
	n, err := q.RetireTopic(c.Context, consumerdb.RetireTopicParams{ConsumerGroup: change.Group, Topic: *change.Topic, SavedUntil: *last, Reason: change.Reason})
	if err != nil {
		return fmt.Errorf("windows retire %s: %w", change.Group, operator.ExplainOperator(err, migrations.Consumer))
	}
	change.Changed = []string{fmt.Sprintf("marks of %d partitions of topic %q retired", n, *change.Topic)}
	return nil
}

// rested refuses while the group saves progress of what is to be given up. It
// returns when it did so last; nil: never.
func rested(c *cli.Context, q *consumerdb.Queries, what consumerdb.MarksOfGroupParams) (last *time.Time, err error) {
	rows, err := q.MarksOfGroup(c.Context, what)
	if err != nil {
		return nil, fmt.Errorf("read the group's progress: %w", operator.Explain(err, migrations.Consumer))
	}
	for i, v := range rows {
		if ago := time.Duration(v.SecondsAgo * float64(time.Second)); ago < restedFor {
			return nil, fmt.Errorf("group %s runs: it saved its progress in %s/%d %s ago; stop it, and try again a minute later",
				what.ConsumerGroup, v.Topic, v.KafkaPartition, ago.Round(time.Second))
		}
		if last == nil || v.UpdatedAt.After(*last) {
			last = &rows[i].UpdatedAt
		}
	}
	return last, nil
}
