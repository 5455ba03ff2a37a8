package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/partitions"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/terminal"
	"github.com/onceward/onceward/migrations"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:   "status",
		Usage:  "say how relays, slots, partitions and dead letters of a producer's database are",
		Flags:  append([]cli.Flag{outputFlag()}, dsnFlags()...),
		Action: status,
	}
}

// statusReport is the JSON answer of status.
type statusReport struct {
	Database    string             `json:"database"`
	Relays      []relayReport      `json:"relays"`
	Partitions  partitions.Extent  `json:"partitions"`
	Rows        int64              `json:"outbox_rows_estimate"` // -1: not known, because no partition was ever analyzed
	DeadLetters []deadLettersCount `json:"dead_letters"`
	Parked      []parkedReport     `json:"parked_aggregates"` // the oldest; at most maxParkedShown
	Gaps        []gapReport        `json:"gaps"`              // that wait for a decision, or are being repaired
	Held        []heldReport       `json:"held"`              // the longest held; at most maxParkedShown
	Remade      []remadeTopic      `json:"topics_made_anew"`  // the last ones; at most maxRemadeShown
	Problems    []string           `json:"problems"`
}

// relayReport joins a slot with the relay_state row of the same name. A slot
// without a row has no relay, a row without a slot no slot. A relay that has not
// begun has no row: its processes name it.
type relayReport struct {
	Slot         string `json:"slot"`
	Relay        string `json:"relay"`
	NotBegun     bool   `json:"not_begun,omitempty"` // its first start has not ended
	Mode         string `json:"mode,omitempty"`
	Epoch        int64  `json:"epoch"`
	Tick         int64  `json:"tick"`
	ConfirmedLSN string `json:"confirmed_lsn"`
	Paused       bool   `json:"paused"`
	// PausedRoutes and Skip are words that stand.
	PausedRoutes  []string    `json:"paused_routes"`
	Skip          []uuid.UUID `json:"skip"`
	SlotExists    bool        `json:"slot_exists"`
	SlotOf        string      `json:"slot_of,omitempty"` // the other database that has a slot of this name
	ActivePID     *int32      `json:"active_pid"`
	WALStatus     string      `json:"wal_status"`
	RetainedBytes int64       `json:"retained_bytes"`
	LagBytes      int64       `json:"lag_bytes"`
	// Processes are those of this relay, living or dead, as each says of itself.
	Processes []processReport `json:"processes"`
	boundReport
}

type deadLettersCount struct {
	Slot    string `json:"slot"`
	State   string `json:"state"`
	Letters int64  `json:"letters"`
}

// parkedReport is an aggregate whose events wait behind a dead letter.
type parkedReport struct {
	Slot          string    `json:"slot"`
	Namespace     string    `json:"namespace"`
	AggregateType string    `json:"aggregate_type"`
	AggregateID   string    `json:"aggregate_id"`
	Letters       int64     `json:"letters"`
	Since         time.Time `json:"since"`
	First         string    `json:"first_letter"` // its key
	Class         string    `json:"error_class"`
	Error         string    `json:"error"`
}

// heldReport is what waits for a route that cannot be used: the events of one
// aggregate type, or the replays to one topic.
type heldReport struct {
	Slot          string    `json:"slot"`
	Namespace     string    `json:"namespace"`
	AggregateType string    `json:"aggregate_type"`
	Topic         string    `json:"topic,omitempty"` // of replays
	Events        int64     `json:"events"`
	Orders        int64     `json:"orders,omitempty"` // about dead letters
	Since         time.Time `json:"since"`
}

func (r heldReport) name() string {
	if r.Topic != "" {
		return "replays to " + r.Topic
	}
	return r.Namespace + " " + r.AggregateType
}

// maxParkedShown bounds the list of parked aggregates, and that of what is held.
const maxParkedShown = 100

