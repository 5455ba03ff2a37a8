package partition

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// events is the table of which a partition that was detached may have events that no
// relay has published.
const events = "onceward.outbox"

// claims is the table of which a day may not be made anew while a detached partition
// has that day's claims: a replay would be taken for new.
const claims = "onceward.processed_events"

// TakenError: names of partitions that are missing belong to other relations, as of a
// partition that was detached, so that their days cannot be made. It matches
// [ErrTaken].
type TakenError struct {
	Table  string // "schema.table"
	Names  []string
	toMend []string // a statement for each
	as     string   // who may do that
}

// Error implements error. It has the statements that mend it and lose no row, and says
// as whom to run them.
func (e *TakenError) Error() string {
	names := make([]string, len(e.Names))
	for i, name := range e.Names {
		names[i] = Sibling(e.Table, name)
	}
	return fmt.Sprintf("%v: %s exists and is not attached, so that its day cannot be made. To mend it, which keeps its rows, as %s: %s then `outboxctl partitions maintain%s`",
		ErrTaken, strings.Join(names, ", "), e.as, strings.Join(e.toMend, " "), map[bool]string{true: " --side consumer"}[e.Table == claims])
}

// Unwrap returns [ErrTaken].
func (e *TakenError) Unwrap() error { return ErrTaken }

// selectTaken also says which of them have what the account of an event needs, and
// whose they are.
const selectTaken = `SELECT c.relname::pg_catalog.text AS name, (SELECT pg_catalog.count(*) OPERATOR(pg_catalog.=) 3 FROM pg_catalog.pg_attribute a
  WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0 AND pg_catalog.concat(a.attname, ':', a.atttypid::pg_catalog.regtype)
    OPERATOR(pg_catalog.=) ANY ('{id:uuid,tx_id:xid8,seq:bigint}'::pg_catalog.text[]))
  AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AS accountable, pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(c.relowner)) AS owner,
  c.relowner OPERATOR(pg_catalog.=) (SELECT p.relowner FROM pg_catalog.pg_class p WHERE p.relnamespace OPERATOR(pg_catalog.=) n.oid AND p.relname OPERATOR(pg_catalog.=) $3) AS ours
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE n.nspname OPERATOR(pg_catalog.=) $1 AND (c.relname OPERATOR(pg_catalog.=) ANY($2) OR c.relname OPERATOR(pg_catalog.~) '_detached[0-9]*$')
ORDER BY c.relname`

// free returns what of the missing partitions can be made, and a [TakenError] where
// the names of others are taken.
func free(ctx context.Context, q Querier, table string, todo []Partition) (can []Partition, taken *TakenError, err error) {
	if len(todo) == 0 {
		return nil, nil, nil
	}
	schema, parent, _ := splitTable(table)
	var names []string
	for _, p := range todo {
		names = append(names, p.Name)
	}
	rows, err := q.Query(ctx, selectTaken, schema, names, parent)
	if err != nil {
		return nil, nil, fmt.Errorf("look for tables beside %s: %w", table, err)
	}
	others, err := pgx.CollectRows(rows, pgx.RowToStructByPos[relation])
	if err != nil {
		return nil, nil, fmt.Errorf("look for tables beside %s: %w", table, err)
	}
	var found []string
	for _, o := range others {
		found = append(found, o.Name)
	}
	for _, p := range todo {
		i := slices.Index(found, p.Name)
		if i < 0 {
			can = append(can, p)
			continue
		}
		needed := table == claims
		if table == events && others[i].Accountable {
			if needed, err = owed(ctx, q, Sibling(table, p.Name)); err != nil {
				return nil, nil, err
			}
		}
		if taken == nil {
			taken = &TakenError{Table: table, as: "a member of the role " + others[i].Owner}
		}
		if !others[i].Ours { // who owns both attaches it
			taken.as = "a superuser"
		}
		taken.Names = append(taken.Names, p.Name)
		taken.toMend = append(taken.toMend, cure(table, p, found, needed))
	}
	return can, taken, nil
}

type relation struct {
	Name        string
	Accountable bool
	Owner       string // quoted for SQL
	Ours        bool   // it has the owner of the table beside which it is
}

// owed says whether some relay has not published an event of a detached partition, and
// would look for its row: it waits for a route, or is of a gap.
func owed(ctx context.Context, q Querier, partition string) (is bool, err error) {
	rows, err := q.Query(ctx, `SELECT EXISTS (SELECT FROM `+partition+` d CROSS JOIN LATERAL onceward.account(d.id, d.tx_id, d.seq) a (slot, relay, state, gap_id, snapshot_at)
		WHERE a.state OPERATOR(pg_catalog.=) ANY ('{waiting,gap,pending}'::pg_catalog.text[]))`)
	if err == nil {
		is, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool])
	}
	if err != nil {
		return false, fmt.Errorf("look what is not published of %s, which is detached: %w", partition, err)
	}
	return is, nil
}

// cure is the statement after which the day of p is there, or can be made. What
// somebody needs the rows of is attached again.
func cure(table string, p Partition, found []string, needed bool) string {
	if needed {
		return p.Attach(table) + ";"
	}
	name := p.Name + "_detached"
	for n := 2; slices.Contains(found, name); n++ {
		name = fmt.Sprintf("%s_detached%d", p.Name, n)
	}
	return fmt.Sprintf("ALTER TABLE %s RENAME TO %s;", Sibling(table, p.Name), pgx.Identifier{name}.Sanitize())
}
