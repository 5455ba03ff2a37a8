package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/operator/windows"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
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

// processedReport is the JSON answer of processed show: what the groups have of
// one event.
type processedReport struct {
	Key        string                `json:"key"`
	EventTime  time.Time             `json:"event_time"`
	Claims     []claimReport         `json:"claims"`
	Tries      []tryReport           `json:"failed_tries"`
	Fences     []fenceReport         `json:"fences"`
	Letters    []letters.GroupLetter `json:"dead_letters"`
	Actions    []operator.Action     `json:"actions"`
	Notes      []string              `json:"notes"`
	otherOwner string                // namespace that has this UUID
	windows    []windowOfGroup       // classes that could have claimed it
}

type claimReport struct {
	Group       string          `json:"group"`
	ID          uuid.UUID       `json:"id"`
	ByArrival   bool            `json:"by_arrival"` // under an id made of the arrival
	Outcome     string          `json:"outcome"`
	EventType   string          `json:"event_type"`
	ClaimedAt   time.Time       `json:"claimed_at"`
	Fingerprint string          `json:"fingerprint"`
	Result      json.RawMessage `json:"result,omitempty"`
}

type tryReport struct {
	Group     string `json:"group"`
	Attempts  int32  `json:"attempts"`
	LastError string `json:"last_error"`
}

// windowOfGroup is one class of a group.
type windowOfGroup struct {
	group, class string
	floor        time.Time
	keyed        consumer.Keying
	replay       consumer.ReplayPolicy
	retired      bool
}

func processedShow(c *cli.Context) error {
	key, err := readOneName(c)
	if err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	report, err := readProcessed(c.Context, db, key, c.String("group"))
	if err != nil {
		return fmt.Errorf("processed show %s: %w", key, operator.Explain(err, migrations.Consumer))
	}
	if err := answer(c, report, printProcessed); err != nil {
		return err
	}
	if report.empty() {
		return errWrong
	}
	return nil
}

// reader is what reading needs of a connection, a pool or a transaction.
type reader interface {
	consumerdb.DBTX
	partition.Querier
}

// readProcessed reads what one group, or all groups, have of an event.
func readProcessed(ctx context.Context, db reader, key operator.Name, group string) (*processedReport, error) {
	q := consumerdb.New(db)
	r := &processedReport{
		Key: key.String(), EventTime: key.Time(), Claims: []claimReport{}, Tries: []tryReport{}, Fences: []fenceReport{},
		Letters: []letters.GroupLetter{}, Notes: []string{},
	}
	ids, err := r.candidates(ctx, db, key.ID, group)
	if err != nil {
		return nil, err
	}
	if err := r.readClaims(ctx, q, ids, key, group); err != nil {
		return nil, err
	}
	tries, err := q.AttemptsOfEvent(ctx, consumerdb.AttemptsOfEventParams{Ids: []uuid.UUID{key.ID}, ConsumerGroup: group})
	for _, v := range tries {
		r.Tries = append(r.Tries, tryReport{Group: v.ConsumerGroup, Attempts: v.Attempts, LastError: v.LastError})
	}
	if err != nil {
		return nil, err
	}
	if r.Fences, err = fencesOf(ctx, q, key, group, ""); err != nil {
		return nil, err
	}
	targets := []string{key.String()}
	found, err := letters.OfEvent(ctx, q, key, group)
	if err != nil {
		return nil, err
	}
	for _, l := range found {
		r.Letters, targets = append(r.Letters, l), append(targets, l.Place)
	}
	r.note()
	r.Actions, err = operator.ActionsOn(ctx, q, group, append(targets, targetsOf(key, r.Fences)...))
	return r, err
}

// candidates are the ids under which the event can be claimed: its own, and
// those of every arrival that has a partition, for the windows that groups have.
func (r *processedReport) candidates(ctx context.Context, db reader, id uuid.UUID, group string) ([]uuid.UUID, error) {
	rows, err := consumerdb.New(db).ListWindows(ctx, group)
	if err != nil {
		return nil, err
	}
	var rest *partition.DefaultError
	days, err := partition.List(ctx, db, windows.ClaimsTable)
	switch {
	case errors.As(err, &rest):
		r.Notes = append(r.Notes, "claims of the event may be hidden: "+rest.Error())
	case err != nil:
		return nil, err
	}
	ids := []uuid.UUID{id}
	first, last, ok := partition.Extent(days)
	if at := r.EventTime; ok && at.After(first) && at.Before(last.AddDate(0, 0, 1)) && !partition.Has(days, at) {
		r.Notes = append(r.Notes, "no partition takes its day, so that its claim is not seen: `outboxctl audit` says what to do")
	}
	var done []time.Duration
	for _, v := range rows {
		r.windows = append(r.windows, windowOfGroup{
			group: v.ConsumerGroup, class: v.Class, floor: v.Floor, keyed: consumer.Keying(v.Keyed), replay: consumer.ReplayPolicy(v.Replay), retired: v.RetiredAt != nil,
		})
		for _, length := range windows.BucketsOf(v).Lengths() {
			if ok && !slices.Contains(done, length) {
				done = append(done, length)
				ids = append(ids, arrivals(id, length, first, last.AddDate(0, 0, 1))...)
			}
		}
	}
	return ids, nil
}

