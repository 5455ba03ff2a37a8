package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Querier is what [Check] needs: a connection, a pool or a transaction of pgx.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Check tells whether the side's schema is that of this release, on which alone
// its relay runs. Otherwise the error matches [ErrNewerSchema] or [ErrOlderSchema] and says what to run.
// It needs SELECT on the side's version table.
func Check(ctx context.Context, q Querier, side Side) error {
	version, latest, err := versions(ctx, q, side)
	if err != nil {
		return err
	}
	if version > latest {
		return newerSchema(side, version, latest)
	}
	if version < latest {
		return fmt.Errorf("%w: side %s is at version %d, this binary needs %d; run `outboxctl migrate up --side %s`",
			ErrOlderSchema, side, version, latest, side)
	}
	return nil
}

// Newer is the error, which matches [ErrNewerSchema], of a schema that this binary does not
// know; nil: it is none.
func Newer(st Status) error {
	if st.Version <= st.Latest {
		return nil
	}
	return newerSchema(st.Side, st.Version, st.Latest)
}

func newerSchema(side Side, version, latest int64) error {
	return fmt.Errorf("%w: side %s is at version %d, this binary knows up to %d; upgrade this binary to the release that migrated the database, or later",
		ErrNewerSchema, side, version, latest)
}

// versions returns the version in the database, 0 when nothing is installed,
// and the newest that this binary knows.
func versions(ctx context.Context, q Querier, side Side) (version, latest int64, err error) {
	if latest, err = side.Latest(); err != nil {
		return 0, 0, err
	}
	var exists bool
	table := side.versionTable()
	if err := q.QueryRow(ctx, "SELECT pg_catalog.to_regclass($1) IS NOT NULL", table).Scan(&exists); err != nil {
		return 0, 0, fmt.Errorf("look for %s: %w", table, err)
	}
	if !exists {
		return 0, latest, nil
	}
	err = q.QueryRow(ctx, "SELECT COALESCE(pg_catalog.max(version_id), 0) FROM "+table+" WHERE is_applied").Scan(&version)
	if err != nil {
		return 0, 0, fmt.Errorf("read %s: %w", table, err)
	}
	return version, latest, nil
}

// current returns the version in the database and refuses one that this binary
// does not know.
func (m *Migrator) current(ctx context.Context) (int64, error) {
	version, latest, err := versions(ctx, m.cfg.Pool, m.cfg.Side)
	if err != nil {
		return 0, err
	}
	if version > latest {
		return 0, newerSchema(m.cfg.Side, version, latest)
	}
	return version, nil
}
