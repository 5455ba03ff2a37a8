package migrations

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/onceward/onceward/internal/partition"
)

// up runs under the migration lock.
func (m *Migrator) up(ctx context.Context) (res Result, err error) {
	if err := refuseServer(ctx, m.cfg.Pool); err != nil {
		return res, err
	}
	if res.From, err = m.current(ctx); err != nil {
		return res, err
	}
	res.To = res.From
	again, err := m.tablesAgain(ctx, res.From)
	if err != nil {
		return res, err
	}
	if err := m.refuseForeign(ctx); err != nil {
		return res, err
	}
	statements, err := m.schemaSQL(ctx)
	if err != nil {
		return res, err
	}
	if err := m.exec(ctx, append(statements, again...)); err != nil {
		return res, fmt.Errorf("make schema %s: %w", schemaName, explain(err))
	}
	if res.To, err = m.goose(ctx, func(ctx context.Context, p *goose.Provider) error {
		return m.patient(ctx, func() error {
			_, err := p.Up(ctx)
			return err
		})
	}); err != nil {
		return res, err
	}
	if err := m.rebuild(ctx); err != nil {
		return res, err
	}
	if res.NotValid, err = m.validate(ctx); err != nil {
		return res, err
	}
	var taken error // a day that cannot be made keeps nothing else from being done
	if res.Partitions, taken = m.makePartitions(ctx); taken != nil && !errors.Is(taken, partition.ErrTaken) {
		return res, taken
	}
	if res.Publication, err = m.makePublication(ctx); err != nil {
		return res, err
	}
	return res, errors.Join(m.giveRights(ctx), taken)
}

// giveRights runs in every Up: one that was interrupted after the migrations gave
// none, and the next finds no migration to run.
func (m *Migrator) giveRights(ctx context.Context) error {
	rights, err := m.rightsSQL(ctx)
	if err != nil || len(rights) == 0 {
		return err
	}
	if err := m.patient(ctx, func() error { return m.exec(ctx, rights) }); err != nil {
		return fmt.Errorf("give the roles their rights: %w", explain(err))
	}
	return nil
}

// upSQL mirrors up, statement by statement.
func (m *Migrator) upSQL(ctx context.Context) ([]string, error) {
	if err := refuseServer(ctx, m.cfg.Pool); err != nil {
		return nil, err
	}
	version, err := m.current(ctx)
	if err != nil {
		return nil, err
	}
	again, err := m.tablesAgain(ctx, version)
	if err != nil {
		return nil, err
	}
	out, err := m.versionedSQL(ctx, version)
	if err != nil {
		return nil, err
	}
	out = append(out, again...)
	rules, err := m.rulesSQL(ctx, version)
	if err != nil {
		return nil, err
	}
	out = append(out, rules...)
	table, column := m.cfg.Side.partitioned()
	days, err := m.days(ctx)
	if err != nil {
		return nil, err
	}
	partitions, err := partition.Plan(ctx, m.cfg.Pool, table, column, days)
	if err != nil {
		return nil, err
	}
	publication, err := m.publicationSQL(ctx)
	if err != nil {
		return nil, err
	}
	out = append(append(out, partitions...), publication...)
	if len(out) > 0 { // the rights alone are no plan: nothing to do stays empty
		rights, err := m.rightsSQL(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, rights...)
	}
	return m.sessionSQL(ctx, out)
}

// versionedSQL returns what is missing of the schema and of the migrations.
func (m *Migrator) versionedSQL(ctx context.Context, version int64) ([]string, error) {
	out, err := m.schemaSQL(ctx)
	if err != nil {
		return nil, err
	}
	all, err := m.cfg.Side.steps()
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if s.version > version {
			out = append(out, fmt.Sprintf("-- %s, recorded in %s\n%s", s.name, m.cfg.Side.versionTable(), s.up))
		}
	}
	return out, nil
}

// tablesAgain returns what makes the tables again that may be.
func (m *Migrator) tablesAgain(ctx context.Context, version int64) ([]string, error) {
	tables, err := checkTables(ctx, m.cfg.Pool, m.cfg.Side, version)
	if err != nil {
		return nil, err
	}
	return m.cfg.Side.remakeSQL(tables)
}

