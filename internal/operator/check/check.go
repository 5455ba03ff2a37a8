package check

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay"
)

// Status is what a check found.
type Status string

// The statuses.
const (
	OK      Status = "ok"
	Warning Status = "warning" // works, and will hurt one day
	Held    Status = "held"    // the relay starts, and holds what goes there
	Failed  Status = "failed"  // the relay does not start, stands halted, or nobody can write
	Skipped Status = "skipped" // another failure stands before it
)

// Verdict is the result of one check.
type Verdict struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Code   string `json:"code,omitempty"` // stable, of failures
	Detail string `json:"detail,omitempty"`
	Cure   string `json:"cure,omitempty"` // the command or SQL that mends it
}

// Worst returns the gravest status among the verdicts.
func Worst(verdicts []Verdict) Status {
	order := []Status{OK, Warning, Held, Failed}
	worst := 0
	for _, v := range verdicts {
		worst = max(worst, slices.Index(order, v.Status))
	}
	return order[worst]
}

// patience is how long one check waits for an answer.
const patience = 10 * time.Second

// Run looks at everything. It returns the verdicts in the order in which they
// depend on one another, and never an error: what cannot be looked at is a
// failure or skipped. Each is given to each, when that is not nil, as it comes: a
// check waits for up to ten seconds.
func Run(ctx context.Context, cfg *relay.Config, each func(Verdict)) []Verdict {
	r := &run{cfg: cfg, each: each, patience: patience}
	r.all(ctx)
	return r.verdicts
}

// run is one look at everything.
type run struct {
	cfg      *relay.Config
	each     func(Verdict)
	patience time.Duration
	conn     *pgx.Conn // nil: none
	verdicts []Verdict
}

func (r *run) tell(v Verdict) {
	r.verdicts = append(r.verdicts, v)
	if r.each != nil {
		r.each(v)
	}
}

// look runs one check of PostgreSQL or Kafka, for as long as patience lasts, and
// tells what it found. What it waited for is said when that was too long.
func (r *run) look(ctx context.Context, name, waitsFor string, check func(context.Context) []Verdict) {
	limited, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	found := check(limited)
	if limited.Err() == nil {
		for _, v := range found {
			r.tell(v)
		}
		return
	}
	v := Verdict{Name: name, Status: Failed, Code: codeNoAnswer, Detail: fmt.Sprintf("no answer within %s: waited for %s", r.patience, waitsFor),
		Cure: "see whether it runs and answers others, and what stands between"}
	if ctx.Err() != nil {
		v = Verdict{Name: name, Status: Skipped, Detail: "interrupted"}
	}
	r.tell(v)
}

func (r *run) all(ctx context.Context) {
	r.tell(admin(ctx, r.cfg))
	r.look(ctx, connection, "PostgreSQL, to let the relay in", func(ctx context.Context) []Verdict {
		conn, v := connect(ctx, r.cfg)
		r.conn = conn
		return []Verdict{v}
	})
	if r.conn != nil {
		defer func() { _ = r.conn.Close(context.WithoutCancel(ctx)) }() // nothing was written
	}
	r.postgres(ctx)
	r.kafka(ctx)
}

// connection is the name of the check that all others of PostgreSQL stand on.
const connection = "connection to PostgreSQL"

func connect(ctx context.Context, cfg *relay.Config) (*pgx.Conn, Verdict) {
	const name = connection
	dsn, err := cfg.DSN()
	if err != nil {
		return nil, failure(name, err)
	}
	conn, err := relay.Connect(ctx, dsn, cfg.SlotName())
	if err != nil {
		return nil, failure(name, err)
	}
	return conn, Verdict{Name: name, Status: OK}
}

