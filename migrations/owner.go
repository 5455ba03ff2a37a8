package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/pgconf"
)

// asOwner runs work with a Migrator whose sessions have become the owner of the
// schema, so that what is made belongs to that role and not to whoever logged
// in. Where the schema is not there yet, is the session's own, or belongs to a
// role of which the session is no member, the Migrator is m itself.
func (m *Migrator) asOwner(ctx context.Context, work func(*Migrator) error) error {
	owner, err := m.otherOwner(ctx)
	if err != nil {
		return err
	}
	if owner == "" {
		return work(m)
	}
	return m.with(ctx, func(params map[string]string) { params["role"] = owner }, work)
}

// pinned runs work with a Migrator in whose sessions names lead to PostgreSQL's
// own functions and operators, so that what is made is bound to those, whatever
// path the role or the database has set, and whatever lies in public.
func (m *Migrator) pinned(ctx context.Context, work func(*Migrator) error) error {
	return m.with(ctx, pgconf.Startup, work)
}

// with runs work with a Migrator whose sessions begin with more settings.
func (m *Migrator) with(ctx context.Context, set func(params map[string]string), work func(*Migrator) error) error {
	conf := m.cfg.Pool.Config()
	set(conf.ConnConfig.RuntimeParams)
	pool, err := pgxpool.NewWithConfig(ctx, conf)
	if err != nil {
		return fmt.Errorf("open connections: %w", err)
	}
	defer pool.Close()
	as := *m
	as.cfg.Pool = pool
	return work(&as)
}

// working is how Up and Down run: pinned, under the migration lock, as the owner.
func (m *Migrator) working(ctx context.Context, work func(context.Context, *Migrator) error) error {
	return m.pinned(ctx, func(m *Migrator) error {
		return m.locked(ctx, func(ctx context.Context) error {
			return m.asOwner(ctx, func(m *Migrator) error { return work(ctx, m) })
		})
	})
}

// otherOwner returns the schema's owner when it is another role that the session
// may become; otherwise "".
func (m *Migrator) otherOwner(ctx context.Context) (string, error) {
	const query = `SELECT pg_catalog.pg_get_userbyid(nspowner)::text FROM pg_catalog.pg_namespace
WHERE nspname = $1 AND pg_catalog.pg_get_userbyid(nspowner) <> CURRENT_USER AND pg_catalog.pg_has_role(nspowner, 'MEMBER')`
	var owner string
	err := m.cfg.Pool.QueryRow(ctx, query, schemaName).Scan(&owner)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look up the owner of schema %s: %w", schemaName, err)
	}
	return owner, nil
}

// sessionSQL puts in front of a plan what the sessions of Up and Down begin with.
func (m *Migrator) sessionSQL(ctx context.Context, plan []string) ([]string, error) {
	owner, err := m.otherOwner(ctx)
	if err != nil || len(plan) == 0 {
		return plan, err
	}
	first := []string{pinPath}
	if owner != "" {
		first = append(first, "SET ROLE "+pgx.Identifier{owner}.Sanitize())
	}
	return append(first, plan...), nil
}

// rightsSQL returns the statements that give the roles their rights on what a
// migration has made; none where the schema's owner is not one of [Roles].
func (m *Migrator) rightsSQL(ctx context.Context) ([]string, error) {
	const query = `SELECT pg_catalog.pg_get_userbyid(nspowner)::text FROM pg_catalog.pg_namespace WHERE nspname = $1`
	var owner string
	if err := m.cfg.Pool.QueryRow(ctx, query, schemaName).Scan(&owner); err != nil {
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, nil
		}
		return nil, fmt.Errorf("look up the owner of schema %s: %w", schemaName, err)
	}
	prefix, ok := strings.CutSuffix(owner, "_"+string(RoleOwner))
	if !ok {
		return nil, nil
	}
	roles, err := NewRoles(m.cfg.Side, prefix)
	if err != nil {
		return nil, nil //nolint:nilerr // a role of somebody else that happens to end so
	}
	var names []string
	for _, role := range roles.All() {
		names = append(names, roles.Name(role))
	}
	var found int
	if err := m.cfg.Pool.QueryRow(ctx, "SELECT pg_catalog.count(*) FROM pg_catalog.pg_roles WHERE rolname = ANY($1)", names).Scan(&found); err != nil {
		return nil, fmt.Errorf("look up roles: %w", err)
	}
	if found < len(names) {
		return nil, nil
	}
	return roles.rights(), nil
}
