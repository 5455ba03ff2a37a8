package partition

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/outbox"
)

// MaxRest bounds of how many days one statement moves the rows of a DEFAULT partition,
// which locks them all.
const MaxRest = 400

// Keep says which rows [DefaultError.WithoutDefault] keeps.
type Keep struct {
	Column   string    // has the event id
	From     time.Time // those of earlier ids go with the DEFAULT partition
	Conflict string    // what follows ON CONFLICT, of a row whose key a day has, which is called there
}

// Cure is a statement, and as whom to run it.
type Cure struct {
	SQL, As string
	More    bool // it leaves the rows of later days where they are, for the next one
}

// WithoutDefault returns the statement that takes the DEFAULT partition out of its
// table and loses no row that is to be kept: it attaches the days that are detached and
// those that it has rows of, which are made where no table has their name (what can be
// none of them is renamed), and puts its rows there. It is one, so that no session does
// a part of it, and leaves the session the role that this has. leaves are those of [Leaves].
func (e *DefaultError) WithoutDefault(ctx context.Context, q Querier, leaves []Leaf, keep Keep) (Cure, error) {
	table := e.Table
	days, until, err := e.days(ctx, q, leaves, keep)
	if err != nil {
		return Cure{}, fmt.Errorf("look of which days %s has rows: %w", e.Partition, err)
	}
	whose, columns, err := e.whoseAndColumns(ctx, q)
	if err != nil {
		return Cure{}, fmt.Errorf("look whose %s is: %w", table, err)
	}
	others, err := relations(ctx, q, table, days)
	if err != nil {
		return Cure{}, err
	}
	cure := Cure{As: whose.As(), More: until != uuid.Max}
	theirs := func(w Whose) {
		if w.Owner != w.TableOwner {
			cure.As = w.As()
		}
	}
	parent := quote(table)
	first, then := []string{"SET LOCAL lock_timeout = '2s'", fmt.Sprintf("ALTER TABLE %s DETACH PARTITION %s", parent, e.Partition)}, []string{"SET LOCAL ROLE " + whose.TableOwner}
	for _, l := range leaves {
		if l.Attached && !l.Pending || !l.To().After(keep.From) || compare(l.Lower, until) >= 0 {
			continue
		}
		theirs(l.Whose)
		first, then = append(first, l.Give(table)...), append(then, l.putBack(table)...)
	}
	for _, day := range days {
		if slices.ContainsFunc(leaves, func(l Leaf) bool { return l.Name == day.Name }) {
			continue
		}
		if i := slices.IndexFunc(others, day.isNameOf); i >= 0 {
			theirs(others[i].Whose)
			first = append(first, others[i].rename(table, others))
		}
		then = append(then, fmt.Sprintf("CREATE TABLE %s PARTITION OF %s FOR VALUES FROM ('%s') TO ('%s')", Sibling(table, day.Name), parent, day.Lower, day.Upper))
	}
	id := pgx.Identifier{keep.Column}.Sanitize()
	below, end := "", []string{"DROP TABLE " + e.Partition}
	if cure.More {
		below = fmt.Sprintf("%s OPERATOR(pg_catalog.<) '%s'", id, until)
		end = []string{fmt.Sprintf("DELETE FROM %s WHERE %s", e.Partition, below), fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s DEFAULT", parent, e.Partition)}
		below = " AND " + below
	}
	then = append(then, "PERFORM pg_catalog.set_config('role', role_before, true)",
		fmt.Sprintf("INSERT INTO %s AS there (%s) SELECT %s FROM %s WHERE %s OPERATOR(pg_catalog.>=) '%s'%s ON CONFLICT %s",
			parent, columns, columns, e.Partition, id, firstID(keep.From), below, keep.Conflict))
	then = append(then, end...)
	cure.SQL = doBlock(strings.Join(append(first, then...), "; "))
	return cure, nil
}

// doBlock is one statement of several, whatever these quote.
func doBlock(body string) string {
	tag := "$onceward$"
	for strings.Contains(body, tag) {
		tag = "$onceward_" + tag[len("$onceward"):]
	}
	return fmt.Sprintf("DO %s DECLARE role_before pg_catalog.text := pg_catalog.current_setting('role'); BEGIN %s; END %s", tag, body, tag)
}

// whoseAndColumns returns whose the DEFAULT partition and its table are, and the columns
// of this, quoted for SQL.
func (e *DefaultError) whoseAndColumns(ctx context.Context, q Querier) (whose Whose, columns string, err error) {
	rows, err := q.Query(ctx, "SELECT pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(r.relowner)), pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(c.relowner)), "+
		"pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ' ORDER BY a.attnum) "+
		"FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped "+
		"JOIN pg_catalog.pg_class r ON r.oid OPERATOR(pg_catalog.=) $2::pg_catalog.regclass "+
		"WHERE c.oid OPERATOR(pg_catalog.=) $1::pg_catalog.regclass GROUP BY c.relowner, r.relowner", quote(e.Table), e.Partition)
	if err != nil {
		return whose, "", err
	}
	_, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (struct{}, error) {
		return struct{}{}, row.Scan(&whose.Owner, &whose.TableOwner, &columns)
	})
	return whose, columns, err
}

// days goes from day to day of what no leaf takes, by an index, and says below which id
// these are: the last of all, or the end of [MaxRest] days.
func (e *DefaultError) days(ctx context.Context, q Querier, leaves []Leaf, keep Keep) (days []Partition,
	until uuid.UUID, err error) {
	_, name, err := splitTable(e.Table)
	if err != nil {
		return nil, until, err
	}
	id := pgx.Identifier{keep.Column}.Sanitize()
	query := fmt.Sprintf("SELECT %[1]s FROM %[2]s WHERE %[1]s OPERATOR(pg_catalog.>=) $1 AND %[1]s OPERATOR(pg_catalog.<) $2 ORDER BY %[1]s LIMIT 1", id, quote(e.Table))
	at := firstID(keep.From)
	for len(days) < MaxRest {
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
			return nil, until, err
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		switch {
		case err != nil:
			return nil, until, err
		case len(found) > 0:
			day := OfDay(name, outbox.IDTime(found[0]))
			days, at = append(days, day), day.Upper
		case end == uuid.Max:
			return days, uuid.Max, nil
		default:
			at = end
		}
	}
	return days, at, nil
}

// firstID is [outbox.FirstID], also of a time before all ids.
func firstID(t time.Time) uuid.UUID {
	if t.UnixMilli() < 0 {
		return uuid.Nil
	}
	return outbox.FirstID(t)
}