// postgres runs the start-up checks as the relay does, and goes on after a
// failure as far as it makes sense.
func (r *run) postgres(ctx context.Context) {
	source := cdc.Config{DSN: "checked", Slot: r.cfg.SlotName(), Publication: r.cfg.PublicationName(), Logger: slog.New(slog.DiscardHandler)}
	for _, c := range cdc.StartChecks() {
		r.ask(ctx, c.Name, func(ctx context.Context) []Verdict {
			return []Verdict{verdictOf(c.Name,
				c.Run(ctx, r.conn, source))}
		})
	}
	r.ask(ctx, "foreign functions", func(ctx context.Context) []Verdict { return []Verdict{dependencies(ctx, r.conn)} })
	if Worst(r.verdicts) == Failed {
		r.tell(Verdict{Name: "replication slot", Status: Skipped, Detail: "the checks before it failed"})
		return
	}
	r.ask(ctx, "first start", func(ctx context.Context) (found []Verdict) {
		for _, d := range relay.Decide(ctx, r.cfg, r.conn) {
			v := verdictOf(d.Name, d.Err)
			if d.Err == nil {
				v.Detail, v.Code = d.Detail, d.Code
			}
			if v.Cure == "" {
				v.Cure = d.Advice
			}
			switch {
			case d.Skipped:
				v.Status = Skipped
			case d.Code != "":
				v.Status = Warning
			case d.Advice != "":
				v.Status, v.Code = Warning, codeSettings
			}
			found = append(found, v)
		}
		return found
	})
	r.ask(ctx, "replication connection", func(ctx context.Context) []Verdict { return []Verdict{replication(ctx, r.conn, r.cfg)} })
	for _, advice := range []struct {
		name  string
		check func(context.Context, *pgx.Conn, *relay.Config) Verdict
	}{
		{"maintenance login", maintenance}, {"release of the schema", release}, {"operator's words", words}, {"what processes say", said}, {"log kept for the slot", keepSize}, {"standbys of the slot", standbys},
		{"partitions of today and ahead", partitionsAhead}, {"clock", clockSkew},
	} {
		r.ask(ctx, advice.name,
			func(ctx context.Context) []Verdict { return []Verdict{advice.check(ctx, r.conn, r.cfg)} })
	}
}

