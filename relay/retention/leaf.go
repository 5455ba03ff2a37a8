package retention

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/partition"
)

// closedTrigger is the trigger that makes a leaf closed.
const closedTrigger = "onceward_closed"

// leaf is a partition of the outbox and whether it is closed.
type leaf struct {
	partition.Leaf
	closed   bool   // the trigger is there and always fires
	closedBy uint64 // the transaction that closed it; 0 is not known
	word     string // what retention said when it closed it
	ours     bool   // retention has found it published, and detaches it

	holders string // of a leaf that is pending, for whom FINALIZE waits: " (pid 7)"

	before []verdict // of relays that are younger than rows of it, as the gate found
	never  []string  // rows that go and were not published, in words; likewise
}

func (l *leaf) table() string { return partition.Sibling(outboxTable, l.Name) }

// selectClosings finds the trigger on leaves, attached or not.
const selectClosings = `SELECT c.relname::pg_catalog.text, t.tgenabled OPERATOR(pg_catalog.=) 'A', COALESCE(pg_catalog.obj_description(t.oid, 'pg_trigger'), '')
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_trigger t ON t.tgrelid OPERATOR(pg_catalog.=) c.oid AND t.tgname OPERATOR(pg_catalog.=) 'onceward_closed'
  AND t.tgfoid OPERATOR(pg_catalog.=) 'onceward.refuse_insert'::pg_catalog.regproc
WHERE c.relnamespace OPERATOR(pg_catalog.=) 'onceward'::pg_catalog.regnamespace AND c.relkind OPERATOR(pg_catalog.=) 'r'`

// closing is what the trigger's comment says; the transaction is compared with
// published snapshots.
const closing = "closed by outbox retention in transaction %s at %s"

// detaching is said behind it once the gate has let the leaf go. A closed leaf that
// somebody else detached is none of retention's: what the relay finds afterwards, and
// repairs, it finds in the table, without the leaf.
const detaching = ", and detached by it"

var closingTransaction = regexp.MustCompile(`^closed by outbox retention in transaction ([0-9]+) at [0-9A-Z:-]*`)

// leaves lists them, oldest first, one whose detach is pending before all. A
// table beside the outbox is ours only if it has the trigger.
func (m *maintenance) leaves(ctx context.Context) ([]leaf, error) {
	closed, err := m.closings(ctx)
	if err != nil {
		return nil, err
	}
	found, err := partition.Leaves(ctx, m.conn, outboxTable)
	if err != nil && defaultPartition(err) == nil {
		return nil, err
	}
	var leaves []leaf
	for _, l := range found {
		c, has := closed[l.Name]
		if !has && !l.Attached {
			continue
		}
		if l.Pending {
			m.exit.Pending = l.Name
			c.holders = partition.Holders(ctx, m.conn, partition.Sibling(outboxTable, l.Name), "", 0)
		}
		c.Leaf = l
		leaves = append(leaves, c)
	}
	return leaves, err
}

// closings returns by name what the triggers say.
func (m *maintenance) closings(ctx context.Context) (map[string]leaf, error) {
	rows, _ := m.conn.Query(ctx, selectClosings) // ForEachRow returns its error
	closed := make(map[string]leaf)
	var name, comment string
	var always bool
	_, err := pgx.ForEachRow(rows, []any{&name, &always, &comment}, func() error {
		closed[name] = leaf{
			closed: always, closedBy: parseClosing(comment), word: closingTransaction.FindString(comment),
			ours: strings.HasSuffix(comment, detaching),
		}
		return nil
	})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42883" { // undefined_function
		return nil, fmt.Errorf("no partition can be closed: %w; run `outboxctl migrate up --side outbox`", err)
	}
	if err != nil {
		return nil, fmt.Errorf("look which partitions of %s are closed: %w", outboxTable, err)
	}
	return closed, nil
}

func parseClosing(comment string) uint64 {
	var xid uint64
	if m := closingTransaction.FindStringSubmatch(comment); m != nil {
		_, _ = fmt.Sscan(m[1], &xid) // digits only; too many leave 0: not known
	}
	return xid
}

