package main

import (
	"fmt"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/events"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
)

func showCommand() *cli.Command {
	flags := []cli.Flag{
		outputFlag(),
		&cli.StringFlag{Name: "relay", Usage: "as the relay called `NAME` has it; without it as the one that is least far"},
		&cli.DurationFlag{Name: "wait", Usage: "wait until it is there and neither pending nor waiting for its route, with every relay or the one of --relay, at most for `TIME`; exit code 3 when it is not"},
		&cli.BoolFlag{Name: "payload", Usage: "print the whole payload (in JSON as base64), not only how it begins"},
		&cli.StringFlag{Name: "consumer-dsn", Usage: "say also what each consumer group did, from the consumer's database at `DSN`"},
		&cli.StringFlag{Name: "consumer-dsn-file", Usage: "read that connection string from `FILE`"},
		&cli.StringSliceFlag{Name: "brokers", Usage: "say also where the event is in Kafka, from the cluster at `HOST:PORT`, without TLS; needs --topic"},
		&cli.StringFlag{Name: "topic", Usage: "`TOPIC` to search; with --config the event's route says it"},
		&cli.StringFlag{Name: "config", Aliases: []string{"c"}, Usage: "take brokers, TLS, SASL and routes from the relay's configuration in `FILE`; and the database, unless --dsn, --dsn-file or " + dsnVariable + " names one"},
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
	slot := ""
	if c.String("relay") != "" {
		state, err := theRelay(c, db)
		if err != nil {
			return err
		}
		slot = state.Slot
	}
	report, err := events.ReadLife(c.Context, db, key, slot, c.Duration("wait"))
	if err != nil {
		return fmt.Errorf("show %s: %w", key, err)
	}
	if err := askConsumer(c, report, consumerDSN, key); err != nil {
		return fmt.Errorf("show %s: consumer's database: %w", key, err)
	}
	if err := report.Search(c.Context, db, where.Where, key); err != nil {
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
	if err := checkWait(c); err != nil {
		return operator.Name{}, err
	}
	switch brokers := len(c.StringSlice("brokers")) > 0; {
	case c.String("config") != "" && brokers:
		return operator.Name{}, usage("show: --config names the brokers; leave --brokers out")
	case c.String("config") == "" && (c.String("topic") != "") != brokers:
		return operator.Name{}, usage("show: --brokers and --topic go together")
	}
	return key, nil
}

func printShow(p *page, r *events.Life) {
	p.pairs(append([][2]string{
		{"key", r.Key},
		{"state!", r.State + ": " + r.Why},
		{"event time", terminal.Stamp(&r.EventTime)},
	}, rowPairs(r)...)...)
	if r.Waited != "" {
		p.line("! so it is still, after %s", r.InVain())
	}
	if r.PublishedEdited() {
		p.line("\nit was published with edited content; the above is what was written: `outboxctl dead show %s` has what was published", r.Key)
	}
	printProducer(p, r)
	printKafka(p, r)
	printConsumer(p, r)
	if r.State == states.Dead || r.State == states.Discarded { // else what says the state has them
		p.next(r.Next)
	}
	if r.Row != nil && r.Row.Payload != nil {
		p.line("\npayload:")
		p.payload(r.Row.Payload)
	}
}

func rowPairs(r *events.Life) [][2]string {
	v := r.Row
	if v == nil {
		return nil
	}
	payload := fmt.Sprintf("%s: %s", terminal.Size(int64(v.PayloadBytes)), v.PayloadPreview)
	if v.Tombstone {
		payload = "none (a tombstone)"
	}
	return [][2]string{
		{"event type", v.EventType},
		{"aggregate", v.AggregateType + " " + v.AggregateID},
		{"written", terminal.Stamp(&v.CreatedAt)},
		{"transaction", strconv.FormatUint(v.TxID, 10)},
		{"seq", strconv.FormatInt(v.Seq, 10)},
		{"content type", v.ContentType},
		{"headers…", string(v.Headers)},
		{"traceparent", v.Traceparent},
		{"payload…", payload},
	}
}

func printProducer(p *page, r *events.Life) {
	var relays, letters, replays [][]string
	for _, v := range r.Relays {
		says := v.State
		if v.Disagrees {
			says += " (!)"
		}
		relays = append(relays, []string{v.Relay, v.Slot, says, terminal.Stamp(r.AsOf(v)), v.Why})
	}
	for _, v := range r.DeadLetters {
		state := v.State
		if v.EditedAt != nil {
			state += ", edited"
		}
		letters = append(letters, []string{
			v.Slot, state, v.Class, whole(v.Error), strconv.Itoa(int(v.Attempts)), terminal.Stamp(&v.FirstAt),
			terminal.Stamp(&v.LastAt),
		})
	}
	for _, v := range r.Replays {
		replays = append(replays, []string{v.ID.String(), v.Mode, terminal.Stamp(&v.RequestedAt), v.RequestedBy,
			whole(v.Reason)})
	}
	p.table([]string{"relay", "slot??", "says!", "as of?", "because…"}, relays)
	p.table([]string{"dead letter in", "state…", "class", "error…", "attempts?", "first??", "last??"}, letters)
	p.table([]string{"replay", "mode", "asked at?", "by?", "reason…"}, replays)
	for _, waits := range r.WaitingReplays() {
		p.line("\n%s", waits)
	}
}

func printKafka(p *page, r *events.Life) {
	if r.NotSearched != "" {
		p.line("\nkafka: not searched: %s", r.NotSearched)
	}
	if r.Kafka == nil {
		return
	}
	if r.Disagree != "" {
		p.line("\n! %s", r.Disagree)
	}
	if len(r.Kafka.Copies) == 0 {
		p.line("\nkafka: %s", r.Kafka.Nowhere())
		return
	}
	var rows [][]string
	for _, v := range r.Kafka.Copies {
		kind := "event"
		switch {
		case v.ReplayID != "":
			kind = "replay " + v.ReplayID
		case v.RepairID != "":
			kind = "repair " + v.RepairID
		}
		rows = append(rows, []string{r.Kafka.Topic, strconv.Itoa(int(v.Partition)), strconv.FormatInt(v.Offset, 10),
			terminal.Stamp(&v.Timestamp), kind})
	}
	p.table([]string{"topic", "partition", "offset", "stamped?", "as…"}, rows)
}

func printConsumer(p *page, r *events.Life) {
	if r.Groups == nil {
		return
	}
	var groups, refused [][]string
	for _, v := range *r.Groups {
		groups = append(groups, []string{v.Group, v.Outcome, terminal.Stamp(&v.ProcessedAt), v.As()})
	}
	for _, v := range r.Refused {
		refused = append(refused, []string{
			v.Group, v.State, v.Reason, fmt.Sprintf("%s/%d@%d", v.Topic, v.Partition, v.Offset), whole(v.Error), terminal.Stamp(&v.CreatedAt),
		})
	}
	if len(groups) == 0 {
		p.line("\nno consumer group has claimed it")
	}
	p.table([]string{"group", "outcome", "at?", "as…"}, groups)
	printTries(p, r.Tries)
	printFences(p, r.Fences)
	p.table([]string{"refused by", "state", "reason", "record", "error…", "at?"}, refused)
}