// replication connects as the session would that streams, unless one of this relay
// does: it has its walsender. Slots are of the whole server: one of another database, as
// beside a copy, is another relay's.
func replication(ctx context.Context, conn *pgx.Conn, cfg *relay.Config) Verdict {
	const name = "replication connection"
	who, err := outboxdb.New(conn).SlotStranger(ctx, cfg.SlotName())
	if !errors.Is(err, pgx.ErrNoRows) {
		if err == nil {
			err = cdc.SlotTaken(cfg.SlotName(), who.Pid, who.Application, who.Role)
		}
		return failure(name, err)
	}
	var active bool
	err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = $1 AND active
		AND database = pg_catalog.current_database())`, cfg.SlotName()).Scan(&active)
	if err != nil {
		return failure(name, err)
	}
	if active {
		return Verdict{Name: name, Status: OK, Detail: "a process of this relay has it"}
	}
	dsn, err := cfg.DSN()
	if err != nil {
		return failure(name, err)
	}
	return verdictOf(name, cdc.CheckConnect(ctx, cdc.Config{DSN: dsn, Slot: cfg.SlotName()}))
}

// ask looks at PostgreSQL, unless the connection is gone.
func (r *run) ask(ctx context.Context, name string, check func(context.Context) []Verdict) {
	if r.conn == nil || r.conn.IsClosed() {
		r.tell(Verdict{Name: name, Status: Skipped, Detail: "no connection to PostgreSQL"})
		return
	}
	r.look(ctx, name, "PostgreSQL, which does not answer a query", check)
}

func verdictOf(name string, err error) Verdict {
	if err == nil {
		return Verdict{Name: name, Status: OK}
	}
	return failure(name, err)
}

func failure(name string, err error) Verdict {
	err = cdc.ExplainRefused(err)
	v := Verdict{Name: name, Status: Failed, Code: codeOf(err), Detail: err.Error()}
	var start *cdc.StartError
	if errors.As(err, &start) {
		v.Code, v.Detail, v.Cure = start.Code, start.What, start.Cure
	}
	return v
}

// said warns where `outboxctl status` cannot say how the relay's processes do, and
// names what a living one is halted at: an event or a topic that an operator decides
// about. What else halts a relay the checks before this find by themselves.
func said(ctx context.Context, conn *pgx.Conn, cfg *relay.Config) Verdict {
	v := verdictOf("what processes say", cdc.CheckOptional(ctx, conn, cdc.Config{Publication: cfg.PublicationName()}))
	if v.Status != OK {
		if v.Code != "" {
			v.Status = Warning
		}
		return v
	}
	processes, err := outboxdb.New(conn).RelayHealth(ctx)
	var pg *pgconn.PgError
	if err != nil && (!errors.As(err, &pg) || pg.Code != "42501") { // insufficient_privilege
		return failure(v.Name, err)
	}
	halted := slices.DeleteFunc(processes, func(p outboxdb.RelayHealthRow) bool {
		return p.Slot != cfg.SlotName() || p.State != string(relay.StateHalted) || p.Code != relay.CodeHalted ||
			!p.Alive
	})
	if len(halted) > 0 {
		first := slices.MinFunc(halted, func(a, b outboxdb.RelayHealthRow) int { return a.Since.Compare(b.Since) })
		v.Status, v.Code = Failed, relay.CodeHalted
		v.Detail = fmt.Sprintf("process %s is halted since %s and publishes nothing: %s", first.Process, first.Since.UTC().Format(time.RFC3339), first.Detail)
		v.Cure = strings.Join(operator.NewProblem(first.Detail).Cures, ", or ")
	}
	return v
}

// release warns of a schema that a later release has migrated.
func release(ctx context.Context, conn *pgx.Conn, _ *relay.Config) Verdict {
	v := verdictOf("release of the schema", cdc.CheckNotAhead(ctx, conn))
	if v.Cure != "" {
		v.Status = Warning
	}
	return v
}

// keepSize warns of a slot that may fill the disk while the relay is away.
func keepSize(ctx context.Context, conn *pgx.Conn, _ *relay.Config) Verdict {
	v := Verdict{Name: "log kept for the slot", Status: OK}
	var limit, timeout int64
	err := conn.QueryRow(ctx, `SELECT (SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size'),
		(SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout')`).Scan(&limit, &timeout)
	switch {
	case err != nil:
		return failure(v.Name, err)
	case limit < 0:
		v.Status, v.Code, v.Detail = Warning, codeUnboundLog, "max_slot_wal_keep_size is unlimited: a relay that is away for long fills the server's disk"
		v.Cure = "ALTER SYSTEM SET max_slot_wal_keep_size = '…'; to what the disk can spare, and alert on the relay being away for less than that"
	case timeout == 0:
		v.Status, v.Code, v.Detail = Warning, codeNoSenderTimeout, "wal_sender_timeout is off: after a lost network the slot stays taken until TCP gives up"
		v.Cure = "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_catalog.pg_reload_conf();"
	default:
		v.Detail = fmt.Sprintf("max_slot_wal_keep_size is %d MB", limit)
	}
	return v
}

// clockSkew compares the two clocks: event times are judged by both.
func clockSkew(ctx context.Context, conn *pgx.Conn, _ *relay.Config) Verdict {
	v := Verdict{Name: "clock", Status: OK}
	var server time.Time
	before := time.Now()
	if err := conn.QueryRow(ctx, `SELECT pg_catalog.clock_timestamp()`).Scan(&server); err != nil {
		return failure(v.Name, err)
	}
	here := before.Add(time.Since(before) / 2)
	skew := server.Sub(here).Round(time.Millisecond)
	v.Detail = fmt.Sprintf("the server's clock is %s ahead of ours", skew)
	if skew.Abs() > time.Second {
		v.Status, v.Code, v.Cure = Warning, codeClock, "synchronise both clocks (NTP); keys more than 5 minutes ahead are refused"
	}
	return v
}