// advance takes a leaf as far as it may go now.
func (m *maintenance) advance(ctx context.Context, l *leaf) (partition.Report, error) {
	switch {
	case l.Pending && !l.closed:
		return l.Report(LeafDetaching, "somebody began to detach it while it was open, so that rows inserted meanwhile were not published: "+
			"run %[1]s; ALTER TABLE %[2]s DETACH PARTITION %[3]s FINALIZE, which waits for who reads it%[5]s and for transactions that are older, compare it with the topic, and where that lacks some, "+
			"ATTACH it again and run outboxctl partitions adopt %[4]s --reason \"…\"", partition.Bounded, outboxTable, l.table(), l.Name, l.holders).ToMend(), nil
	case l.leaving() && !l.ours:
		return l.foreign(), nil
	case l.To().After(m.cutoff) && l.leaving():
		return l.Report(LeafDetaching, "retention had detached it when fewer days were kept, and it is younger than is kept now: "+
			"outboxctl partitions maintain --config relay.yaml --keep DAYS, with as few as then, drops it; or %s", l.again()).ToMend(), nil
	case l.To().After(m.cutoff):
		if l.closed {
			return l.Report(LeafClosed, "closed, and younger than is kept now: it refuses events; to open it again, run DROP TRIGGER %s ON %s", closedTrigger, l.table()).ToMend(), nil
		}
		return l.Report(LeafOpen, ""), nil
	case !l.closed || l.closedBy == 0:
		if m.cfg.DryRun {
			return l.Report(LeafOpen, "older than %s; would be closed", label.Count(m.cfg.Keep, "day")), nil
		}
		begun := time.Now()
		if err := m.close(ctx, l); err != nil {
			if partition.TimedOut(err) {
				return l.Report(LeafOpen, "not closed yet: a transaction that wrote to it is open%s", partition.Holders(ctx, m.conn, l.table(), "RowExclusiveLock", time.Since(begun))), nil
			}
			return l.Report(LeafOpen, "not closed yet"), fmt.Errorf("close: %w", err)
		}
	}
	var reasons []string
	err := pgx.BeginFunc(ctx, m.conn, func(tx pgx.Tx) (err error) {
		reasons, err = m.unpublished(ctx, tx, l)
		return err
	})
	var pg *pgconn.PgError
	if m.cfg.DryRun && l.leaving() && errors.As(err, &pg) { // no right, or it is locked, or dropped
		return l.Report(LeafDetaching, "closed; not seen here whether the next run goes on with it: %s", label.Said(err)), nil
	}
	if err != nil || len(reasons) > 0 {
		if err == nil && l.ours && l.Attached && !l.Pending && !m.cfg.DryRun {
			err = say(ctx, m.conn, l, l.word) // it was attached again
		}
		return l.Report(LeafWaiting, "%s", strings.Join(reasons, "; ")), err
	}
	if m.cfg.DryRun && l.leaving() {
		return l.Report(LeafDetaching, "closed; the next run goes on with it"), nil
	}
	if m.cfg.DryRun {
		return l.Report(LeafClosed, "%s; would be dropped", l.holds()), nil
	}
	return m.remove(ctx, l)
}

// close makes the trigger in one transaction, which waits for the writers of
// this leaf and of no other. OR REPLACE makes a second try the same as a first.
func (m *maintenance) close(ctx context.Context, l *leaf) error {
	return pgx.BeginFunc(ctx, m.conn, func(tx pgx.Tx) error {
		var xid string
		if err := tx.QueryRow(ctx, "SELECT pg_catalog.pg_current_xact_id()::pg_catalog.text").Scan(&xid); err != nil {
			return err
		}
		for _, sql := range []string{
			fmt.Sprintf("CREATE OR REPLACE TRIGGER %s BEFORE INSERT ON %s FOR EACH ROW EXECUTE FUNCTION onceward.refuse_insert()", closedTrigger, l.table()),
			fmt.Sprintf("ALTER TABLE %s ENABLE ALWAYS TRIGGER %s", l.table(), closedTrigger), // also for session_replication_role = replica
		} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		comment := fmt.Sprintf(closing, xid, time.Now().UTC().Format(time.RFC3339))
		if err := say(ctx, tx, l, comment); err != nil {
			return err
		}
		l.closed, l.closedBy, l.word, l.ours = true, parseClosing(comment), comment, false
		return nil
	})
}

