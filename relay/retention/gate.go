package retention

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/pgconf"
)

// selectGate asks the account of each relay about a closed leaf. The transactions
// that can be in a state that blocks are found by the index on tx_id: what is
// below xmin of the published snapshot is visible in it, and a gap lies between
// its two.
const selectGate = `SELECT r.relay, r.slot, EXISTS (SELECT FROM pg_catalog.pg_replication_slots p WHERE p.slot_name OPERATOR(pg_catalog.=) r.slot
    AND COALESCE(p.database OPERATOR(pg_catalog.=) pg_catalog.current_database(), true)),
  r.system_identifier OPERATOR(pg_catalog.=) (SELECT system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system()),
  p.slot IS NOT NULL, COALESCE(pg_catalog.pg_visible_in_snapshot($1::pg_catalog.text::pg_catalog.xid8, p.snapshot), false),
  s.pending, s.gap, s.before, s.given, s.gap_id, s.before_id,
  (SELECT pg_catalog.count(*) FROM onceward.dead_letters d JOIN %[1]s o ON o.id OPERATOR(pg_catalog.=) d.letter_id
    WHERE d.slot OPERATOR(pg_catalog.=) r.slot AND d.state OPERATOR(pg_catalog.=) 'discarded' AND d.letter_id OPERATOR(pg_catalog.>=) $2 AND d.letter_id OPERATOR(pg_catalog.<) $3)
FROM onceward.relay_state r LEFT JOIN onceward.published_snapshots p ON p.slot OPERATOR(pg_catalog.=) r.slot
CROSS JOIN LATERAL (
  SELECT pg_catalog.count(DISTINCT o.id) FILTER (WHERE a.state OPERATOR(pg_catalog.=) 'pending'),
    pg_catalog.count(DISTINCT o.id) FILTER (WHERE a.state OPERATOR(pg_catalog.=) 'gap'),
    pg_catalog.count(DISTINCT o.id) FILTER (WHERE a.state OPERATOR(pg_catalog.=) 'before'),
    pg_catalog.count(DISTINCT o.id) FILTER (WHERE a.state OPERATOR(pg_catalog.=) 'given-up'),
    COALESCE(pg_catalog.min(a.gap_id::pg_catalog.text) FILTER (WHERE a.state OPERATOR(pg_catalog.=) 'gap'), ''),
    COALESCE(pg_catalog.min(a.gap_id::pg_catalog.text) FILTER (WHERE a.state OPERATOR(pg_catalog.=) 'before'), '')
  FROM (
    SELECT pg_catalog.pg_snapshot_xmin(p.snapshot), '18446744073709551615'::pg_catalog.xid8
    UNION ALL
    SELECT pg_catalog.pg_snapshot_xmin(g.from_snapshot), pg_catalog.pg_snapshot_xmax(g.to_snapshot) FROM onceward.gaps g
    WHERE g.slot OPERATOR(pg_catalog.=) r.slot AND g.state OPERATOR(pg_catalog.=) ANY('{open,repairing,before,accepted}'::pg_catalog.text[])
  ) x (low, high)
  JOIN %[1]s o ON o.tx_id OPERATOR(pg_catalog.>=) x.low AND o.tx_id OPERATOR(pg_catalog.<) x.high
  JOIN LATERAL onceward.account(o.id, o.tx_id, o.seq) a ON a.slot OPERATOR(pg_catalog.=) r.slot
) s (pending, gap, before, given, gap_id, before_id)
ORDER BY r.relay, r.slot`

const countWaiting = `SELECT pg_catalog.count(*) FROM onceward.waiting
WHERE id OPERATOR(pg_catalog.>=) $1 AND id OPERATOR(pg_catalog.<) $2`

const countLetters = `SELECT pg_catalog.count(*) FROM onceward.dead_letters 
WHERE state OPERATOR(pg_catalog.=) ANY('{open,retrying}'::pg_catalog.text[])
  AND letter_id OPERATOR(pg_catalog.>=) $1 AND letter_id OPERATOR(pg_catalog.<) $2`

