package main

import (
	"fmt"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
)

func deadShow(c *cli.Context) error {
	key, err := readOneName(c)
	if err != nil {
		return err
	}
	return ask(c, func(db *operator.Database) (*letters.Shown, error) {
		report, err := letters.Show(c.Context, db, key, c.Bool("payload"))
		return report, prefixed("dead show", err)
	}, printDeadShow)
}

func printDeadShow(p *page, r *letters.Shown) {
	if len(r.Letters) == 0 {
		p.line("no dead letter has the key %s; `outboxctl show %s` tells where the event is", r.Key, r.Key)
		return
	}
	for i, v := range r.Letters {
		if i > 0 {
			p.line("")
		}
		printDeadLetter(p, v)
	}
	var orders [][]string
	for _, v := range r.Commands {
		what := v.Action
		if v.Aggregate {
			what += " aggregate"
		}
		orders = append(orders, []string{what, terminal.Stamp(&v.RequestedAt), v.RequestedBy, whole(v.Reason)})
	}
	p.table([]string{"word", "asked at?", "by", "reason…"}, orders)
	p.next(r.Next)
	for _, v := range r.Letters {
		if v.Payload != nil {
			p.line("\npayload (%s):", v.Slot)
			p.payload(v.Payload)
		}
	}
}

func printDeadLetter(p *page, v letters.WholeLetter) {
	payload := fmt.Sprintf("%s: %s", terminal.Size(int64(v.PayloadBytes)), v.PayloadPreview)
	if v.Tombstone {
		payload = "none (a tombstone)"
	}
	holds, edited, state := "", "", v.State
	if v.Waits {
		state += ", waits for its route: `outboxctl status` says why"
	}
	if v.Holds && (v.State == states.LetterOpen || v.State == states.LetterRetrying) {
		holds = "later events of the aggregate wait behind it"
	}
	if v.EditedAt != nil {
		edited = fmt.Sprintf("%s by %s: %s", terminal.Stamp(v.EditedAt), operator.Deref(v.EditedBy), terminal.Preview([]byte(operator.Deref(v.EditedWhy)), maxReason))
	}
	p.pairs(
		[2]string{"key", v.Key},
		[2]string{"replay of", v.ReplayOf},
		[2]string{"slot", v.Slot},
		[2]string{"state", state},
		[2]string{"why", v.Class + ": " + terminal.Preview([]byte(v.Error), 2000)},
		[2]string{"attempts", strconv.Itoa(int(v.Attempts))},
		[2]string{"parked", terminal.Stamp(&v.FirstAt)},
		[2]string{"last tried", terminal.Stamp(&v.LastAt)},
		[2]string{"position", v.Position},
		[2]string{"event type", short(v.EventType)},
		[2]string{"aggregate", short(v.AggregateType + " " + v.AggregateID)},
		[2]string{"written", terminal.Stamp(&v.CreatedAt)},
		[2]string{"seq", strconv.FormatInt(v.Seq, 10)},
		[2]string{"content type", short(v.ContentType)},
		[2]string{"headers…", string(v.Headers)},
		[2]string{"payload…", payload},
		[2]string{"holds", holds},
		[2]string{"edited", edited},
		[2]string{"decided by", operator.Deref(v.DecidedBy)},
		[2]string{"decided why", terminal.Preview([]byte(operator.Deref(v.DecidedWhy)), maxReason)},
	)
}