// leaving reports whether it is out of the table, or about to be.
func (l *leaf) leaving() bool { return l.Pending || !l.Attached }

// again is how it comes back into the table.
func (l *leaf) again() string {
	waits := ""
	if l.Pending {
		waits = " and which waits for who reads it" + l.holders + " and for transactions that are older"
	}
	return fmt.Sprintf("attach it again (%s), which the relay takes for PARTITION_FILLED%s, and run outboxctl partitions adopt %s --reason \"…\": "+
		"all of its rows are published once more", strings.Join(l.Reattach(outboxTable), "; "), waits, l.Name)
}

// foreign reports a leaf that was closed, and that somebody else than retention took
// out of the table.
func (l *leaf) foreign() partition.Report {
	return l.Report(LeafDetaching, "it was detached by somebody, or by an older release, and retention does not know that its rows are published: "+
		"compare it with the topics, and DROP TABLE %[2]s; or %[1]s; or, when it is none of ours, DROP TRIGGER %[3]s ON %[2]s",
		l.again(), l.table(), closedTrigger).ToMend()
}

// execer is a connection or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// say writes what retention says of a leaf into the trigger's comment.
func say(ctx context.Context, conn execer, l *leaf, word string) error {
	_, err := conn.Exec(ctx, fmt.Sprintf("COMMENT ON TRIGGER %s ON %s IS '%s'", closedTrigger, l.table(), word))
	return err
}

// mark says of a leaf that has passed the gate that retention detaches it. From then on
// nobody can order a repair that would need its rows (onceward.leaving_partition); for
// the orders that were being written it is waited, and the gate asked about them.
func (m *maintenance) mark(ctx context.Context, l *leaf) (reasons []string, err error) {
	if err := say(ctx, m.conn, l, l.word+detaching); err != nil {
		return nil, err
	}
	err = pgx.BeginFunc(ctx, m.conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "LOCK TABLE onceward.relay_actions IN SHARE MODE")
		return err
	})
	if err == nil {
		err = pgx.BeginFunc(ctx, m.conn, func(tx pgx.Tx) error {
			reasons, err = m.unpublished(ctx, tx, l)
			return err
		})
	}
	if (err != nil || len(reasons) > 0) && !l.Pending {
		err = errors.Join(err, say(ctx, m.conn, l, l.word))
	}
	return reasons, err
}

// remove detaches and drops a leaf that has passed the gate, which is asked once more
// before each of the two.
func (m *maintenance) remove(ctx context.Context, l *leaf) (partition.Report, error) {
	report, err := m.exit.Leave(ctx, &l.Leaf, partition.Gate{
		Holds: l.holds(),
		Detach: func(ctx context.Context) (*partition.Report, error) {
			reasons, err := m.mark(ctx, l)
			var stays partition.Report
			switch {
			case partition.TimedOut(err):
				stays, err = l.Report(LeafClosed, "waits for an operator's order that is being written down"), nil
			case err != nil:
				stays = l.Report(LeafClosed, "not detached")
			case len(reasons) > 0:
				stays = l.Report(LeafWaiting, "%s", strings.Join(reasons, "; "))
			default:
				return nil, nil //nolint:nilnil // nothing is against it
			}
			return &stays, err
		},
		Drop: func(ctx context.Context, tx pgx.Tx) ([]string, error) {
			reasons, err := m.unpublished(ctx, tx, l)
			if err != nil || len(reasons) > 0 {
				return reasons, err
			}
			return nil, m.record(ctx, tx, l)
		},
		Stuck: true, // a gap, or somebody's order: it was published when it was detached
	})
	if report.State == LeafDropped && len(l.never) > 0 {
		report.Why = strings.Join(l.never, "; ") + ", and went with it"
	}
	return report, err
}
