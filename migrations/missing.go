package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"

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
	later := []addition{{4, []string{resultsTable}}, {6, []string{healthTable}}, {7, gapTables}, {10, waitingTables},
		{11, []string{kafkaTable}}}
	if s == Consumer {
		later = []addition{{2, laterTables}, {4, []string{aheadTable}}, {7, []string{parkedTable}}}
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

// remade are the tables of which Up makes one that was dropped again, by the version
// that made it first: the relays write anew what they hold.
var remade = map[string]int64{healthTable: 6, kafkaTable: 11}

// checkTables says which table is gone, and what can be done: [ErrTableGone]. It
// returns those that Up makes again.
func checkTables(ctx context.Context, q Querier, side Side, version int64) (again []string, err error) {
	var others []string
	for _, t := range side.tablesAt(version) {
		if remade[t] == 0 {
			others = append(others, t)
			continue
		}
		dropped, err := side.findGone(ctx, q, []string{t}, version)
		if dropped {
			again = append(again, t)
		} else if err != nil {
			return nil, err
		}
	}
	_, err = side.findGone(ctx, q, others, version)
	return again, err
}

// findGone says of the first table that is gone whether it was dropped, and what can
// be done.
func (s Side) findGone(ctx context.Context, q Querier, tables []string, version int64) (dropped bool, err error) {
	var table, now, name string
	err = q.QueryRow(ctx, findGone, tables).Scan(&table, &now, &name)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for the tables of side %s: %w", s, err)
	case now != "":
		cure := fmt.Sprintf("ALTER TABLE %s RENAME TO %s;", now, name)
		return false, fmt.Errorf("%w: %s is %s now. To mend it: %s", ErrTableGone, table, now, cure)
	}
	return true, fmt.Errorf("%w: %s is not there, though side %s is at version %d. If it was moved to another schema, move it back; else it was dropped "+
		"with what it held, which nobody can make again: restore the database from a backup", ErrTableGone, table, s, version)
}

// remakeWords say of tables that they are made again.
func remakeWords(tables []string) string {
	return fmt.Sprintf("%v: %s. The relays write anew what it held: `outboxctl migrate up --side outbox` makes it again", ErrTableGone, strings.Join(tables, ", "))
}

// remakeSQL returns the statements that make tables again.
func (s Side) remakeSQL(tables []string) (statements []string, err error) {
	all, err := s.steps()
	for _, table := range tables {
		for _, step := range all {
			if step.version == remade[table] {
				_, from, _ := strings.Cut(step.up, "CREATE TABLE "+table+" (")
				body, _, _ := strings.Cut(from, "\n);")
				statements = append(statements, "CREATE TABLE "+table+" ("+body+"\n)")
			}
		}
	}
	return statements, err
}