// schemaSQL returns what is missing of the schema. It asks first, because
// CREATE SCHEMA IF NOT EXISTS wants the right to create even where the schema
// is there.
func (m *Migrator) schemaSQL(ctx context.Context) ([]string, error) {
	exists, _, err := m.schema(ctx)
	if err != nil || exists {
		return nil, err
	}
	return []string{
		"CREATE SCHEMA IF NOT EXISTS " + schemaName,
		fmt.Sprintf("COMMENT ON SCHEMA %s IS '%s'", schemaName, madeByUs),
	}, nil
}

// schema tells whether the schema exists and whether Up made it.
func (m *Migrator) schema(ctx context.Context) (exists, ours bool, err error) {
	const query = `SELECT COALESCE(pg_catalog.obj_description(oid, 'pg_namespace') = $2, false)
FROM pg_catalog.pg_namespace WHERE nspname = $1`
	err = m.cfg.Pool.QueryRow(ctx, query, schemaName, madeByUs).Scan(&ours)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, false, nil
	}
	if err != nil {
		return false, false, fmt.Errorf("look for schema %s: %w", schemaName, err)
	}
	return true, ours, nil
}

// goose runs work with a provider over the pool and returns the version that
// is recorded afterwards, whether work failed or not.
func (m *Migrator) goose(ctx context.Context, work func(context.Context, *goose.Provider) error) (int64, error) {
	sub, err := fs.Sub(files, string(m.cfg.Side))
	if err != nil {
		return 0, fmt.Errorf("embedded migrations of side %s: %w", m.cfg.Side, err)
	}
	db := stdlib.OpenDBFromPool(m.cfg.Pool)
	defer db.Close() //nolint:errcheck // closes the wrapper, not the pool
	provider, err := goose.NewProvider(goose.DialectPostgres, db, sub,
		goose.WithTableName(m.cfg.Side.versionTable()), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return 0, fmt.Errorf("read embedded migrations: %w", err)
	}
	failed := work(ctx, provider)
	version, _, err := versions(ctx, m.cfg.Pool, m.cfg.Side)
	if failed != nil {
		return version, explain(failed)
	}
	return version, err
}

// makePartitions returns the names of those it made.
func (m *Migrator) makePartitions(ctx context.Context) ([]string, error) {
	table, column := m.cfg.Side.partitioned()
	days, err := m.days(ctx)
	if err != nil {
		return nil, err
	}
	return partition.Ensure(ctx, m.cfg.Pool, table, column, days)
}

// days is the span without what retention of claims has dropped: a day that an
// operator keeps may be left below it.
func (m *Migrator) days(ctx context.Context) (partition.Span, error) {
	span := m.span()
	if m.cfg.Side != Consumer {
		return span, nil
	}
	var known bool
	if err := m.cfg.Pool.QueryRow(ctx, "SELECT pg_catalog.to_regclass($1) IS NOT NULL", laterTables[0]).Scan(&known); err != nil || !known {
		return span, err
	}
	var horizon *time.Time
	if err := m.cfg.Pool.QueryRow(ctx, "SELECT pg_catalog.max(dropped_before) FROM "+laterTables[0]).Scan(&horizon); err != nil {
		return span, fmt.Errorf("read the horizon: %w", err)
	}
	if horizon != nil && horizon.After(span.First) {
		span.First = *horizon
	}
	return span, nil
}

// span is the days that Up wants. What retention dropped must stay gone, because an empty
// partition there would take a copy for new.
func (m *Migrator) span() partition.Span {
	today := partition.Day(m.cfg.Now())
	span := partition.Span{First: today.AddDate(0, 0, -daysBack), Last: today.AddDate(0, 0, daysAhead), Today: today}
	if m.cfg.Side == Consumer { // which knows what was dropped
		span.Last, span.Today = today.AddDate(0, 0, claimsDaysAhead), time.Time{}
	}
	return span
}

// exec runs statements in one transaction.
func (m *Migrator) exec(ctx context.Context, statements []string) error {
	return pgx.BeginFunc(ctx, m.cfg.Pool, func(tx pgx.Tx) error {
		for _, sql := range statements {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}

// explain adds the way out to failures that have one.
func explain(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case "42501": // insufficient_privilege
		return fmt.Errorf("%w; run it as the owner of schema %s, who needs CREATE on the database", err, schemaName)
	case "42P07": // duplicate_table
		return fmt.Errorf("%w; the version table does not say that Onceward made it: if it is a leftover of yours, rename or drop it", err)
	case "2BP01": // dependent_objects_still_exist
		return fmt.Errorf("%w (%s); drop what depends on it first", err, pg.Detail)
	}
	return err
}
