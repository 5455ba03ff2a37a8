package cdc

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/label"
)

// firstFailover is the first version of PostgreSQL that synchronises slots to standbys.
const firstFailover = 17

// alterFailover makes the slot one that is synchronised to standbys, where it was made as
// another: by hand, or while the setting was off. Only who is about to stream can do it:
// PostgreSQL waits for the end of whoever does. It may refuse, which is said, and the slot
// serves as it is.
func (r *Reader) alterFailover(ctx context.Context) error {
	if !r.cfg.FailoverSlot || major(r.conn) < firstFailover {
		return nil
	}
	found, err := r.conn.Exec(ctx, fmt.Sprintf("SELECT 1 FROM pg_catalog.pg_replication_slots WHERE slot_name = '%s' AND NOT failover AND NOT active", r.cfg.Slot)).ReadAll()
	if err != nil {
		return fmt.Errorf("look whether slot %s is synchronised to standbys: %w", r.cfg.Slot, err)
	}
	if len(found) == 0 || len(found[0].Rows) == 0 {
		return nil
	}
	_, err = r.conn.Exec(ctx, fmt.Sprintf("ALTER_REPLICATION_SLOT %s (FAILOVER true)", r.cfg.Slot)).ReadAll()
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && !r.conn.IsClosed():
		r.cfg.Logger.WarnContext(ctx, "the slot is not synchronised to standbys, as postgres.slot.failover wants it, and the server does not let it be altered; "+
			"mend that and restart the relay, or set postgres.slot.failover: false", "slot", r.cfg.Slot, "error", pg)
	case err != nil:
		return fmt.Errorf("have slot %s synchronised to standbys: %w", r.cfg.Slot, err)
	default:
		r.cfg.Logger.InfoContext(ctx, "the slot was made without failover; from now on standbys may synchronise it, as postgres.slot.failover wants it, and one where it is synced and not temporary can be promoted with it", "slot", r.cfg.Slot)
	}
	return nil
}

// Awaited are the standbys of the server's synchronized_standby_slots, PostgreSQL 17 and
// newer: a failover slot gives nothing that they have not got.
type Awaited struct {
	Slots string // of all; empty: none is waited for
	Away  string // the slots that no standby reads from, and why; empty: each has one
	Cure  string // of those
}

// AwaitedStandbys reads them. The statement that makes a slot anew reserves no log: PostgreSQL would
// take where that begins for what the standby has got. Until it reads, the relay's own slot keeps what it lacks.
func AwaitedStandbys(ctx context.Context, conn *pgx.Conn) (Awaited, error) {
	rows, _ := conn.Query(ctx, `SELECT n.name, CASE WHEN p.slot_name IS NULL THEN 'there is no physical slot of that name' WHEN p.wal_status = 'lost' THEN 'it is invalidated'
		WHEN NOT p.active THEN 'no standby reads from it' ELSE '' END,
		CASE WHEN p.slot_name IS NULL THEN pg_catalog.format('SELECT pg_catalog.pg_create_physical_replication_slot(%L);', n.name) ELSE '' END
		FROM pg_catalog.unnest(pg_catalog.string_to_array(pg_catalog.current_setting('synchronized_standby_slots', true), ',')) WITH ORDINALITY AS s (text, place)
		CROSS JOIN LATERAL (SELECT pg_catalog.lower(pg_catalog.btrim(s.text, E' \t\n\r\f\v"')) AS name) n
		LEFT JOIN pg_catalog.pg_replication_slots p ON p.slot_name = n.name AND p.slot_type = 'physical'
		WHERE n.name <> '' ORDER BY s.place`)
	var all, away, there []string
	var name, why, made, slots string
	_, err := pgx.ForEachRow(rows, []any{&name, &why, &made}, func() error {
		if made != "" {
			slots += ": " + made
		}
		all = append(all, label.Short(name))
		if why == "" {
			there = append(there, name)
		} else {
			away = append(away, fmt.Sprintf("%s (%s)", label.Short(name), why))
		}
		return nil
	})
	if err != nil {
		return Awaited{}, fmt.Errorf("read synchronized_standby_slots: %w", err)
	}
	a := Awaited{Slots: strings.Join(all, ", "), Away: strings.Join(away, ", ")}
	if a.Away != "" {
		some := ""
		if len(away) > 1 {
			some = " (leave those in it that come back)"
		}
		a.Cure = fmt.Sprintf("either bring the standby and its slot back%s, or, where it is gone for good, never promote it, because it will lack what is published, and have nothing wait for it%s: "+
			"ALTER SYSTEM SET synchronized_standby_slots = '%s'; SELECT pg_catalog.pg_reload_conf(); then drop its slot", slots, some, strings.Join(there, ", "))
	}
	return a, nil
}
