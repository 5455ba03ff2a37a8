package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/internal/hostile"
	"github.com/onceward/onceward/internal/pgconf"
)

// pinPath leads every plan that is printed: it may be run by psql.
const pinPath = "SET search_path = " + pgconf.Path

// secureVersion is the migration whose text can be repeated: rules and functions.
const secureVersion = 5

// outboxRules are the CHECKs of onceward.outbox; docs/contract.md says what they want.
var outboxRules = []string{
	"outbox_namespace", "outbox_aggregate_type", "outbox_aggregate_id", "outbox_event_type",
	"outbox_content_type", "outbox_payload", "outbox_headers", "outbox_traceparent",
}

// refuseForeign runs before anything is changed. What Up makes anew is not
// refused here: rebuild has its turn after the migrations.
func (m *Migrator) refuseForeign(ctx context.Context) error {
	found, err := hostile.Foreign(ctx, m.cfg.Pool)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, hostile.Dependency.Rebuilt)
	return foreignError(found, hostile.Cure(found, string(m.cfg.Side)))
}

// rebuild makes anew what leans on a foreign function, and refuses what leans on
// one afterwards: that is not of our making.
func (m *Migrator) rebuild(ctx context.Context) error {
	found, err := hostile.Foreign(ctx, m.cfg.Pool)
	if err != nil || len(found) == 0 {
		return err
	}
	statements, err := m.cfg.Side.rebuildSQL()
	if err != nil {
		return err
	}
	if err := m.patient(ctx, func() error { return m.exec(ctx, statements) }); err != nil {
		return fmt.Errorf("rebuild what leans on foreign functions (%s): %w", hostile.List(found), explain(err))
	}
	if found, err = hostile.Foreign(ctx, m.cfg.Pool); err != nil {
		return err
	}
	return foreignError(found, "it was not made anew: where the other side is in this database too, run this command for that side; otherwise it is none of ours, drop it")
}

// foreignError is nil for none.
func foreignError(found []hostile.Dependency, cure string) error {
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("%w (%s): %s; %s", ErrHostileDependency, hostile.Code, hostile.List(found), cure)
}

// rebuildSQL returns the statements that bind everything of the side again.
func (s Side) rebuildSQL() ([]string, error) {
	text, err := files.ReadFile("rebuild/" + string(s) + ".sql")
	if err != nil {
		return nil, fmt.Errorf("embedded statements of side %s: %w", s, err)
	}
	out := []string{strings.TrimSpace(string(text))}
	if s != Outbox {
		return out, nil
	}
	all, err := s.steps()
	if err != nil {
		return nil, err
	}
	for _, step := range all {
		if step.version == secureVersion {
			out = append(out, step.up)
		}
	}
	return out, nil
}

// rulesSQL is what rebuild and validate would run now.
func (m *Migrator) rulesSQL(ctx context.Context, version int64) ([]string, error) {
	found, err := hostile.Foreign(ctx, m.cfg.Pool)
	if err != nil {
		return nil, err
	}
	var out []string
	if len(found) > 0 {
		if out, err = m.cfg.Side.rebuildSQL(); err != nil {
			return nil, err
		}
	}
	todo, err := m.unvalidated(ctx)
	if err != nil {
		return nil, err
	}
	if m.cfg.Side == Outbox && (version < secureVersion || len(found) > 0) {
		todo = outboxRules
	}
	if len(todo) > 0 {
		out = append(out, validateSQL(todo))
	}
	return out, nil
}

// patient repeats work that gave way to a lock, which it waits for briefly each
// time, because everybody else waits behind it.
func (m *Migrator) patient(ctx context.Context, work func() error) error {
	until := time.Now().Add(m.cfg.LockTimeout)
	for {
		err := work()
		if !hasCode(err, "55P03") { // lock_not_available
			return err
		}
		if time.Now().After(until) {
			return fmt.Errorf("%w; a transaction has held its lock for more than %s: end it, or try again when it has ended", err, m.cfg.LockTimeout)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond): // lets those through who waited behind us
		}
	}
}

// hasCode reports whether an error is PostgreSQL's, of this SQLSTATE.
func hasCode(err error, code string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == code
}

// validate has PostgreSQL look at the rows that were there before the rules of
// the outbox, all rules in one scan, which holds no writer back. It returns the
// rules that some row breaks: they hold for what is written from now on, and are
// tried again by each Up until the partitions of those rows have gone.
func (m *Migrator) validate(ctx context.Context) (broken []string, err error) {
	todo, err := m.unvalidated(ctx)
	if err != nil {
		return nil, err
	}
	for len(todo) > 0 {
		err := m.patient(ctx, func() error { return m.exec(ctx, []string{"SET LOCAL lock_timeout = '2s'", validateSQL(todo)}) })
		if err == nil {
			break
		}
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "23514" || !slices.Contains(todo, pg.ConstraintName) {
			return broken, fmt.Errorf("validate the rules of onceward.outbox: %w", explain(err))
		}
		broken = append(broken, pg.ConstraintName)
		todo = slices.DeleteFunc(todo, func(name string) bool { return name == pg.ConstraintName })
	}
	slices.Sort(broken)
	return broken, nil
}

// unvalidated returns the names of our rules that have not been validated.
func (m *Migrator) unvalidated(ctx context.Context) ([]string, error) {
	if m.cfg.Side != Outbox {
		return nil, nil
	}
	const query = `SELECT conname::text FROM pg_catalog.pg_constraint
WHERE conrelid = pg_catalog.to_regclass('onceward.outbox') AND conname = ANY ($1) AND NOT convalidated ORDER BY 1`
	rows, err := m.cfg.Pool.Query(ctx, query, outboxRules)
	if err != nil {
		return nil, fmt.Errorf("look for rules to validate: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for rules to validate: %w", err)
	}
	return names, nil
}

func validateSQL(rules []string) string {
	var parts []string
	for _, name := range rules {
		parts = append(parts, "VALIDATE CONSTRAINT "+pgx.Identifier{name}.Sanitize())
	}
	return "ALTER TABLE onceward.outbox " + strings.Join(parts, ", ")
}