// arrivals returns the ids at all edges of buckets from first to last. It is pure.
func arrivals(id uuid.UUID, length time.Duration, first, last time.Time) (ids []uuid.UUID) {
	for at := first.Add(-2 * length); length >= time.Millisecond && at.Before(last); at = at.Add(length) {
		ids = append(ids, consumer.ArrivalIDs(id, length, at)[0])
	}
	return ids
}

// maxIDs bounds a statement.
const maxIDs = 10_000

func (r *processedReport) readClaims(ctx context.Context, q *consumerdb.Queries, ids []uuid.UUID, key operator.Name, group string) error {
	for part := range slices.Chunk(ids, maxIDs) {
		rows, err := q.ClaimsUnder(ctx, consumerdb.ClaimsUnderParams{Ids: part, ConsumerGroup: group})
		if err != nil {
			return err
		}
		for _, v := range rows {
			if !key.Is(v.Namespace) {
				r.otherOwner = v.Namespace
				continue
			}
			r.Claims = append(r.Claims, claimReport{
				Group: v.ConsumerGroup, ID: v.EventID, ByArrival: v.EventID != key.ID, Outcome: outcome(v.Outcome), EventType: v.EventType,
				ClaimedAt: v.ProcessedAt.UTC(), Fingerprint: hex.EncodeToString(v.Fingerprint), Result: v.Result,
			})
		}
	}
	return nil
}

// note says what the absence of a claim is worth. Failed tries and fences of a
// UUID that belongs to another namespace are that one's.
func (r *processedReport) note() {
	if r.otherOwner != "" {
		r.Tries, r.Fences = []tryReport{}, []fenceReport{}
		r.Notes = append(r.Notes, "this UUID belongs to namespace "+r.otherOwner)
	}
	for _, w := range r.windows {
		claimed := slices.ContainsFunc(r.Claims, func(v claimReport) bool { return v.Group == w.group })
		if !claimed && !w.retired && r.EventTime.Before(w.floor) {
			r.Notes = append(r.Notes, fmt.Sprintf("group %s class %s: the event is below its floor %s: a claim that there was may be gone", w.group, w.class, terminal.Stamp(&w.floor)))
		}
	}
}

// empty tells that no group has anything of the event.
func (r *processedReport) empty() bool {
	return len(r.Claims)+len(r.Tries)+len(r.Fences)+len(r.Letters) == 0
}

func printProcessed(p *page, r *processedReport) {
	p.pairs([2]string{"key", r.Key}, [2]string{"event time", terminal.Stamp(&r.EventTime)})
	if r.empty() {
		p.line("\nno consumer group has anything of it")
	}
	var claims, tries, letters [][]string
	for _, v := range r.Claims {
		under := v.ID.String()
		if v.ByArrival {
			under += ", by arrival"
		}
		claims = append(claims, []string{
			v.Group, v.Outcome, terminal.Stamp(&v.ClaimedAt), under, terminal.Preview([]byte(v.EventType), terminal.PreviewBytes), v.Fingerprint,
			terminal.Preview([]byte(orDash(string(v.Result))), terminal.PreviewBytes),
		})
	}
	for _, v := range r.Tries {
		tries = append(tries, []string{v.Group, strconv.Itoa(int(v.Attempts)), terminal.Preview([]byte(v.LastError), terminal.PreviewBytes)})
	}
	for _, v := range r.Letters {
		letters = append(letters, []string{v.Group, v.State, v.Place, strconv.Itoa(int(v.Attempts)), v.Why(terminal.PreviewBytes)})
	}
	p.table([]string{"group", "outcome", "claimed", "under", "type", "fingerprint", "result"}, claims)
	p.table([]string{"group", "failed tries", "last error"}, tries)
	printFences(p, r.Fences)
	p.table([]string{"dead letter of", "state", "record", "attempts", "why"}, letters)
	printActions(p, r.Actions)
	for i, note := range r.Notes {
		if i == 0 {
			p.line("")
		}
		p.line("%s", note)
	}
}
