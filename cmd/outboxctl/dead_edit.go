package main

import (
	"encoding/json"
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

// Limits of what Enqueue takes; an edited event keeps to them.
const (
	maxPayload    = outbox.MaxPayload
	maxHeaders    = 64 << 10
	maxHeaderName = 255
)

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
		if e.Payload, err = readFile("payload-file", payload, maxPayload); err != nil {
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
	data, err := readFile("headers-file", name, 2*maxHeaders)
	if err != nil {
		return nil, err
	}
	var headers map[string]string
	if err := json.Unmarshal(data, &headers); err != nil || headers == nil {
		return nil, usage("--headers-file: %s is no JSON object of strings", name)
	}
	total := 0
	for k, v := range headers {
		total += len(k) + len(v)
		switch {
		case k == "" || len(k) > maxHeaderName:
			return nil, usage("--headers-file: a name has 1 to %d bytes, %q has %d", maxHeaderName, k, len(k))
		case outbox.ReservedHeader(k):
			return nil, usage("--headers-file: %q is reserved by the wire contract", k)
		}
	}
	if total > maxHeaders {
		return nil, usage("--headers-file: more than %s in names and values", terminal.Size(maxHeaders))
	}
	return json.Marshal(headers)
}
