package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
)

// down runs under the migration lock. Tables go first and publications after
// them, so that a refusal by PostgreSQL leaves both as they were.
func (m *Migrator) down(ctx context.Context) (res Result, err error) {
	if res.From, err = m.current(ctx); err != nil {
		return res, err
	}
	drop, keep, err := m.removable(ctx, res.From)
	if err != nil {
		return res, err
	}
	res.Kept = keep
	if res.From > 0 {
		if res.To, err = m.goose(ctx, func(ctx context.Context, p *goose.Provider) error {
			_, err := p.DownTo(ctx, 0)
			return err
		}); err != nil {
			return res, err
		}
	}
	for _, name := range drop {
		if err := m.exec(ctx, []string{dropPublication(name)}); err != nil {
			return res, fmt.Errorf("drop publication %s: %w", name, explain(err))
		}
		res.Dropped = append(res.Dropped, "publication "+name)
	}
	if err := m.exec(ctx, []string{m.dropVersions()}); err != nil {
		return res, fmt.Errorf("drop %s: %w", m.cfg.Side.versionTable(), explain(err))
	}
	return res, m.dropSchema(ctx, &res)
}

// downSQL mirrors down, statement by statement.
func (m *Migrator) downSQL(ctx context.Context) ([]string, error) {
	version, err := m.current(ctx)
	if err != nil {
		return nil, err
	}
	drop, _, err := m.removable(ctx, version)
	if err != nil {
		return nil, err
	}
	all, err := m.cfg.Side.steps()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, step := range slices.Backward(all) {
		if step.version <= version {
			out = append(out, fmt.Sprintf("-- %s\n%s", step.name, step.down))
		}
	}
	for _, name := range drop {
		out = append(out, dropPublication(name))
	}
	out = append(out, m.dropVersions())
	if _, ours, err := m.schema(ctx); err != nil {
		return nil, err
	} else if ours {
		out = append(out, "-- only when nothing else is left in it\nDROP SCHEMA "+schemaName)
	}
	return m.sessionSQL(ctx, out)
}

// removable returns the publications that go and those that stay with the
// reason. It refuses while a relay has a slot: without its tables the slot
// would keep WAL for ever and nobody could tell for whom.
func (m *Migrator) removable(ctx context.Context, version int64) (drop, keep []string, err error) {
	if m.cfg.Side != Outbox {
		return nil, nil, nil
	}
	if version > 0 {
		if err := m.refuseSlots(ctx); err != nil {
			return nil, nil, err
		}
	}
	made, err := publications(ctx, m.cfg.Pool, "")
	if err != nil {
		return nil, nil, err
	}
	drop, keep = droppable(made)
	return drop, keep, nil
}

func (m *Migrator) refuseSlots(ctx context.Context) error {
	const query = `SELECT s.slot_name::text FROM pg_catalog.pg_replication_slots s
JOIN onceward.relay_state r ON r.slot = s.slot_name WHERE s.database = pg_catalog.current_database() ORDER BY 1`
	rows, err := m.cfg.Pool.Query(ctx, query)
	if err != nil {
		return fmt.Errorf("look for slots: %w", err)
	}
	slots, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look for slots: %w", err)
	}
	if len(slots) == 0 {
		return nil
	}
	var drops []string
	for _, s := range slots {
		drops = append(drops, fmt.Sprintf("SELECT pg_catalog.pg_drop_replication_slot('%s');", s))
	}
	return fmt.Errorf("%w: %s; stop the relay, then run: %s", ErrSlotExists, strings.Join(slots, ", "), strings.Join(drops, " "))
}

// dropSchema drops the schema when Up made it and nothing is left in it.
func (m *Migrator) dropSchema(ctx context.Context, res *Result) error {
	exists, ours, err := m.schema(ctx)
	if err != nil || !exists {
		return err
	}
	if !ours {
		res.Kept = append(res.Kept, "schema "+schemaName+": it was there before migrate up")
		return nil
	}
	err = m.exec(ctx, []string{"DROP SCHEMA " + schemaName})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "2BP01" { // dependent_objects_still_exist
		res.Kept = append(res.Kept, "schema "+schemaName+": not empty")
		return nil
	}
	if err != nil {
		return fmt.Errorf("drop schema %s: %w", schemaName, explain(err))
	}
	res.Dropped = append(res.Dropped, "schema "+schemaName)
	return nil
}

func (m *Migrator) dropVersions() string { return "DROP TABLE IF EXISTS " + m.cfg.Side.versionTable() }

func dropPublication(name string) string {
	return "DROP PUBLICATION " + pgx.Identifier{name}.Sanitize()
}
