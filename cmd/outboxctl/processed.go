package main

import (
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/claims"
	"github.com/onceward/onceward/internal/terminal"
)

func processedCommand() *cli.Command {
	return &cli.Command{
		Name:  "processed",
		Usage: "look at what consumer groups did with an event; make a group forget it",
		Subcommands: []*cli.Command{
			{
				Name: "show", Usage: "say what each group did with an event: claims, failed tries, fences, dead letters", ArgsUsage: "KEY",
				Description: "A claim is kept under the event's own id or, of a late event and of a class that is keyed by arrival, under\n" +
					"two ids made of it and of the time of arrival. That of a reprocessing replay is kept under the replay's id:\n" +
					"give it in the place of the event's, namespace:replay-id.",
				Flags:  append([]cli.Flag{groupFlag(), outputFlag()}, dsnFlags()...),
				Action: processedShow,
			},
			{
				Name: "forget", Usage: "remove a group's claim on an event, so that its next delivery applies it again", ArgsUsage: "KEY",
				Description: "Nothing delivers the event again by itself: `outboxctl replay KEY --config FILE --reason REASON` does, in the\n" +
					"producer's database. Below the floor of its class such a copy becomes a dead letter, to be redriven; the\n" +
					"answer says so. With --reprocess GROUP the group applies an event once more without anything being\n" +
					"forgotten. Do one of the two: after both, the next plain copy is applied as well.",
				Flags: append([]cli.Flag{
					&cli.StringFlag{Name: "group", Usage: "the consumer group `NAME`"}, reasonFlag(), yesFlag(), outputFlag(),
				}, dsnFlags()...),
				Action: processedForget,
			},
		},
	}
}

func processedShow(c *cli.Context) error {
	key, err := readOneName(c)
	if err != nil {
		return err
	}
	return ask(c, func(db *operator.Database) (*claims.Report, error) {
		report, err := claims.Read(c.Context, db, key, c.String("group"))
		return report, prefixed("processed show "+key.String(), err)
	}, printProcessed)
}

func printProcessed(p *page, r *claims.Report) {
	p.pairs([2]string{"key", r.Key}, [2]string{"event time", terminal.Stamp(&r.EventTime)})
	if r.Empty() {
		p.line("\nno consumer group has anything of it")
	}
	var claimed, letters [][]string
	for _, v := range r.Claims {
		under := v.ID.String()
		if v.ByArrival {
			under += ", by arrival"
		}
		claimed = append(claimed, []string{
			v.Group, v.Outcome, terminal.Stamp(&v.ClaimedAt), under, short(v.EventType), v.Fingerprint,
			short(orDash(string(v.Result))),
		})
	}
	for _, v := range r.Letters {
		letters = append(letters, []string{v.Group, v.State, v.Place, strconv.Itoa(int(v.Attempts)),
			v.Brief()})
	}
	p.table([]string{"group", "outcome", "claimed?", "under", "type?", "fingerprint??", "result…"}, claimed)
	printTries(p, r.Tries)
	printFences(p, r.Fences)
	p.table([]string{"dead letter of", "state", "record", "attempts?", "why…"}, letters)
	printActions(p, r.Actions)
	for i, note := range r.Notes {
		if i == 0 {
			p.line("")
		}
		p.line("%s", note)
	}
}

func printTries(p *page, of []claims.Tries) {
	var tries [][]string
	for _, v := range of {
		tries = append(tries, []string{v.Group, strconv.Itoa(int(v.Attempts)), whole(v.LastError)})
	}
	p.table([]string{"group", "failed tries", "last error…"}, tries)
}
