package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/outbox"
)

// Leaf is a partition of a table as retention sees it, or what is left of one
// after its detach.
type Leaf struct {
	Partition
	Whose
	Attached bool
	Pending  bool  // a concurrent detach was begun and not finished
	Rows     int64 // at the last ANALYZE; -1: there was none
	Heap     int64 // bytes of rows alone; more than 0 once a row was inserted
	Bytes    int64 // on disk, with indexes and large values
}

// Whose says of a relation that is a partition of a table, or has the name of one, whose
// it is. Owners are quoted for SQL.
type Whose struct {
	Owner, TableOwner string
	Alike             bool // it can be attached: a table with the columns of that one
}

// As says who may do with it what is printed.
func (w Whose) As() string {
	if w.Owner != w.TableOwner {
		return "a superuser"
	}
	return "a member of the role " + w.TableOwner
}

// ownColumns is what a statement selects of [Whose], of the relation c and the table t.
const ownColumns = `pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(c.relowner)), COALESCE(pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(t.relowner)), ''),
  c.relkind OPERATOR(pg_catalog.=) 'r' AND 1 OPERATOR(pg_catalog.=) (SELECT pg_catalog.count(DISTINCT s.columns) FROM (SELECT pg_catalog.array_agg(
    pg_catalog.concat(a.attname, ' ', pg_catalog.format_type(a.atttypid, a.atttypmod)) ORDER BY a.attname) AS columns FROM pg_catalog.pg_attribute a
    WHERE (a.attrelid OPERATOR(pg_catalog.=) c.oid OR a.attrelid OPERATOR(pg_catalog.=) t.oid) AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped GROUP BY a.attrelid) s)`

// joinTable is the table "$1.$2", called t.
const joinTable = `
LEFT JOIN (pg_catalog.pg_class t JOIN pg_catalog.pg_namespace tn ON tn.oid OPERATOR(pg_catalog.=) t.relnamespace AND tn.nspname OPERATOR(pg_catalog.=) $1)
  ON t.relname OPERATOR(pg_catalog.=) $2`

// From is the beginning of the leaf's event times.
func (l *Leaf) From() time.Time { return outbox.IDTime(l.Lower) }

// To is the end of the leaf's event times, itself excluded.
func (l *Leaf) To() time.Time { return outbox.IDTime(l.Upper) }

// selectLeaves finds what List finds, and the tables that have a partition's name
// and are attached to nothing.
const selectLeaves = `SELECT CASE WHEN b.bound OPERATOR(pg_catalog.=) 'DEFAULT' THEN pg_catalog.format('%I.%I', n.nspname, c.relname) ELSE c.relname::pg_catalog.text END,
  ` + ownColumns + `, i.inhrelid IS NOT NULL, COALESCE(i.inhdetachpending, false),
  b.bound, c.reltuples::bigint,
  COALESCE(pg_catalog.pg_relation_size(c.oid), 0), COALESCE(pg_catalog.pg_total_relation_size(c.oid), 0)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
CROSS JOIN LATERAL (SELECT COALESCE(pg_catalog.pg_get_expr(c.relpartbound, c.oid), '') AS bound) b
LEFT JOIN (pg_catalog.pg_inherits i JOIN pg_catalog.pg_class p ON p.oid OPERATOR(pg_catalog.=) i.inhparent AND p.relname OPERATOR(pg_catalog.=) $2
  JOIN pg_catalog.pg_namespace pn ON pn.oid OPERATOR(pg_catalog.=) p.relnamespace AND pn.nspname OPERATOR(pg_catalog.=) $1)
  ON i.inhrelid OPERATOR(pg_catalog.=) c.oid` + joinTable + `
WHERE i.inhrelid IS NOT NULL OR n.nspname OPERATOR(pg_catalog.=) $1 AND c.relkind OPERATOR(pg_catalog.=) 'r' AND NOT c.relispartition
  AND c.relname OPERATOR(pg_catalog.~) pg_catalog.concat('^', $2, '_[0-9]{8}$')
ORDER BY c.relname`

