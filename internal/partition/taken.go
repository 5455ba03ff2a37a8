package partition

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Outbox is the table of which a partition that was detached may have events that no
// relay has published.
const Outbox = "onceward.outbox"

// claims is the table of which a day may not be made anew while a detached partition
// has that day's claims: a replay would be taken for new.
const claims = "onceward.processed_events"

// TakenError: names of partitions that are missing belong to other relations, as of a
// partition that was detached, so that their days cannot be made. It matches
// [ErrTaken].
type TakenError struct {
	Table  string // "schema.table"
	Names  []string
	toMend []string // statements for each
	again  []string // what attaches again those whose events would leave the account by it
	as     string   // who may do that
}

// Error implements error. It has the statements that mend it and lose no row, and says
// as whom to run them.
func (e *TakenError) Error() string {
	names := make([]string, len(e.Names))
	for i, name := range e.Names {
		names[i] = Sibling(e.Table, name)
	}
	maintain := "`outboxctl partitions maintain --config relay.yaml`"
	if e.Table == claims {
		maintain = "`outboxctl partitions maintain --side consumer`"
	}
	return fmt.Sprintf("%v: %s exists and is not attached, so that its day cannot be made. To mend it, which keeps its rows, as %s: %s%s then %s",
		ErrTaken, strings.Join(names, ", "), e.as, e.better(), quoted(e.toMend), maintain)
}

// better is what to do rather than to rename a table that has events: no command finds
// what is in one that is not attached.
func (e *TakenError) better() string {
	if len(e.again) == 0 {
		return ""
	}
	return quoted(e.again) + " and, for each of which a relay then says PARTITION_FILLED, `outboxctl partitions adopt NAME --reason \"…\"` (its events are published once more); " +
		"or, so that no command finds its events any more: "
}

// quoted marks statements as those to run, as a Problem's cures are.
func quoted(statements []string) string { return "`" + strings.Join(statements, "` `") + "`" }

// Unwrap returns [ErrTaken].
func (e *TakenError) Unwrap() error { return ErrTaken }

// selectTaken also says which of them have what the account of an event needs.
const selectTaken = `SELECT c.relname::pg_catalog.text AS name, (SELECT pg_catalog.count(*) OPERATOR(pg_catalog.=) 3 FROM pg_catalog.pg_attribute a
  WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0 AND pg_catalog.concat(a.attname, ':', a.atttypid::pg_catalog.regtype)
    OPERATOR(pg_catalog.=) ANY ('{id:uuid,tx_id:xid8,seq:bigint}'::pg_catalog.text[]))
  AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AS accountable, c.relkind OPERATOR(pg_catalog.=) 'c' AS composite,
  EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhrelid OPERATOR(pg_catalog.=) c.oid AND i.inhparent OPERATOR(pg_catalog.=) t.oid) AS attached, ` + ownColumns + `
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace` + joinTable + `
WHERE n.nspname OPERATOR(pg_catalog.=) $1 AND (c.relname OPERATOR(pg_catalog.=) ANY($3) OR c.relname OPERATOR(pg_catalog.~) '_(detached|old)[0-9]*$')
ORDER BY c.relname`

// free returns what of the missing partitions can be made, and a [TakenError] where
// the names of others are taken. One that is attached, and was none of those that
// existed when it was found to be missing, was made meanwhile.
func free(ctx context.Context, q Querier, table string, existing, todo []Partition) (can []Partition, taken *TakenError,
	err error) {
	if len(todo) == 0 {
		return nil, nil, nil
	}
	others, err := relations(ctx, q, table, todo)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range todo {
		i := slices.IndexFunc(others, p.isNameOf)
		if i < 0 {
			can = append(can, p)
			continue
		}
		if others[i].Attached && !slices.ContainsFunc(existing, func(e Partition) bool { return e.Name == p.Name }) {
			continue
		}
		needed := table == claims && others[i].Alike
		if table == Outbox && others[i].Accountable {
			if needed, err = owed(ctx, q, Sibling(table, p.Name)); err != nil {
				return nil, nil, err
			}
		}
		if taken == nil {
			taken = &TakenError{Table: table, as: others[i].As()}
		}
		if others[i].Owner != others[i].TableOwner {
			taken.as = others[i].As()
		}
		taken.Names = append(taken.Names, p.Name)
		taken.toMend = append(taken.toMend, cure(table, p, others[i], others, needed))
		if table == Outbox && others[i].Alike && !needed {
			taken.again = append(taken.again, cure(table, p, others[i], others, true))
		}
	}
	return can, taken, nil
}

type relation struct {
	Name        string
	Accountable bool
	Composite   bool // a type, whose name no table can have
	Attached    bool // to the table
	Whose
}

func (p Partition) isNameOf(o relation) bool { return o.Name == p.Name }

// relations finds what has the name of a partition, or what something like that was
// renamed to.
func relations(ctx context.Context, q Querier, table string, todo []Partition) ([]relation, error) {
	schema, parent, _ := splitTable(table)
	var names []string
	for _, p := range todo {
		names = append(names, p.Name)
	}
	rows, err := q.Query(ctx, selectTaken, schema, parent, names)
	if err != nil {
		return nil, fmt.Errorf("look for tables beside %s: %w", table, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[relation])
	if err != nil {
		return nil, fmt.Errorf("look for tables beside %s: %w", table, err)
	}
	return found, nil
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

// cure is what makes that the day of p is there, or can be made. What somebody needs the
// rows of is attached again.
func cure(table string, p Partition, is relation, found []relation, needed bool) string {
	if needed {
		l := Leaf{Partition: p, Whose: is.Whose}
		return strings.Join(l.Reattach(table), "; ") + ";"
	}
	return is.rename(table, found) + ";"
}

// rename is the statement that frees the name of a relation.
func (o relation) rename(table string, found []relation) string {
	kind, suffix := "TABLE", "_old"
	if o.Composite {
		kind = "TYPE"
	}
	if o.Alike {
		suffix = "_detached"
	}
	name := o.Name + suffix
	for n := 2; slices.ContainsFunc(found, Partition{Name: name}.isNameOf); n++ {
		name = fmt.Sprintf("%s%s%d", o.Name, suffix, n)
	}
	return fmt.Sprintf("ALTER %s %s RENAME TO %s", kind, Sibling(table, o.Name), pgx.Identifier{name}.Sanitize())
}
