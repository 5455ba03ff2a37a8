package partition

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/outbox"
)

// maxRest bounds of how many days a DEFAULT partition may have rows that are to be
// moved.
const maxRest = 400

// WithoutDefault returns the statements, one transaction, that take the DEFAULT
// partition out of its table and lose no row of from or later: they attach the
// days that are detached and those that it has rows of, which are made where no table
// has their name, and put its rows there. Who owns both tables may run them. leaves are
// those of [Leaves]; the column has the event id.
func (e *DefaultError) WithoutDefault(ctx context.Context, q Querier, column string, leaves []Leaf, from time.Time) ([]string, error) {
	table := e.Table
	days, err := e.days(ctx, q, column, leaves, from)
	if err != nil {
		return nil, fmt.Errorf("look of which days %s has rows: %w", e.Partition, err)
	}
	rows, err := q.Query(ctx, "SELECT pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(relowner)) FROM pg_catalog.pg_class "+
		"WHERE oid OPERATOR(pg_catalog.=) $1::pg_catalog.regclass", quote(table))
	if err != nil {
		return nil, fmt.Errorf("look whose %s is: %w", table, err)
	}
	owner, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look whose %s is: %w", table, err)
	}
	parent := quote(table)
	out := []string{"BEGIN", fmt.Sprintf("ALTER TABLE %s DETACH PARTITION %s", parent, e.Partition), "SET LOCAL ROLE " + owner}
	for _, l := range leaves {
		if l.Attached && !l.Pending || !l.To().After(from) {
			continue
		}
		out = append(out, l.Reattach(table)...)
	}
	for _, day := range days {
		if !slices.ContainsFunc(leaves, func(l Leaf) bool { return l.Name == day.Name }) {
			out = append(out, fmt.Sprintf("CREATE TABLE %s PARTITION OF %s FOR VALUES FROM ('%s') TO ('%s')", Sibling(table, day.Name), parent, day.Lower, day.Upper))
		}
	}
	return append(out, "RESET ROLE",
		fmt.Sprintf("INSERT INTO %s SELECT * FROM %s WHERE %s OPERATOR(pg_catalog.>=) '%s' ON CONFLICT DO NOTHING", parent, e.Partition, pgx.Identifier{column}.Sanitize(), firstID(from)),
		"DROP TABLE "+e.Partition, "COMMIT"), nil
}

// days goes from day to day of what no leaf takes, by an index.
func (e *DefaultError) days(ctx context.Context, q Querier, column string, leaves []Leaf, from time.Time) (days []Partition, err error) {
	_, name, err := splitTable(e.Table)
	if err != nil {
		return nil, err
	}
	id := pgx.Identifier{column}.Sanitize()
	query := fmt.Sprintf("SELECT %[1]s FROM %[2]s WHERE %[1]s OPERATOR(pg_catalog.>=) $1 AND %[1]s OPERATOR(pg_catalog.<) $2 ORDER BY %[1]s LIMIT 1", id, quote(e.Table))
	at := firstID(from)
	for len(days) < maxRest {
		end := uuid.Max
		taken := false
		for _, l := range leaves {
			if !l.Attached || l.Pending || compare(l.Upper, at) <= 0 {
				continue
			}
			if compare(l.Lower, at) <= 0 {
				at, taken = l.Upper, true
			} else if compare(l.Lower, end) < 0 {
				end = l.Lower
			}
		}
		if taken {
			continue
		}
		rows, err := q.Query(ctx, query, at, end)
		if err != nil {
			return nil, err
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		switch {
		case err != nil:
			return nil, err
		case len(found) > 0:
			day := OfDay(name, outbox.IDTime(found[0]))
			days, at = append(days, day), day.Upper
		case end == uuid.Max:
			return days, nil
		default:
			at = end
		}
	}
	return nil, fmt.Errorf("it has rows of more than %d days", maxRest)
}

// firstID is [outbox.FirstID], also of a time before all ids.
func firstID(t time.Time) uuid.UUID {
	if t.UnixMilli() < 0 {
		return uuid.Nil
	}
	return outbox.FirstID(t)
}
