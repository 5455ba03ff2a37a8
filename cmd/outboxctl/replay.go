package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/replay"
)

func replayCommand() *cli.Command {
	return &cli.Command{
		Name:      "replay",
		Usage:     "publish events again, or those that no relay publishes by itself",
		ArgsUsage: "[KEY…]",
		Description: "Says first how many events are meant, and asks. Every event goes out under its own key and with a replay-id;\n" +
			"a consumer group applies it only if it has not yet, unless --reprocess names the group. The rows in\n" +
			"onceward.replays say who asked for it, when and why. A replay is outside the order of its aggregate.\n" +
			"Events of the states before, gap and given-up can be replayed too; they keep their state.\n\n" +
			"What is pending or dead is left out: the one comes by itself, the other by `outboxctl dead retry`, in its\n" +
			"place. With --dead it is the other way round: the events of letters that were discarded go out; those of\n" +
			"letters that wait too, but only to another --topic, since a copy ahead of its turn would break the order.\n\n" +
			"Interrupted, it says how far it came; --after goes on from there.",
		Flags: append(append([]cli.Flag{
			&cli.BoolFlag{Name: "dead", Usage: "the events of discarded dead letters (with --topic: of all) instead of published ones"},
			&cli.StringFlag{Name: "topic", Usage: "to `TOPIC` instead of where the event's route leads"},
			&cli.StringFlag{Name: "reprocess", Usage: "consumer `GROUP` applies them again, though it has applied them"},
			reasonFlag(),
			&cli.IntFlag{Name: "rate", Value: 1000, Usage: "at most `N` events a second"},
			&cli.StringFlag{Name: "after", Usage: "go on behind the row at `SEQ/ID`, which an interrupted replay named"},
			configFlag(),
			&cli.StringSliceFlag{Name: "brokers", Usage: "ask the cluster at `HOST:PORT`, without TLS, whether --topic is compacted; --config says it of every route"},
			&cli.BoolFlag{Name: "unchecked", Usage: "do not ask Kafka whether a topic is there, and compacted: there an old event must not come after a newer one"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only say what would be replayed"},
			yesFlag(), outputFlag(),
		}, selectionFlags("written")...), dsnFlags()...),
		Action: replayEvents,
	}
}

func replayEvents(c *cli.Context) error {
	order, err := readReplay(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	plan, err := order.Plan(c.Context, db)
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	report := plan.Report
	if len(report.Problems) > 0 || report.Selected == 0 || order.DryRun {
		return answer(c, report, printReplay)
	}
	if !c.Bool("yes") {
		p := newPage(c, c.App.ErrWriter) // what a person should see before saying yes
		printReplayTables(p, report)
		fmt.Fprint(c.App.ErrWriter, p.text.String()) //nolint:errcheck // the question follows
	}
	if err := confirm(c, report.Question()); err != nil {
		return err
	}
	line := newProgress(c.App.ErrWriter, "asked for", report.Selected)
	failed := plan.Request(c.Context, db, line.show)
	line.end()
	return errors.Join(failed, write(c, report, printReplay))
}

// topicName is what Kafka takes (kafka.common.internals.Topic).
var topicName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

// readReplay checks what needs no server.
func readReplay(c *cli.Context) (o replay.Order, err error) {
	if err := checkOutput(c); err != nil {
		return o, err
	}
	if o.Selection, err = readSelection(c); err != nil {
		return o, err
	}
	o.Dead, o.Topic, o.Group = c.Bool("dead"), c.String("topic"), c.String("reprocess")
	o.Rate, o.DryRun, o.Unchecked = c.Int("rate"), c.Bool("dry-run"), c.Bool("unchecked")
	if o.After, err = replay.ParsePlace(c.String("after")); err != nil {
		return o, usage("--after %s: want SEQ/ID, as an interrupted replay printed it", c.String("after"))
	}
	switch {
	case len(o.Keys) == 0 && !o.Filtered() && !o.Dead:
		return o, usage("replay: say which events: KEYs, or filters such as --aggregate, --from, --type, or --dead; %s", operator.KeyExample)
	case o.Topic != "" && !writableTopic(o.Topic):
		return o, usage("--topic %q: want 1 to 249 of a-z, A-Z, 0-9, ., _ and -, and no internal topic", o.Topic)
	case c.IsSet("reprocess") && (o.Group == "" || len(o.Group) > 255):
		return o, usage("--reprocess %q: want the name of a consumer group", o.Group)
	case o.Rate < 1 || o.Rate > replay.MaxRate:
		return o, usage("--rate %d: want 1 to %d events a second", o.Rate, replay.MaxRate)
	}
	if !o.DryRun {
		if o.Reason, err = readReason(c); err != nil {
			return o, err
		}
	}
	err = readTopics(c, &o)
	return o, err
}

func writableTopic(name string) bool {
	return topicName.MatchString(name) && name != "." && name != ".." && !strings.HasPrefix(name, "__")
}

// readTopics finds out whom to ask about the topics, unless nobody is to be.
func readTopics(c *cli.Context, o *replay.Order) error {
	if o.Unchecked && (o.Topic == "" || c.String("config") == "") {
		return nil
	}
	brokers := len(c.StringSlice("brokers")) > 0
	switch {
	case c.String("config") != "" && brokers:
		return usage("replay: --config names the brokers; leave --brokers out")
	case c.String("config") == "" && (!brokers || o.Topic == ""):
		return usage("replay: whether a topic is compacted cannot be told without Kafka; give --config, or --brokers with --topic, " +
			"or --unchecked if no event of these leads to a compacted topic")
	}
	w, _, err := clusterToAsk(c)
	if o.Kafka = w.Where; err != nil || o.Topic == "" || !o.Kafka.Routed {
		return err
	}
	if err := o.Kafka.Config.Permits(o.Topic); err != nil {
		return usage("--topic %s: the relay of %s would not publish there: %v", o.Topic, c.String("config"), err)
	}
	return nil
}

func printReplayTables(p *page, r *replay.Result) {
	var kinds, left [][]string
	for _, k := range r.Kinds {
		kinds = append(kinds, []string{k.Namespace, k.AggregateType, k.EventType, fmt.Sprint(k.Events)})
	}
	for _, l := range r.LeftOut {
		left = append(left, []string{l.State, fmt.Sprint(l.Events), l.Why})
	}
	p.table([]string{"namespace", "aggregate type", "event type", "events"}, kinds)
	p.table([]string{"left out", "events", "why…"}, left)
}

func printReplay(p *page, r *replay.Result) {
	switch {
	case len(r.Problems) > 0:
		for _, problem := range r.Problems {
			p.line("! %s", problem)
		}
		p.line("nothing was replayed")
	case r.Selected == 0:
		p.line("no event to replay")
		printReplayTables(p, r)
	case r.DryRun:
		p.line("would %s", r.Question())
		printReplayTables(p, r)
	default:
		upto, after := "", ""
		if r.After != "" {
			upto, after = ", up to row "+r.After, " with --after "+r.After
		}
		p.line("asked for the replay of %d of %s (%s)%s", r.Requested, label.Count(r.Selected, "event"), r.Mode, upto)
		if r.Gone > 0 {
			p.line("gone meanwhile, dropped with their day: %d", r.Gone)
		}
		if left := r.Selected - r.Requested - r.Gone; left > 0 {
			p.line("%d %s left; the same command%s goes on", left, label.Are(left), after)
		}
	}
}