func status(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if err := noArgument(c, ""); err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	report, err := readStatus(c.Context, db)
	if err != nil {
		return fmt.Errorf("read status: %w", operator.Explain(err, migrations.Outbox))
	}
	if err := answer(c, report, printStatus); err != nil {
		return err
	}
	if len(report.Problems) > 0 {
		return errWrong
	}
	return nil
}

func readStatus(ctx context.Context, db *operator.Database) (*statusReport, error) {
	r := &statusReport{Database: db.Pool.Config().ConnConfig.Database, DeadLetters: []deadLettersCount{}}
	q := outboxdb.New(db)
	var err error
	if r.Relays, err = readRelays(ctx, q); err != nil {
		return nil, err
	}
	m, err := migrations.New(migrations.Config{Pool: db.Pool, Side: migrations.Outbox})
	if err != nil {
		return nil, err
	}
	installed, err := m.Status(ctx)
	if err != nil {
		return nil, err
	}
	r.Partitions = partitions.ExtentOf(installed)
	if r.Rows, err = q.OutboxEstimate(ctx); err != nil {
		return nil, err
	}
	letters, err := q.DeadLettersByState(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range letters {
		r.DeadLetters = append(r.DeadLetters, deadLettersCount(l))
	}
	if r.Parked, err = parkedAggregates(ctx, q); err != nil {
		return nil, err
	}
	if r.Gaps, err = openGaps(ctx, q); err != nil {
		return nil, err
	}
	noteRepairs(r.Gaps, r.Relays)
	if r.Held, err = heldLanes(ctx, q); err != nil {
		return nil, err
	}
	if r.Remade, err = remadeTopics(ctx, q); err != nil {
		return nil, err
	}
	filled, err := partitions.Filled(ctx, q)
	r.Problems = append(r.problems(), filled...)
	return r, err
}

// openGaps are those that are not over.
func openGaps(ctx context.Context, q *outboxdb.Queries) ([]gapReport, error) {
	out := []gapReport{}
	rows, err := q.ListGaps(ctx, outboxdb.ListGapsParams{States: []string{gapOpen, gapRepairing}})
	for _, v := range rows {
		out = append(out, newGap(v))
	}
	return out, err
}

func parkedAggregates(ctx context.Context, q *outboxdb.Queries) ([]parkedReport, error) {
	out := []parkedReport{}
	rows, err := q.ParkedAggregates(ctx, maxParkedShown)
	for _, v := range rows {
		out = append(out, parkedReport{
			Slot: v.Slot, Namespace: v.Namespace, AggregateType: v.AggregateType, AggregateID: v.AggregateID, Letters: v.Letters,
			Since: v.Since.UTC(), First: operator.KeyText(v.Namespace, v.FirstLetter), Class: v.ErrorClass, Error: v.Error,
		})
	}
	return out, err
}

// heldLanes are the routes whose events wait.
func heldLanes(ctx context.Context, q *outboxdb.Queries) ([]heldReport, error) {
	out := []heldReport{}
	rows, err := q.HeldLanes(ctx, maxParkedShown)
	for _, v := range rows {
		out = append(out, heldReport{
			Slot: v.Slot, Namespace: v.Namespace, AggregateType: v.AggregateType, Topic: v.Topic, Since: v.HeldAt.UTC(), Events: v.Events, Orders: v.Orders,
		})
	}
	return out, err
}

// joinSlots pairs relays with their slots. A slot that no relay knows is
// listed when its name says that it is Onceward's: it keeps WAL for nobody.
func joinSlots(states []outboxdb.RelayState, slots []outboxdb.SlotsRow) []relayReport {
	bySlot := make(map[string]outboxdb.SlotsRow, len(slots))
	for _, s := range slots {
		bySlot[s.Slot] = s
	}
	out := []relayReport{}
	for _, st := range states {
		r := relayReport{
			Slot: st.Slot, Relay: st.Relay, Mode: st.Mode, Epoch: st.Epoch, Tick: st.Tick,
			ConfirmedLSN: st.ConfirmedLsn, Paused: st.Paused, PausedRoutes: operator.NotNil(st.PausedRoutes), Skip: append([]uuid.UUID{}, st.Skip...),
			boundReport: newBoundReport(st),
		}
		if s, ok := bySlot[st.Slot]; ok {
			r.addSlot(s)
			delete(bySlot, st.Slot)
		}
		out = append(out, r)
	}
	for _, s := range slots {
		if _, left := bySlot[s.Slot]; left && strings.HasPrefix(s.Slot, "onceward_") {
			r := relayReport{Slot: s.Slot, ConfirmedLSN: s.ConfirmedFlushLsn, PausedRoutes: []string{}, Skip: []uuid.UUID{}}
			r.addSlot(s)
			out = append(out, r)
		}
	}
	return out
}

func (r *relayReport) addSlot(s outboxdb.SlotsRow) {
	r.SlotExists, r.ActivePID = true, s.ActivePid
	r.RetainedBytes, r.LagBytes = s.RetainedBytes, s.LagBytes
	if s.WalStatus != nil {
		r.WALStatus = *s.WalStatus
	}
}

// problems are what an operator should look at.
func (r *relayReport) problems() []string {
	out := []string{}
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch {
	case r.Relay == "":
		add("slot %s keeps %s of WAL and no relay knows it; if it is not just being made, and no relay uses it: SELECT pg_catalog.pg_drop_replication_slot('%s'); "+
			"as a superuser or a role with REPLICATION", r.Slot, terminal.Size(r.RetainedBytes), r.Slot)
	case r.NotBegun && !r.lives():
		add("relay %s has not begun, and no process of it is connected to PostgreSQL: start it, or look at its log and /readyz%s", r.Relay, r.lastWords())
	case r.NotBegun: // what its processes wait for says more
	case r.SlotOf != "" && !r.lives():
		add("relay %[1]s: slot %[2]s is of database %[3]s and not this relay's, as beside a copy of a database: leave it alone; a relay of this database "+
			"needs another name or postgres.slot.name, and this one is forgotten by `outboxctl retire --slot %[2]s --reason \"…\"`", r.Relay, r.Slot, r.SlotOf)
	case !r.SlotExists && !r.lives():
		add("relay %s: its slot %s is gone; start the relay and read what it says", r.Relay, r.Slot)
	case r.WALStatus == "lost" || r.WALStatus == "unreserved":
		add("relay %s: slot %s is %s; raise max_slot_wal_keep_size and look at the relay", r.Relay, r.Slot, r.WALStatus)
	case r.ActivePID == nil && !r.lives():
		add("relay %s: no process of it is connected to PostgreSQL: start it, or look at its log and /readyz%s", r.Relay, r.lastWords())
	}
	out = append(append(out, r.waiting()...), r.elsewhere()...)
	if r.Paused {
		add("relay %s is paused; `outboxctl resume --relay %s` lets it go on", r.Relay, r.Relay)
	}
	for _, route := range r.PausedRoutes {
		add("relay %s: route %s is paused; `outboxctl resume --relay %s --route %s` lets it go on", r.Relay, route, r.Relay, route)
	}
	for _, id := range r.Skip {
		add("relay %s is told to skip the event %s and has not come to it; `outboxctl skip %s --undo --relay %s` takes the word back", r.Relay, id, id, r.Relay)
	}
	return out
}

// problem is what an operator should know of a gap; empty without anything.
func (g gapReport) problem() string {
	switch {
	case g.State == gapOpen:
		return fmt.Sprintf("relay %s: gap %s (%s) of %d events waits for a decision: `outboxctl gap show %s`", g.Relay, g.Gap, g.Cause, g.Events, g.Gap)
	case g.Cause == causeFirstStart:
		return ""
	case g.Note != "":
		return fmt.Sprintf("relay %s will repair gap %s (%s) of %d events %s", g.Relay, g.Gap, g.Cause, g.Events, g.Note)
	}
	return fmt.Sprintf("relay %s repairs gap %s (%s) of %d events", g.Relay, g.Gap, g.Cause, g.Events)
}

// problems says what an operator should act on, each with what to do.
func (r *statusReport) problems() []string {
	out := []string{}
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for i := range r.Relays {
		out = append(out, r.Relays[i].problems()...)
	}
	for _, g := range r.Gaps {
		if problem := g.problem(); problem != "" {
			out = append(out, problem)
		}
	}
	if r.Partitions.Default != "" {
		add("%v", cdc.DefaultPartition(r.Partitions.Default))
	} else if problem := partitions.Few(r.Partitions.DaysAhead, !r.Partitions.NoToday); problem != "" {
		add("%s", problem)
	}
	if n := len(r.Held); n > 0 {
		kinds := "kinds of events wait"
		if n == 1 {
			kinds = "kind of events waits"
		}
		add("%d %s for a route that cannot be used, the first is %s; /readyz of the relay says why", n, kinds, r.Held[0].name())
	}
	for _, l := range r.DeadLetters {
		if l.State == "open" && l.Letters > 0 {
			add("slot %s has %d open dead letters; see `outboxctl dead list`", l.Slot, l.Letters)
		}
	}
	return out
}

func printStatus(p *page, r *statusReport) {
	p.pairs(
		[2]string{"database", r.Database},
		[2]string{"outbox", aboutRows(r.Rows)},
		[2]string{"partitions", r.Partitions.String()},
	)
	var relays, letters [][]string
	for _, v := range r.Relays {
		pid := "-"
		if v.ActivePID != nil {
			pid = strconv.Itoa(int(*v.ActivePID))
		}
		wal, retained, lag := v.WALStatus, terminal.Size(v.RetainedBytes), terminal.Size(v.LagBytes)
		if !v.SlotExists {
			wal, retained, lag = "no slot", "-", "-"
		}
		relays = append(relays, []string{
			orDash(v.Relay), v.Slot, orDash(v.Mode), strconv.FormatInt(v.Epoch, 10), orDash(v.ConfirmedLSN), pid, wal, retained, lag,
		})
	}
	for _, l := range r.DeadLetters {
		letters = append(letters, []string{l.Slot, l.State, strconv.FormatInt(l.Letters, 10)})
	}
	p.table([]string{"relay", "slot", "mode", "epoch", "confirmed", "pid", "wal", "retained", "lag"}, relays)
	p.table([]string{"process", "relay", "state", "since", "waits for", "events", "waits since", "why"}, processRows(r.Relays))
	p.table([]string{"dead letters", "state", "count"}, letters)
	var held [][]string
	for _, v := range r.Held {
		held = append(held, []string{terminal.Preview([]byte(v.name()), terminal.PreviewBytes), strconv.FormatInt(v.Events, 10), strconv.FormatInt(v.Orders, 10), terminal.Stamp(&v.Since)})
	}
	p.table([]string{"held", "events", "orders", "since"}, held)
	p.table([]string{"topic made anew", "slot", "times", "last", "records of the one before"}, remadeRows(r.Remade))
	p.table([]string{"parked aggregate", "slot", "letters", "since", "behind", "why"}, parkedRows(r.Parked))
	if len(r.Relays) == 0 {
		p.line("\nno relay is known here: none has begun yet, or all were retired")
	}
	if len(r.Problems) > 0 {
		p.line("")
	}
	for _, problem := range r.Problems {
		p.line("! %s", problem)
	}
}

func parkedRows(parked []parkedReport) (rows [][]string) {
	for _, v := range parked {
		rows = append(rows, []string{
			terminal.Preview([]byte(v.Namespace+" "+v.AggregateType+" "+v.AggregateID), terminal.PreviewBytes), v.Slot, strconv.FormatInt(v.Letters, 10), terminal.Stamp(&v.Since),
			v.First, v.Class + ": " + terminal.Preview([]byte(v.Error), terminal.PreviewBytes),
		})
	}
	return rows
}

// aboutRows says how many rows the planner takes a table to have.
func aboutRows(n int64) string {
	if n < 0 {
		return "not known yet"
	}
	return fmt.Sprintf("about %d rows", n)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
