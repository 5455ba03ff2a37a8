package migrations

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrTableGone: a table that a migration made is not there any more. No migration
// makes it again: what it held is gone with it, or is where somebody put it.
var ErrTableGone = errors.New("a table was renamed, moved or dropped")

// tablesAt returns the tables of a side at a version of its schema.
func (s Side) tablesAt(version int64) []string {
	if version == 0 {
		return nil
	}
	all := Roles{side: s}.tables()
	type addition struct {
		since  int64
		tables []string
	}
	later := []addition{{4, []string{resultsTable}}, {6, []string{healthTable}}, {7, gapTables}, {10, waitingTables}, {11, []string{kafkaTable}}}
	if s == Consumer {
		later = []addition{{2, laterTables}}
	}
	for _, l := range later {
		if version >= l.since {
			all = append(all, l.tables...)
		}
	}
	return all
}

// findGone returns the first table that a version has and the database has not. What
// was renamed is found by its primary key, which keeps its name.
const findGone = `SELECT t, COALESCE((SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class k
  JOIN pg_catalog.pg_index i ON i.indexrelid OPERATOR(pg_catalog.=) k.oid AND i.indisprimary
  JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.indrelid
  JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace AND n.nspname OPERATOR(pg_catalog.=) 'onceward'
  WHERE k.relname OPERATOR(pg_catalog.=) (pg_catalog.split_part(t, '.', 2) OPERATOR(pg_catalog.||) '_pkey') LIMIT 1), ''), pg_catalog.split_part(t, '.', 2)
FROM pg_catalog.unnest($1::pg_catalog.text[]) t WHERE pg_catalog.to_regclass(t) IS NULL LIMIT 1`

// checkTables says which table is gone, and what can be done: [ErrTableGone].
func checkTables(ctx context.Context, q Querier, side Side, version int64) error {
	var table, now, name string
	err := q.QueryRow(ctx, findGone, side.tablesAt(version)).Scan(&table, &now, &name)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look for the tables of side %s: %w", side, err)
	case now != "":
		cure := fmt.Sprintf("ALTER TABLE %s RENAME TO %s;", now, name)
		return fmt.Errorf("%w: %s is %s now. To mend it: %s", ErrTableGone, table, now, cure)
	}
	return fmt.Errorf("%w: %s is not there, though side %s is at version %d. If it was moved to another schema, move it back; else it was dropped "+
		"with what it held, which nobody can make again: restore the database from a backup", ErrTableGone, table, side, version)
}
