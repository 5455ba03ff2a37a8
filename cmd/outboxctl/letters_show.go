package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/terminal"
)

func lettersShow(c *cli.Context) error {
	if c.NArg() != 1 {
		return usage("%s takes one PLACE or KEY, got %d; %s", c.Command.HelpName, c.NArg(), letters.PlaceExample)
	}
	s, err := readLetterSelection(c)
	if err != nil {
		return err
	}
	return ask(c, func(db *operator.Database) (*letters.GroupShown, error) {
		report, err := letters.ShowGroups(c.Context, db, s, c.Bool("payload"))
		if err != nil {
			return nil, fmt.Errorf("dead show: %w", err)
		}
		return report, nil
	}, printGroupLettersShown)
}

func printActions(p *page, actions []operator.Action) {
	var rows [][]string
	for _, v := range actions {
		rows = append(rows, []string{v.Action, v.Group, v.Target, terminal.Stamp(&v.At), v.By,
			terminal.Preview([]byte(v.Reason), maxReason)})
	}
	p.table([]string{"decided", "group?", "about", "at??", "by?", "reason…"}, rows)
}

func printGroupLettersShown(p *page, r *letters.GroupShown) {
	printProblems(p, r.Problems)
	for i, v := range r.Letters {
		if i > 0 {
			p.line("")
		}
		printGroupLetter(p, v)
	}
	printActions(p, r.Actions)
	p.next(r.Next)
	for _, v := range r.Letters {
		if v.Payload != nil {
			p.line("\npayload (%s, %s):", v.Group, v.Place)
			p.payload(v.Payload)
		}
	}
}

func printGroupLetter(p *page, v letters.WholeGroupLetter) {
	payload := fmt.Sprintf("%s: %s", terminal.Size(int64(v.PayloadBytes)), v.PayloadPreview)
	if v.Tombstone {
		payload = "none (a tombstone)"
	}
	sent, expires, decided := "", "", ""
	if v.SentAt != nil {
		sent = terminal.Stamp(v.SentAt)
	}
	if v.ExpiresAt != nil {
		expires = terminal.Stamp(v.ExpiresAt)
	}
	if v.DecidedAt != nil {
		decided = fmt.Sprintf("%s by %s: %s", terminal.Stamp(v.DecidedAt), operator.Deref(v.DecidedBy), terminal.Preview([]byte(operator.Deref(v.DecidedWhy)), maxReason))
	}
	p.pairs(
		[2]string{"group", v.Group},
		[2]string{"place", v.Place},
		[2]string{"topic id", v.TopicID},
		[2]string{"key", orDash(v.Key)},
		[2]string{"state", v.Standing()},
		[2]string{"why", v.Why(2000)},
		[2]string{"attempts", strconv.Itoa(int(v.Attempts))},
		[2]string{"redrives", strconv.Itoa(int(v.Generation))},
		[2]string{"kept", terminal.Stamp(&v.KeptAt)},
		[2]string{"sent to kafka", sent},
		[2]string{"decided", decided},
		[2]string{"removed after", expires},
		[2]string{"event type", short(v.EventType)},
		[2]string{"record key…", terminal.Preview(v.RecordKey, terminal.PreviewBytes)},
		[2]string{"record headers…", headerText(v.Headers)},
		[2]string{"payload…", payload},
	)
}

// headerText writes the headers that a letter keeps as name=value.
func headerText(kept json.RawMessage) string {
	var pairs [][2]json.RawMessage
	if len(kept) > 0 && json.Unmarshal(kept, &pairs) != nil {
		return terminal.Preview(kept, terminal.PreviewBytes)
	}
	var out []string
	for _, v := range pairs {
		var name string
		var value []byte
		if errors.Join(json.Unmarshal(v[0], &name), json.Unmarshal(v[1], &value)) != nil {
			return terminal.Preview(kept, terminal.PreviewBytes)
		}
		out = append(out, short(name)+"="+terminal.Preview(value, terminal.PreviewBytes))
	}
	return strings.Join(out, " ")
}
