package check

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/relay"
)

// Status is what a check found.
type Status string

// The statuses.
const (
	OK      Status = "ok"
	Warning Status = "warning" // works, and will hurt one day
	Failed  Status = "failed"  // the relay does not start, or holds a route
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
	worst := OK
	for _, v := range verdicts {
		if v.Status == Failed {
			return Failed
		}
		if v.Status == Warning {
			worst = Warning
		}
	}
	return worst
}

// Run looks at everything. It returns the verdicts in the order in which they
// depend on one another, and never an error: what cannot be looked at is a
// failure or skipped.
func Run(ctx context.Context, cfg *relay.Config) []Verdict {
	var all []Verdict
	conn, verdict := connect(ctx, cfg)
	all = append(all, verdict)
	if conn == nil {
		for _, c := range cdc.StartChecks() {
			all = append(all, Verdict{Name: c.Name, Status: Skipped, Detail: "no connection to PostgreSQL"})
		}
		return append(all, kafka(ctx, cfg, nil)...)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing was written
	all = append(all, postgres(ctx, conn, cfg)...)
	return append(all, kafka(ctx, cfg, conn)...)
}

func connect(ctx context.Context, cfg *relay.Config) (*pgx.Conn, Verdict) {
	const name = "connection to PostgreSQL"
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
func postgres(ctx context.Context, conn *pgx.Conn, cfg *relay.Config) []Verdict {
	source := cdc.Config{DSN: "checked", Slot: cfg.SlotName(), Publication: cfg.PublicationName(), Logger: slog.New(slog.DiscardHandler)}
	var all []Verdict
	for _, c := range cdc.StartChecks() {
		all = append(all, verdictOf(c.Name, c.Run(ctx, conn, source)))
	}
	all = append(all, dependencies(ctx, conn))
	if Worst(all) == Failed {
		return append(all, Verdict{Name: "replication slot", Status: Skipped, Detail: "the checks before it failed"})
	}
	for _, advice := range []func(context.Context, *pgx.Conn, *relay.Config) Verdict{slot, words, keepSize, partitionsAhead, clockSkew} {
		all = append(all, advice(ctx, conn, cfg))
	}
	return all
}

func verdictOf(name string, err error) Verdict {
	if err == nil {
		return Verdict{Name: name, Status: OK}
	}
	return failure(name, err)
}

func failure(name string, err error) Verdict {
	err = cdc.ExplainFiltered(err)
	v := Verdict{Name: name, Status: Failed, Detail: err.Error()}
	var start *cdc.StartError
	if errors.As(err, &start) {
		v.Code, v.Detail, v.Cure = start.Code, start.What, start.Cure
	}
	return v
}

// slot says whether the slot is there and can go on. A slot that does not exist
// yet is fine when the relay may make it.
func slot(ctx context.Context, conn *pgx.Conn, cfg *relay.Config) Verdict {
	v := Verdict{Name: "replication slot", Status: OK}
	var ran bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM onceward.relay_state WHERE slot = $1)`, cfg.SlotName()).Scan(&ran); err != nil {
		return failure(v.Name, err)
	}
	err := cdc.EnsureSlot(ctx, conn, cdc.Config{DSN: "checked", Slot: cfg.SlotName(), Publication: cfg.PublicationName()}, ran)
	var start *cdc.StartError
	if errors.As(err, &start) && start.Code == cdc.CodeSlotMissing && !ran && cfg.Postgres.Slot.Create == "auto" {
		v.Detail = "does not exist yet; the relay makes it at its first start"
		return v
	}
	return verdictOf(v.Name, err)
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
		v.Status, v.Detail = Warning, "max_slot_wal_keep_size is unlimited: a relay that is away for long fills the server's disk"
		v.Cure = "ALTER SYSTEM SET max_slot_wal_keep_size = '…'; to what the disk can spare, and alert on the relay being away for less than that"
	case timeout == 0:
		v.Status, v.Detail = Warning, "wal_sender_timeout is off: after a lost network the slot stays taken until TCP gives up"
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
		v.Status, v.Cure = Warning, "synchronise both clocks (NTP); keys more than 5 minutes ahead are refused"
	}
	return v
}
