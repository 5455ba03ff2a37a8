package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/events"
)

func showCommand() *cli.Command {
	flags := []cli.Flag{
		outputFlag(),
		&cli.StringFlag{Name: "relay", Usage: "as the relay called `NAME` has it; without it as the one that is least far"},
		&cli.BoolFlag{Name: "payload", Usage: "print the whole payload (in JSON as base64), not only how it begins"},
		&cli.StringFlag{Name: "consumer-dsn", Usage: "say also what each consumer group did, from the consumer's database at `DSN`"},
		&cli.StringFlag{Name: "consumer-dsn-file", Usage: "read that connection string from `FILE`"},
		&cli.StringSliceFlag{Name: "brokers", Usage: "say also where the event is in Kafka, from the cluster at `HOST:PORT`, without TLS; needs --topic"},
		&cli.StringFlag{Name: "topic", Usage: "`TOPIC` to search; with --config the event's route says it"},
		&cli.StringFlag{Name: "config", Aliases: []string{"c"}, Usage: "take databases, brokers, TLS, SASL and routes from the relay's configuration in `FILE`"},
	}
	return &cli.Command{
		Name:      "show",
		Usage:     "tell the whole life of one event",
		ArgsUsage: "KEY",
		Flags:     append(flags, dsnFlags()...),
		Action:    showEvent,
	}
}

func showEvent(c *cli.Context) error {
	key, err := showArguments(c)
	if err != nil {
		return err
	}
	consumerDSN, err := dsn(c, "consumer-")
	if err != nil {
		return err
	}
	where, err := whereToLook(c)
	if err != nil {
		return err
	}
	db, err := where.connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	if key, err = key.Resolve(c.Context, db); err != nil {
		return fmt.Errorf("show: %w", err)
	}
	report, err := events.ReadLife(c.Context, db, key)
	if err != nil {
		return fmt.Errorf("show %s: %w", key, err)
	}
	if c.String("relay") != "" {
		state, err := theRelay(c, db)
		if err != nil {
			return err
		}
		report.Narrow(state.Slot)
	}
	if err := askConsumer(c, report, consumerDSN, key); err != nil {
		return fmt.Errorf("show %s: consumer's database: %w", key, err)
	}
	if err := report.Search(c.Context, where.Where, key); err != nil {
		return err
	}
	report.Judge()
	report.TrimPayload(c.Bool("payload"))
	return answer(c, report, printShow)
}

// askConsumer reads what each consumer group did; an empty dsn asks nobody.
func askConsumer(c *cli.Context, r *events.Life, dsn string, key operator.Name) error {
	if dsn == "" {
		return nil
	}
	if err := verified(c, dsn); err != nil {
		return err
	}
	consumer, err := operator.Open(c.Context, dsn)
	if err != nil {
		return err
	}
	defer consumer.Close()
	return r.ReadGroups(c.Context, consumer, key)
}

// showArguments checks what needs no server.
func showArguments(c *cli.Context) (operator.Name, error) {
	key, err := readOneName(c)
	if err != nil {
		return key, err
	}
	switch brokers := len(c.StringSlice("brokers")) > 0; {
	case c.String("config") != "" && brokers:
		return operator.Name{}, usage("show: --config names the brokers; leave --brokers out")
	case c.String("config") == "" && (c.String("topic") != "") != brokers:
		return operator.Name{}, usage("show: --brokers and --topic go together")
	}
	return key, nil
}
