package main

import (
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
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
		Action:    show,
	}
}

// searchBefore is how much older than the row a record of it may be stamped:
// clocks of PostgreSQL and Kafka differ.
const searchBefore = time.Minute

func show(c *cli.Context) error {
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
	report := &showReport{Key: key.String(), EventTime: key.Time()}
	if err := report.readProducer(c.Context, db, key); err != nil {
		return fmt.Errorf("show %s: %w", key, operator.Explain(err, migrations.Outbox))
	}
	if c.String("relay") != "" {
		state, err := theRelay(c, db)
		if err != nil {
			return err
		}
		report.narrow(state.Slot)
	}
	if err := report.askConsumer(c, consumerDSN, key); err != nil {
		return fmt.Errorf("show %s: consumer's database: %w", key, err)
	}
	if err := where.search(c.Context, report, key); err != nil {
		if c.Err() != nil {
			return err
		}
		report.NotSearched = err.Error() // what the database knows is told all the same
	}
	report.judge()
	report.trimPayload(c.Bool("payload"))
	if err := answer(c, report, printShow); err != nil {
		return err
	}
	if report.State == states.NotFound || report.Disagree != "" {
		return errWrong
	}
	return nil
}

// askConsumer reads what each consumer group did; an empty dsn asks nobody.
func (r *showReport) askConsumer(c *cli.Context, dsn string, key operator.Name) error {
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
	return r.readConsumer(c.Context, consumer, key)
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

// search says where copies can be. Without row and letter the aggregate is
// unknown, so that all partitions are read, from before the key's time: the key
// may have been made by a clock that ran ahead.
func (r *showReport) search(brokers []string, topic string, key operator.Name) search {
	s := search{Brokers: brokers, Topic: topic, Key: operator.KeyText(key.Namespace, key.ID), From: key.Time().Add(-outbox.DefaultKeySkew - searchBefore)}
	switch {
	case r.Row != nil:
		s.RecordKey, s.From = []byte(r.Row.AggregateID), r.Row.CreatedAt.Add(-searchBefore)
	case len(r.DeadLetters) > 0:
		s.RecordKey = []byte(r.DeadLetters[0].AggregateID)
	}
	return s
}
