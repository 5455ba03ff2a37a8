package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/pinned"
)

// selectGate asks each relay's published snapshot S about a closed leaf. What is
// below xmin of S is visible in it, which lets the index on tx_id find the rest.
const selectGate = `SELECT r.relay, r.slot, EXISTS (SELECT FROM pg_catalog.pg_replication_slots p WHERE p.slot_name OPERATOR(pg_catalog.=) r.slot),
  r.system_identifier OPERATOR(pg_catalog.=) (SELECT system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system()),
  r.published_snapshot IS NOT NULL,
  COALESCE(pg_catalog.pg_visible_in_snapshot($1::pg_catalog.text::pg_catalog.xid8, r.published_snapshot), false),
  EXISTS (SELECT FROM %s o WHERE o.tx_id OPERATOR(pg_catalog.>=) pg_catalog.pg_snapshot_xmin(r.published_snapshot)
    AND NOT pg_catalog.pg_visible_in_snapshot(o.tx_id, r.published_snapshot))
FROM onceward.relay_state r ORDER BY r.relay, r.slot`

const countLetters = `SELECT pg_catalog.count(*) FROM onceward.dead_letters 
WHERE state OPERATOR(pg_catalog.=) ANY('{open,retrying}'::pg_catalog.text[])
  AND letter_id OPERATOR(pg_catalog.>=) $1 AND letter_id OPERATOR(pg_catalog.<) $2`

// verdict is one relay's word on a closed leaf.
type verdict struct {
	relay, slot string
	hasSlot     bool // the slot is there
	here        bool // its state was written on this cluster
	known       bool // it has a published snapshot
	after       bool // taken after the leaf was closed
	unpublished bool // some row is not visible in it
}

// reason says what to wait for; empty: every row is published.
func (v verdict) reason() string {
	reason := v.missing()
	if reason != "" && !v.hasSlot {
		reason += fmt.Sprintf("; its slot does not exist: start it, or, if this relay is gone for good, DELETE FROM onceward.relay_state WHERE slot = '%s'", v.slot)
	}
	return reason
}

func (v verdict) missing() string {
	switch {
	case !v.here:
		return fmt.Sprintf("the state of relay %s was written on another cluster, whose transactions mean nothing here", v.relay)
	case !v.known:
		return fmt.Sprintf("waits for relay %s: it has no published snapshot yet", v.relay)
	case !v.after:
		return fmt.Sprintf("waits for relay %s: its published snapshot is older than the closing", v.relay)
	case v.unpublished:
		return fmt.Sprintf("waits for relay %s: some rows are not published yet", v.relay)
	}
	return ""
}

// unpublished returns why a closed leaf may not be dropped; none: it may.
//
// The invariant: a leaf is dropped only if, for every row of relay_state, S was
// taken after the commit that closed the leaf, and every row of the leaf is
// visible in S. After that commit no row can be added, so that the second holds
// for ever once it holds. A row that the session may not see would count as
// visible, so the transaction is pinned: a filter is an error.
func (m *maintenance) unpublished(ctx context.Context, tx pgx.Tx, l *leaf) ([]string, error) {
	if !l.closed || l.closedBy == 0 {
		return []string{"it is open"}, nil
	}
	if _, err := tx.Exec(ctx, pinned.Local); err != nil {
		return nil, fmt.Errorf("pin the transaction: %w", err)
	}
	rows, err := tx.Query(ctx, fmt.Sprintf(selectGate, m.source(l)), fmt.Sprint(l.closedBy))
	if err != nil {
		return nil, fmt.Errorf("compare with published snapshots: %w", err)
	}
	verdicts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (v verdict, err error) {
		err = row.Scan(&v.relay, &v.slot, &v.hasSlot, &v.here, &v.known, &v.after, &v.unpublished)
		return v, err
	})
	if err != nil {
		return nil, fmt.Errorf("compare with published snapshots: %w", err)
	}
	// Letters are read after the snapshots: those that a snapshot knows of were
	// committed before it was written.
	var letters int64
	if err := tx.QueryRow(ctx, countLetters, l.Lower, l.Upper).Scan(&letters); err != nil {
		return nil, fmt.Errorf("count dead letters: %w", err)
	}
	return reasons(verdicts, letters), nil
}

// source is where the leaf's rows are read. Who only looks may read the outbox
// and not its leaves.
func (m *maintenance) source(l *leaf) string {
	if !m.cfg.DryRun {
		return l.table()
	}
	return fmt.Sprintf("(SELECT tx_id FROM %s WHERE id OPERATOR(pg_catalog.>=) '%s' AND id OPERATOR(pg_catalog.<) '%s')", outboxTable, l.Lower, l.Upper)
}

func reasons(verdicts []verdict, letters int64) []string {
	var out []string
	if len(verdicts) == 0 {
		out = append(out, "no relay has run on this database yet")
	}
	for _, v := range verdicts {
		if reason := v.reason(); reason != "" {
			out = append(out, reason)
		}
	}
	if letters > 0 {
		out = append(out, fmt.Sprintf("%d of its events are open dead letters: retry or discard them", letters))
	}
	return out
}
