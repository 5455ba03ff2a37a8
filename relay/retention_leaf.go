package relay

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
)

// closedTrigger is the trigger that makes a leaf closed.
const closedTrigger = "onceward_closed"

// leaf is a partition of the outbox, or what is left of one after its detach.
type leaf struct {
	partition.Partition
	attached bool
	pending  bool   // a concurrent detach was begun and not finished
	closed   bool   // the trigger is there and always fires
	closedBy uint64 // the transaction that closed it; 0 is not known
}

func (l *leaf) table() string   { return pgx.Identifier{outboxSchema, l.Name}.Sanitize() }
func (l *leaf) from() time.Time { return outbox.IDTime(l.Lower) }
func (l *leaf) to() time.Time   { return outbox.IDTime(l.Upper) }

func (l *leaf) report(state LeafState, why string, args ...any) LeafReport {
	return LeafReport{Name: l.Name, From: l.from(), To: l.to(), State: state, Why: fmt.Sprintf(why, args...)}
}

// selectLeaves finds what partition.List finds, and those that were detached and
// not dropped: they are ours by name and trigger.
const selectLeaves = `SELECT c.relname::text, i.inhrelid IS NOT NULL, COALESCE(i.inhdetachpending, false),
  COALESCE(t.tgenabled = 'A', false), COALESCE(pg_catalog.obj_description(t.oid, 'pg_trigger'), '')
FROM pg_catalog.pg_class c
LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid AND i.inhparent = 'onceward.outbox'::regclass
LEFT JOIN pg_catalog.pg_trigger t ON t.tgrelid = c.oid AND t.tgname = 'onceward_closed' AND t.tgfoid = 'onceward.refuse_insert'::regproc
WHERE c.relnamespace = 'onceward'::regnamespace AND c.relkind = 'r'
  AND (i.inhrelid IS NOT NULL OR t.oid IS NOT NULL AND NOT c.relispartition AND c.relname ~ '^outbox_[0-9]{8}$')
ORDER BY c.relname`

// closing is what the trigger's comment says; the transaction is compared with
// published snapshots.
const closing = "closed by outbox retention in transaction %s at %s"

var closingTransaction = regexp.MustCompile(`^closed by outbox retention in transaction ([0-9]+) at `)

// leaves lists them, oldest first, one whose detach is pending before all.
func (m *maintenance) leaves(ctx context.Context) ([]leaf, error) {
	attached, err := partition.List(ctx, m.conn, outboxTable)
	if err != nil {
		return nil, err
	}
	bounds := make(map[string]partition.Partition, len(attached))
	for _, p := range attached {
		bounds[p.Name] = p
	}
	rows, _ := m.conn.Query(ctx, selectLeaves) // ForEachRow returns its error
	var pending, others []leaf
	var l leaf
	var comment string
	_, err = pgx.ForEachRow(rows, []any{&l.Name, &l.attached, &l.pending, &l.closed, &comment}, func() error {
		found := l
		found.closedBy = parseClosing(comment)
		p, known := bounds[l.Name]
		if !known {
			day, err := time.Parse("outbox_20060102", l.Name)
			if err != nil {
				return nil //nolint:nilerr // outbox_99999999 is nobody's day
			}
			p = partition.OfDay("outbox", day)
		}
		found.Partition = p
		if found.pending {
			pending, m.detaching = append(pending, found), found.Name
		} else {
			others = append(others, found)
		}
		return nil
	})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42883" { // undefined_function
		return nil, fmt.Errorf("no partition can be closed: %w; run `outboxctl migrate up --side outbox`", err)
	}
	if err != nil {
		return nil, fmt.Errorf("list partitions of %s: %w", outboxTable, err)
	}
	return append(pending, others...), nil
}

func parseClosing(comment string) uint64 {
	var xid uint64
	if m := closingTransaction.FindStringSubmatch(comment); m != nil {
		_, _ = fmt.Sscan(m[1], &xid) // digits only; too many leave 0: not known
	}
	return xid
}

