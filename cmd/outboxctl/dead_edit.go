package main

import (
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/outbox"
)

func editFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "payload-file", Usage: "the new payload, the bytes of `FILE`"},
		&cli.BoolFlag{Name: "null-payload", Usage: "no payload: the event becomes a tombstone"},
		&cli.StringFlag{Name: "headers-file", Usage: "the new headers of the producer, a JSON object of strings in `FILE`; {} for none"},
	}
}

func deadEdit(c *cli.Context) error {
	key, err := readOneName(c)
	if err != nil {
		return err
	}
	edit, err := readEdit(c)
	if err != nil {
		return err
	}
	reason, err := readReason(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	order, nothing, err := letters.PlanEdit(c.Context, db, key, edit)
	if order == nil {
		return answerNothing(c, nothing, err)
	}
	return give(c, db, fmt.Sprintf("change the dead letter %s", key), reason, order)
}

// readEdit reads the new content.
func readEdit(c *cli.Context) (e letters.Edit, err error) {
	payload, headers := c.String("payload-file"), c.String("headers-file")
	switch {
	case payload != "" && c.Bool("null-payload"):
		return e, usage("dead edit: give one of --payload-file and --null-payload")
	case payload == "" && headers == "" && !c.Bool("null-payload"):
		return e, usage("dead edit: say what to change: --payload-file, --null-payload or --headers-file")
	}
	e.PayloadNull = c.Bool("null-payload")
	if payload != "" {
		if e.Payload, err = readFile("payload-file", payload, outbox.MaxPayload); err != nil {
			return e, err
		}
	}
	if headers != "" {
		e.Headers, err = readHeaders(headers)
	}
	return e, err
}

// readFile never returns nil without an error: an empty payload is a payload.
func readFile(flag, name string, limit int) ([]byte, error) {
	data, err := os.ReadFile(name) //nolint:gosec // G304: the operator names the file
	if err != nil {
		return nil, fmt.Errorf("read --%s: %w", flag, err)
	}
	if len(data) > limit {
		return nil, usage("--%s: %s has %s, more than %s", flag, name, terminal.Size(int64(len(data))), terminal.Size(int64(limit)))
	}
	return append([]byte{}, data...), nil
}

func readHeaders(name string) ([]byte, error) {
	data, err := readFile("headers-file", name, 2*letters.MaxHeaders)
	if err != nil {
		return nil, err
	}
	headers, err := letters.ParseHeaders(name, data)
	if err != nil {
		return nil, usage("--headers-file: %v", err)
	}
	return headers, nil
}