// Leaves lists the partitions of "schema.table" and the tables beside it that
// have the name of one, detached by retention or by hand (of those of claims only what
// has their columns; anything else was never one): one whose detach is
// pending before all, then the oldest first. It needs no right on the table. Of a
// table that has a DEFAULT partition it returns the others with a [DefaultError].
func Leaves(ctx context.Context, q Querier, table string) ([]Leaf, error) {
	schema, name, err := splitTable(table)
	if err != nil {
		return nil, err
	}
	rows, err := q.Query(ctx, selectLeaves, schema, name)
	if err != nil {
		return nil, fmt.Errorf("list partitions of %s: %w", table, err)
	}
	var leaves []Leaf
	var l Leaf
	var bound string
	var unwanted error
	_, err = pgx.ForEachRow(rows, []any{&l.Name, &l.Owner, &l.TableOwner, &l.Alike, &l.Attached, &l.Pending, &bound,
		&l.Rows, &l.Heap, &l.Bytes}, func() (err error) {
		found := l
		if found.Attached {
			found.Partition, err = parseBound(table, l.Name, bound)
		} else if day, wrong := time.Parse(name+nameLayout, l.Name); wrong == nil && (l.Alike || table != claims) {
			found.Partition = OfDay(name, day)
		} else {
			return nil // as events_99999999, which is nobody's day
		}
		if errors.Is(err, ErrDefault) {
			unwanted = fmt.Errorf("list partitions of %s: %w", table, err)
			return nil
		}
		leaves = append(leaves, found)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list partitions of %s: %w", table, err)
	}
	slices.SortStableFunc(leaves, func(a, b Leaf) int {
		if a.Pending != b.Pending {
			return map[bool]int{true: -1, false: 1}[a.Pending]
		}
		return compare(a.Lower, b.Lower)
	})
	return leaves, unwanted
}

// Detach takes a leaf out of "schema.table" without holding back any writer, or
// finishes a detach that was begun. It waits for the transactions that are older;
// when that is cut short, by lock_timeout or a lost connection, the leaf is
// pending, and calling Detach for it again goes on. The connection must be in no
// transaction. PostgreSQL has one pending detach per table at a time.
func Detach(ctx context.Context, conn *pgx.Conn, table string, l Leaf) error {
	how := "CONCURRENTLY"
	if l.Pending {
		how = "FINALIZE"
	}
	_, err := conn.Exec(ctx, fmt.Sprintf("ALTER TABLE %s DETACH PARTITION %s %s", quote(table), Sibling(table, l.Name), how))
	if err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	return nil
}

// Drop drops a detached leaf of "schema.table", unless against has reasons, which
// are returned. It is asked in the transaction of the drop, with the leaf locked,
// so that what it says still holds.
func Drop(ctx context.Context, conn Conn, table string, leaf Leaf,
	against func(context.Context, pgx.Tx) ([]string, error)) (reasons []string, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "LOCK TABLE "+Sibling(table, leaf.Name)+" IN ACCESS EXCLUSIVE MODE"); err != nil {
			return err
		}
		if reasons, err = against(ctx, tx); err != nil || len(reasons) > 0 {
			return err
		}
		_, err := tx.Exec(ctx, "DROP TABLE "+Sibling(table, leaf.Name))
		return err
	})
	var pg *pgconn.PgError
	if give := leaf.Give(table); give != nil && errors.As(err, &pg) && pg.Code == "42501" { // insufficient_privilege
		return nil, fmt.Errorf("drop: it belongs to %s: as %s: %s; the next run drops it", leaf.Owner, leaf.As(), give[0])
	}
	if err != nil {
		return nil, fmt.Errorf("drop: %w", err)
	}
	return reasons, nil
}

// Sibling returns the name of a leaf in the schema of "schema.table", quoted for
// SQL.
func Sibling(table, leaf string) string {
	schema, _, _ := splitTable(table)
	return pgx.Identifier{schema, leaf}.Sanitize()
}

// AttachAgain says how to bring a leaf of "schema.table" back that was detached, or is
// about to be, and as whom.
func (l *Leaf) AttachAgain(table string) string {
	return fmt.Sprintf("attach it again (as %s: %s), or drop it when it is none of ours", l.As(), strings.Join(l.Reattach(table), "; "))
}

// Give is the statement that makes another's leaf that of the owner of "schema.table", so
// that each member of that role can drop it later; none: it is that already.
func (l *Leaf) Give(table string) []string {
	if l.Owner == l.TableOwner {
		return nil
	}
	return []string{fmt.Sprintf("ALTER TABLE %s OWNER TO %s", Sibling(table, l.Name), l.TableOwner)}
}

// Bounded is printed before a statement behind whose wait for a lock others wait, be it
// writers or who only looks at the partitions.
const Bounded = "SET lock_timeout = '2s'"

// Reattach are the statements that put a leaf back into "schema.table", as its owner's.
func (l *Leaf) Reattach(table string) []string {
	statements := append(l.Give(table), l.putBack(table)...)
	if l.Pending {
		return append([]string{Bounded}, statements...)
	}
	return statements
}

// putBack is [Leaf.Reattach] of a leaf that is its owner's, in a transaction that bounds
// its waits.
func (l *Leaf) putBack(table string) []string {
	attach := []string{l.Attach(table)}
	if l.Pending {
		return append([]string{fmt.Sprintf("ALTER TABLE %s DETACH PARTITION %s FINALIZE", quote(table), Sibling(table, l.Name))}, attach...)
	}
	return attach
}

// Attach is the statement that puts a leaf into "schema.table", for its day.
func (p Partition) Attach(table string) string {
	return fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')", quote(table), Sibling(table, p.Name), p.Lower, p.Upper)
}

// TimedOut reports whether a statement gave up waiting for a lock.
func TimedOut(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "55P03" // lock_not_available
}

// Holders names, for a message, the other sessions that hold a lock on a table, in a
// transaction that began before a wait did, where that can be seen:
// " (pid 7, 9)", or nothing when there is none or none can be seen. Without a mode
// every lock counts. table is quoted for SQL.
func Holders(ctx context.Context, conn *pgx.Conn, table, mode string, waited time.Duration) string {
	const query = `SELECT pg_catalog.string_agg(DISTINCT l.pid::pg_catalog.text, ', ') FROM pg_catalog.pg_locks l
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid
WHERE l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
  AND l.relation OPERATOR(pg_catalog.=) $1::pg_catalog.regclass AND l.granted AND ($2 OPERATOR(pg_catalog.=) '' OR l.mode OPERATOR(pg_catalog.=) $2)
  AND l.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()
  AND COALESCE(a.xact_start OPERATOR(pg_catalog.+) $3::pg_catalog.interval OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp(), true)`
	var pids *string
	if err := conn.QueryRow(ctx, query, table, mode, waited).Scan(&pids); err != nil || pids == nil {
		return ""
	}
	return " (pid " + *pids + ")"
}
