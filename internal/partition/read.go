package partition

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Querier is what [List] needs: a connection, a pool or a transaction of pgx.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// A detached-pending partition is listed too: its rows and its range are still
// there.
const selectPartitions = `SELECT CASE WHEN b.bound OPERATOR(pg_catalog.=) 'DEFAULT' THEN pg_catalog.format('%I.%I', cn.nspname, c.relname) ELSE c.relname::pg_catalog.text END,
  b.bound
FROM pg_catalog.pg_inherits i
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.inhrelid
JOIN pg_catalog.pg_namespace cn ON cn.oid OPERATOR(pg_catalog.=) c.relnamespace
CROSS JOIN LATERAL (SELECT pg_catalog.pg_get_expr(c.relpartbound, c.oid) AS bound) b
JOIN pg_catalog.pg_class p ON p.oid OPERATOR(pg_catalog.=) i.inhparent
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.relnamespace
WHERE n.nspname OPERATOR(pg_catalog.=) $1 AND p.relname OPERATOR(pg_catalog.=) $2
ORDER BY c.relname`

// List returns the partitions of "schema.table" by name. It needs no right on
// the table. A table that does not exist has none. Of a table that has a DEFAULT
// partition it returns the others with a [DefaultError].
func List(ctx context.Context, q Querier, table string) ([]Partition, error) {
	schema, name, err := splitTable(table)
	if err != nil {
		return nil, err
	}
	rows, err := q.Query(ctx, selectPartitions, schema, name)
	if err != nil {
		return nil, fmt.Errorf("list partitions of %s: %w", table, err)
	}
	var child, bound string
	var out []Partition
	var unwanted error
	_, err = pgx.ForEachRow(rows, []any{&child, &bound}, func() error {
		p, err := parseBound(table, child, bound)
		if errors.Is(err, ErrDefault) {
			unwanted = err
			return nil
		}
		out = append(out, p)
		return err
	})
	if err == nil && unwanted != nil {
		return out, fmt.Errorf("list partitions of %s: %w", table, unwanted)
	}
	if err != nil {
		return nil, fmt.Errorf("list partitions of %s: %w", table, err)
	}
	return out, nil
}

// bounds is PostgreSQL's own wording of a range over one column.
var bounds = regexp.MustCompile(`^FOR VALUES FROM \((MINVALUE|'[0-9a-f-]{36}')\) TO \((MAXVALUE|'[0-9a-f-]{36}')\)$`)

// parseBound reads what pg_get_expr says of a partition's bound.
func parseBound(table, name, bound string) (Partition, error) {
	if bound == "DEFAULT" {
		return Partition{}, &DefaultError{Table: table, Partition: name}
	}
	m := bounds.FindStringSubmatch(bound)
	if m == nil {
		return Partition{}, fmt.Errorf("partition %s: bound %q is not a range over one uuid", name, bound)
	}
	p := Partition{Name: name}
	if m[1] != "MINVALUE" {
		p.Lower = uuid.MustParse(m[1][1 : len(m[1])-1])
	}
	if m[2] == "MAXVALUE" {
		// Off by the one id that no clock can make.
		for i := range p.Upper {
			p.Upper[i] = 0xff
		}
		return p, nil
	}
	p.Upper = uuid.MustParse(m[2][1 : len(m[2])-1])
	return p, nil
}