// advance takes a leaf as far as it may go now.
func (m *maintenance) advance(ctx context.Context, l *leaf) (LeafReport, error) {
	switch {
	case l.pending && !l.closed:
		r := l.report(LeafDetaching, "somebody began to detach it while it was open, so that rows inserted meanwhile were not published: "+
			"compare it with the topic, then run ALTER TABLE %s DETACH PARTITION %s FINALIZE", outboxTable, l.table())
		r.Wrong = true
		return r, nil
	case l.to().After(m.cutoff):
		if l.closed {
			r := l.report(LeafClosed, "closed, and younger than is kept now: it refuses events; to open it again, run DROP TRIGGER %s ON %s", closedTrigger, l.table())
			r.Wrong = true
			return r, nil
		}
		return l.report(LeafOpen, ""), nil
	case !l.closed || l.closedBy == 0:
		if m.cfg.DryRun {
			return l.report(LeafOpen, "older than %d days; would be closed", m.cfg.Keep), nil
		}
		if err := m.close(ctx, l); err != nil {
			if timedOut(err) {
				return l.report(LeafOpen, "not closed yet: a transaction that wrote to it is open%s", m.holders(ctx, l)), nil
			}
			return l.report(LeafOpen, "not closed yet"), fmt.Errorf("close: %w", err)
		}
	}
	if m.cfg.DryRun && (l.pending || !l.attached) {
		return l.report(LeafDetaching, "closed; the next run goes on with it"), nil
	}
	reasons, err := m.unpublished(ctx, m.conn, l)
	if err != nil || len(reasons) > 0 {
		return l.report(LeafWaiting, "%s", strings.Join(reasons, "; ")), err
	}
	if m.cfg.DryRun {
		return l.report(LeafClosed, "every row is published; would be dropped"), nil
	}
	return m.remove(ctx, l)
}

// close makes the trigger in one transaction, which waits for the writers of
// this leaf and of no other. OR REPLACE makes a second try the same as a first.
func (m *maintenance) close(ctx context.Context, l *leaf) error {
	return pgx.BeginFunc(ctx, m.conn, func(tx pgx.Tx) error {
		var xid string
		if err := tx.QueryRow(ctx, "SELECT pg_catalog.pg_current_xact_id()::text").Scan(&xid); err != nil {
			return err
		}
		for _, sql := range []string{
			fmt.Sprintf("CREATE OR REPLACE TRIGGER %s BEFORE INSERT ON %s FOR EACH ROW EXECUTE FUNCTION onceward.refuse_insert()", closedTrigger, l.table()),
			fmt.Sprintf("ALTER TABLE %s ENABLE ALWAYS TRIGGER %s", l.table(), closedTrigger), // also for session_replication_role = replica
			fmt.Sprintf("COMMENT ON TRIGGER %s ON %s IS '%s'", closedTrigger, l.table(), fmt.Sprintf(closing, xid, time.Now().UTC().Format(time.RFC3339))),
		} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		l.closed, l.closedBy = true, parseClosing(fmt.Sprintf(closing, xid, ""))
		return nil
	})
}

// remove detaches and drops a leaf that has passed the gate.
func (m *maintenance) remove(ctx context.Context, l *leaf) (LeafReport, error) {
	if l.attached {
		if m.detaching != "" && m.detaching != l.Name {
			return l.report(LeafClosed, "every row is published; waits for the detach of %s", m.detaching), nil
		}
		how := "CONCURRENTLY"
		if l.pending {
			how = "FINALIZE"
		}
		if _, err := m.conn.Exec(ctx, fmt.Sprintf("ALTER TABLE %s DETACH PARTITION %s %s", outboxTable, l.table(), how)); err != nil {
			m.detaching = l.Name // it may have begun; the next run looks
			if timedOut(err) {
				return l.report(LeafDetaching, "waits for transactions that are older than the detach"), nil
			}
			return l.report(LeafClosed, "not detached"), fmt.Errorf("detach: %w", err)
		}
		m.detaching = ""
	}
	var reasons []string
	err := pgx.BeginFunc(ctx, m.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "LOCK TABLE "+l.table()+" IN ACCESS EXCLUSIVE MODE"); err != nil {
			return err
		}
		var err error
		if reasons, err = m.unpublished(ctx, tx, l); err != nil || len(reasons) > 0 {
			return err
		}
		_, err = tx.Exec(ctx, "DROP TABLE "+l.table())
		return err
	})
	switch {
	case timedOut(err):
		return l.report(LeafDetaching, "detached; somebody reads it still"), nil
	case err != nil:
		return l.report(LeafDetaching, "detached, not dropped"), fmt.Errorf("drop: %w", err)
	case len(reasons) > 0:
		r := l.report(LeafWaiting, "detached and kept: %s", strings.Join(reasons, "; "))
		r.Wrong = true
		return r, nil
	}
	return l.report(LeafDropped, ""), nil
}

// holders names the sessions that keep the leaf from being closed.
func (m *maintenance) holders(ctx context.Context, l *leaf) string {
	const query = `SELECT string_agg(DISTINCT pid::text, ', ') FROM pg_catalog.pg_locks WHERE relation = $1::regclass AND granted AND mode = 'RowExclusiveLock'`
	var pids *string
	if err := m.conn.QueryRow(ctx, query, l.table()).Scan(&pids); err != nil || pids == nil {
		return ""
	}
	return " (pid " + *pids + ")"
}