// verdict is one relay's word on a closed leaf.
type verdict struct {
	relay, slot string
	hasSlot     bool   // the slot is there, and of no other database
	here        bool   // its state was written on this cluster
	known       bool   // it has a published snapshot
	after       bool   // taken after the leaf was closed
	pending     int64  // rows that it has not published yet
	gap         int64  // rows of gaps that nobody has decided about
	before      int64  // rows that are older than the relay, which leaves them out
	given       int64  // rows that were given up
	discarded   int64  // rows that are discarded letters
	gapID       string // of the rows of gap the first
	beforeID    string // the same of before
}

// What is said of rows that are older than a relay.
const (
	olderRow  = "row is older than relay %s, which never published it"
	olderRows = "rows are older than relay %s, which never published them"
)

// never says which rows the relay has not published and does not owe; empty: every
// row is published.
func (v verdict) never() (out []string) {
	for _, n := range []struct {
		rows      int64
		one, many string
	}{
		{v.before, olderRow, olderRows},
		{v.given, "row was given up (gap accept, relay %s)", "rows were given up (gap accept, relay %s)"},
		{v.discarded, "row is a discarded dead letter of relay %s", "rows are discarded dead letters of relay %s"},
	} {
		if n.rows > 0 {
			out = append(out, fmt.Sprintf(label.Count(n.rows, n.one, n.many), v.relay))
		}
	}
	return out
}

// holds says what a leaf that may go holds.
func (l *leaf) holds() string {
	if len(l.never) == 0 {
		return "every row is published"
	}
	return strings.Join(l.never, "; ") + "; every other row is published"
}

// reason says what to wait for; empty: the leaf may go.
func (v verdict) reason(leaving, dropBefore bool) string {
	reason := v.missing(leaving, dropBefore)
	if reason != "" && v.here && !v.hasSlot {
		reason += fmt.Sprintf("; its slot does not exist in this database: start it, or, if this relay is gone for good, outboxctl retire --slot %s --reason \"…\"", v.slot)
	}
	return reason
}

func (v verdict) missing(leaving, dropBefore bool) string {
	switch {
	case !v.here:
		return fmt.Sprintf("the state of relay %s was written on another cluster, whose transactions mean nothing here: outboxctl adopt --by copy --reason \"…\", or --by dump --reason \"…\" (outboxctl adopt --help says which)", v.relay)
	case !v.known:
		return fmt.Sprintf("waits for relay %s: it has no published snapshot yet", v.relay)
	case !v.after:
		return fmt.Sprintf("waits for relay %s: its published snapshot is older than the closing", v.relay)
	case v.pending > 0:
		return fmt.Sprintf("waits for relay %s: %s not published yet", v.relay, label.Count(v.pending, "row is", "rows are"))
	case v.gap > 0:
		return fmt.Sprintf("%[1]s of a gap of relay %[2]s: outboxctl gap show %[3]s, then outboxctl gap repair %[3]s --reason \"…\" or outboxctl gap accept %[3]s --reason \"…\"", label.Count(v.gap, "row is", "rows are"), v.relay, v.gapID)
	case v.before > 0 && !dropBefore && leaving: // no repair reads it
		return fmt.Sprintf(label.Count(v.before, olderRow, olderRows)+": outboxctl partitions maintain --config relay.yaml --drop-before --reason \"…\" drops what is older", v.relay)
	case v.before > 0 && !dropBefore:
		return fmt.Sprintf(label.Count(v.before, olderRow, olderRows)+": outboxctl gap repair %s --reason \"…\" publishes, outboxctl partitions maintain --config relay.yaml --drop-before --reason \"…\" drops what is older", v.relay, v.beforeID)
	}
	return ""
}

