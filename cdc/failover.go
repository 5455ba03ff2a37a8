package cdc

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/label"
)

// Awaited are the standbys of the server's synchronized_standby_slots, PostgreSQL 17 and
// newer: a failover slot gives nothing that they have not got.
type Awaited struct {
	Slots string // of all; empty: none is waited for
	Away  string // the slots that no standby reads from, and why; empty: each has one
	Cure  string // of those
}

// AwaitedStandbys reads them.
func AwaitedStandbys(ctx context.Context, conn *pgx.Conn) (Awaited, error) {
	rows, _ := conn.Query(ctx, `SELECT n.name, CASE WHEN p.slot_name IS NULL THEN 'there is no physical slot of that name' WHEN p.wal_status = 'lost' THEN 'it is invalidated'
		WHEN NOT p.active THEN 'no standby reads from it' ELSE '' END
		FROM pg_catalog.unnest(pg_catalog.string_to_array(pg_catalog.current_setting('synchronized_standby_slots', true), ',')) WITH ORDINALITY AS s (text, place)
		CROSS JOIN LATERAL (SELECT pg_catalog.lower(pg_catalog.btrim(s.text, ' "')) AS name) n
		LEFT JOIN pg_catalog.pg_replication_slots p ON p.slot_name = n.name AND p.slot_type = 'physical'
		WHERE n.name <> '' ORDER BY s.place`)
	var all, away, there []string
	var name, why string
	_, err := pgx.ForEachRow(rows, []any{&name, &why}, func() error {
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
		a.Cure = fmt.Sprintf("bring the standby and its slot back; where it is gone for good, have nothing wait for it: ALTER SYSTEM SET synchronized_standby_slots = '%s'; SELECT pg_catalog.pg_reload_conf();", strings.Join(there, ", "))
	}
	return a, nil
}
