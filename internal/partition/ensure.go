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
)

// Conn is what [Ensure] needs: a connection, a pool or a transaction of pgx.
type Conn interface {
	Querier
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Ensure makes the daily partitions of "schema.table" for the UTC days from
// the one of first to the one of last, both included, and returns the names of
// those that were missing. The table must be partitioned by RANGE over one uuid
// column of the given name; the caller must own it.
//
// Days below the oldest partition, or where the span says Today those before it that are
// below the newest, are left out unless it says Reopen: they may have been dropped, and an
// empty partition there would take a copy for new.
//
// It blocks while another session maintains partitions of the same table. The
// error matches [ErrDefault] or [ErrOverlap] where one of these is the cause, and
// then nothing was made. A day whose name is taken keeps no other from being made:
// the error is a [TakenError] then, beside the names of those that were made.
func Ensure(ctx context.Context, conn Conn, table, column string, days Span) ([]string, error) {
	todo, err := Missing(ctx, conn, table, days)
	if len(todo) == 0 || err != nil && !errors.Is(err, ErrTaken) {
		return nil, err
	}
	var made []string
	var taken *TakenError
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
		made, taken, err = attachMissing(ctx, tx, table, column, days)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make partitions of %s: %w", table, ensureError(err))
	}
	if taken != nil {
		return made, fmt.Errorf("make partitions of %s: %w", table, taken)
	}
	return made, nil
}

// Span is a run of UTC days, both ends included. Only the day of each counts.
type Span struct {
	First, Last time.Time
	// Today is where what is kept for longer than the rest may stand below days that were
	// dropped: of the days before it only those above the newest partition are included. Zero:
	// those above the oldest are.
	Today time.Time
	// Reopen includes all.
	Reopen bool
}

// floor is the first day that may be made anew, where there are partitions.
func (s Span) floor(oldest, newest time.Time) time.Time {
	today := Day(s.Today)
	switch {
	case s.Today.IsZero() || today.Before(oldest):
		return oldest
	case newest.Before(today):
		return newest
	}
	return today
}

// Missing returns what [Ensure] would make of "schema.table" where the given
// partitions exist. It is pure.
func (s Span) Missing(table string, existing []Partition) ([]Partition, error) {
	_, name, err := splitTable(table)
	if err != nil {
		return nil, err
	}
	if oldest, newest, ok := Extent(existing); ok && !s.Reopen {
		if floor := s.floor(oldest, newest); floor.After(s.First) {
			s.First = floor
		}
	}
	todo, err := missing(existing, Days(name, s.First, s.Last))
	if err != nil {
		return nil, fmt.Errorf("partitions of %s: %w", table, err)
	}
	return todo, nil
}

// Missing names the partitions that [Ensure] would make of "schema.table" now,
// oldest first, beside a [TakenError] where it could not make all. It needs no
// right on the table.
func Missing(ctx context.Context, q Querier, table string, days Span) ([]string, error) {
	todo, taken, err := lacking(ctx, q, table, days)
	var names []string
	for _, p := range todo {
		names = append(names, p.Name)
	}
	if err == nil && taken != nil {
		err = taken
	}
	return names, err
}

// Plan returns the statements that [Ensure] would run now, and as a comment what
// keeps it from making all.
func Plan(ctx context.Context, q Querier, table, column string, days Span) ([]string, error) {
	todo, taken, err := lacking(ctx, q, table, days)
	if err != nil {
		return nil, err
	}
	out := statements(table, column, todo)
	if taken != nil {
		out = append(out, "-- "+taken.Error())
	}
	return out, nil
}

// statements is pure.
func statements(table, column string, todo []Partition) (out []string) {
	if len(todo) == 0 {
		return nil
	}
	out = []string{lockTable(table)}
	for _, p := range todo {
		out = append(out, attach(table, column, p)...)
	}
	return out
}

// lacking returns the partitions that are missing and can be made, and which of the
// others cannot: among those that would not be made anew too, of which one may have
// been detached.
func lacking(ctx context.Context, q Querier, table string, days Span) ([]Partition, *TakenError, error) {
	existing, err := List(ctx, q, table)
	if err != nil {
		return nil, nil, err
	}
	todo, err := days.Missing(table, existing)
	if err != nil {
		return nil, nil, err
	}
	days.Today = time.Time{}
	all, err := days.Missing(table, existing)
	if err != nil {
		return nil, nil, err
	}
	can, taken, err := free(ctx, q, table, existing, all)
	return slices.DeleteFunc(can, func(p Partition) bool { return !slices.Contains(todo, p) }), taken, err
}

// attachMissing looks again under the lock that attaching takes anyway: it
// excludes every other maintainer, and no reader or writer.
func attachMissing(ctx context.Context, tx pgx.Tx, table, column string, days Span) (made []string, taken *TakenError,
	err error) {
	if _, err := tx.Exec(ctx, lockTable(table)); err != nil {
		return nil, nil, err
	}
	todo, taken, err := lacking(ctx, tx, table, days)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range todo {
		for _, sql := range attach(table, column, p) {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", p.Name, err)
			}
		}
		made = append(made, p.Name)
	}
	return made, taken, nil
}

// lockTable locks the table and not its partitions: ONLY keeps an autovacuum of
// one of them out of the way.
func lockTable(table string) string {
	return "LOCK TABLE ONLY " + quote(table) + " IN SHARE UPDATE EXCLUSIVE MODE"
}

// attach returns the statements for one partition, in order. The new table has
// no identity of its own: PostgreSQL 17 and later refuse to attach one that
// has, and the identity of the parent fills the column on all versions. Keys
// and indexes come with attaching. The CHECK spares the scan that would
// otherwise hold the parent's lock. The partition belongs to the owner of its
// table, whoever makes it, so that any member of that role can drop it later.
func attach(table, column string, p Partition) []string {
	parent, child := quote(table), Sibling(table, p.Name)
	id := pgx.Identifier{column}.Sanitize()
	check := pgx.Identifier{p.Name + "_range"}.Sanitize()
	return []string{
		fmt.Sprintf("CREATE TABLE %s (LIKE %s INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE INCLUDING COMPRESSION, CONSTRAINT %s CHECK (%s OPERATOR(pg_catalog.>=) '%s' AND %s OPERATOR(pg_catalog.<) '%s'))",
			child, parent, check, id, p.Lower, id, p.Upper),
		fmt.Sprintf("DO $onceward$ BEGIN EXECUTE (SELECT pg_catalog.format('ALTER TABLE %%s OWNER TO %%I', '%s', pg_catalog.pg_get_userbyid(relowner)) FROM pg_catalog.pg_class WHERE oid OPERATOR(pg_catalog.=) '%s'::pg_catalog.regclass); END $onceward$",
			literal(child), literal(parent)),
		p.Attach(table),
		fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s", child, check),
	}
}

// literal is the text inside single quotes.
func literal(text string) string { return strings.ReplaceAll(text, "'", "''") }

func quote(table string) string {
	schema, name, _ := splitTable(table)
	return pgx.Identifier{schema, name}.Sanitize()
}

func ensureError(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case "42P07": // duplicate_table
		return fmt.Errorf("%w, by a table that was made meanwhile: %w", ErrTaken, err)
	case "42501": // insufficient_privilege
		return fmt.Errorf("%w; partitions are made by the owner of the table or a member of it", err)
	}
	return err
}