// unpublished returns why a closed leaf may not be dropped; none: it may.
//
// The invariant: a leaf is dropped only if, for every row of relay_state, S was
// taken after the commit that closed the leaf, and every row of the leaf is
// published, discarded or given up by the account; of rows that are older than
// the relay an operator has said that they may go. After that commit no row can
// be added, so that the second holds for ever once it holds, but for a new gap. A
// row that the session may not see would count as visible, so the transaction is
// pinned: a filter is an error.
func (m *maintenance) unpublished(ctx context.Context, tx pgx.Tx, l *leaf) ([]string, error) {
	if !l.closed || l.closedBy == 0 {
		return []string{"it is open"}, nil
	}
	if _, err := tx.Exec(ctx, pgconf.Local); err != nil {
		return nil, fmt.Errorf("pin the transaction: %w", err)
	}
	rows, err := tx.Query(ctx, fmt.Sprintf(selectGate, m.source(l)), fmt.Sprint(l.closedBy), l.Lower, l.Upper)
	if err != nil {
		return nil, fmt.Errorf("compare with published snapshots: %w", err)
	}
	verdicts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (v verdict, err error) {
		err = row.Scan(&v.relay, &v.slot, &v.hasSlot, &v.here, &v.known, &v.after, &v.pending, &v.gap, &v.before,
			&v.given, &v.gapID, &v.beforeID, &v.discarded)
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
	// So is what waits: it was written down before a snapshot could cover it.
	var waits int64
	if err := tx.QueryRow(ctx, countWaiting, l.Lower, l.Upper).Scan(&waits); err != nil {
		return nil, fmt.Errorf("count what waits: %w", err)
	}
	l.before, l.never = l.before[:0], nil
	for _, v := range verdicts {
		l.never = append(l.never, v.never()...)
		if v.before > 0 {
			l.before = append(l.before, v)
		}
	}
	return reasons(l, verdicts, letters, waits, m.cfg.DropBefore != ""), nil
}

// record writes down, with the drop, that rows go which were never published.
func (m *maintenance) record(ctx context.Context, tx pgx.Tx, l *leaf) error {
	for _, v := range l.before {
		err := outboxdb.New(tx).RecordAction(ctx, outboxdb.RecordActionParams{
			Action: "drop before", Slot: v.slot, Target: fmt.Sprintf("%s: %s", l.Name, label.Count(v.before, "event")), Reason: m.cfg.DropBefore,
		})
		if err != nil {
			return fmt.Errorf("write down what is dropped: %w", err)
		}
	}
	return nil
}

// source is where the leaf's rows are read. Who only looks may read the outbox
// and not its leaves, of which one that is leaving is in the outbox no more.
func (m *maintenance) source(l *leaf) string {
	if !m.cfg.DryRun || l.leaving() {
		return l.table()
	}
	return fmt.Sprintf("(SELECT id, tx_id, seq FROM %s WHERE id OPERATOR(pg_catalog.>=) '%s' AND id OPERATOR(pg_catalog.<) '%s')", outboxTable, l.Lower, l.Upper)
}

func reasons(l *leaf, verdicts []verdict, letters, waits int64, dropBefore bool) []string {
	var out []string
	if len(verdicts) == 0 {
		out = append(out, label.NoRelay)
	}
	stays := false
	for _, v := range verdicts {
		if reason := v.reason(l.leaving(), dropBefore); reason != "" {
			out = append(out, reason)
			stays = stays || !v.here || !v.hasSlot || v.gap > 0 || v.before > 0
		}
	}
	if stays && l.leaving() {
		out = append(out, "or "+l.again())
	}
	if letters > 0 {
		out = append(out, label.Count(letters, "of its events is an open dead letter", "of its events are open dead letters")+": retry or discard them")
	}
	if waits > 0 {
		out = append(out, label.Count(waits, "of its events waits", "of its events wait")+" for a route that cannot be used: `outboxctl status` names it")
	}
	return out
}
