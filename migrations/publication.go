package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/partition"
)

// madeByUs is the comment on what Down may drop again.
const madeByUs = "made by outboxctl migrate"

// publishedTables is what a relay's publication holds, sorted.
var publishedTables = []string{schemaName + ".controls", schemaName + ".outbox", schemaName + ".replays"}

const (
	publicationContent = "onceward.outbox, onceward.replays, onceward.controls"
	publicationOptions = "publish = 'insert', publish_via_partition_root = true"
)

// publication is what the catalog says of one publication.
type publication struct {
	Name      string
	AllTables bool
	Publish   []string // of insert, update, delete, truncate
	ViaRoot   bool
	Tables    []string // schema.table, sorted; with a mark when filtered
	Schemas   []string
	Ours      bool
}

const selectPublications = `SELECT p.pubname::text, p.puballtables, p.pubviaroot,
  ARRAY(SELECT a.action FROM (VALUES ('insert', p.pubinsert), ('update', p.pubupdate), ('delete', p.pubdelete),
    ('truncate', p.pubtruncate)) AS a(action, published) WHERE a.published),
  ARRAY(SELECT n.nspname || '.' || c.relname || CASE WHEN r.prqual IS NOT NULL THEN ' WHERE …' ELSE '' END
      || CASE WHEN r.prattrs IS NOT NULL THEN ' (columns)' ELSE '' END
    FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE r.prpubid = p.oid ORDER BY 1),
  ARRAY(SELECT n.nspname::text FROM pg_catalog.pg_publication_namespace s
    JOIN pg_catalog.pg_namespace n ON n.oid = s.pnnspid WHERE s.pnpubid = p.oid ORDER BY 1),
  COALESCE(pg_catalog.obj_description(p.oid, 'pg_publication') = $2, false)
FROM pg_catalog.pg_publication p
WHERE CASE WHEN $1 = '' THEN pg_catalog.obj_description(p.oid, 'pg_publication') = $2 ELSE p.pubname = $1 END
ORDER BY p.pubname`

// publications reads the publication of the given name, or with an empty name
// all that Up made.
func publications(ctx context.Context, q partition.Querier, name string) ([]publication, error) {
	rows, err := q.Query(ctx, selectPublications, name, madeByUs)
	if err != nil {
		return nil, fmt.Errorf("read publications: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (publication, error) {
		var p publication
		err := row.Scan(&p.Name, &p.AllTables, &p.ViaRoot, &p.Publish, &p.Tables, &p.Schemas, &p.Ours)
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("read publications: %w", err)
	}
	return out, nil
}

// faults says what keeps a publication from being a relay's; empty: nothing.
func (p publication) faults() []string {
	var out []string
	if p.AllTables {
		out = append(out, "it is FOR ALL TABLES")
	}
	if len(p.Schemas) > 0 {
		out = append(out, "it holds the schemas "+strings.Join(p.Schemas, ", "))
	}
	if !p.AllTables && !slices.Equal(p.Tables, publishedTables) {
		out = append(out, fmt.Sprintf("it holds the tables [%s]", strings.Join(p.Tables, ", ")))
	}
	if !slices.Equal(p.Publish, []string{"insert"}) {
		out = append(out, fmt.Sprintf("it publishes [%s]", strings.Join(p.Publish, ", ")))
	}
	if !p.ViaRoot {
		out = append(out, "publish_via_partition_root is off")
	}
	return out
}

// check returns nil or an error that carries the way out.
func (p publication) check() error {
	faults := p.faults()
	if len(faults) == 0 {
		return nil
	}
	name := pgx.Identifier{p.Name}.Sanitize()
	cure := fmt.Sprintf("ALTER PUBLICATION %s SET TABLE %s; ALTER PUBLICATION %s SET (%s);",
		name, publicationContent, name, publicationOptions)
	if p.AllTables {
		cure = fmt.Sprintf("DROP PUBLICATION %s; and run this command again", name)
	}
	return fmt.Errorf("%w: %s: %s; a relay needs %s WITH (%s). To mend it, stop the relay and run: %s",
		ErrPublication, p.Name, strings.Join(faults, ", "), publicationContent, publicationOptions, cure)
}

// publicationSQL returns what is missing of the relay's publication. No relay,
// or nothing missing: none.
func (m *Migrator) publicationSQL(ctx context.Context) ([]string, error) {
	if m.cfg.Relay == "" {
		return nil, nil
	}
	found, err := publications(ctx, m.cfg.Pool, PublicationName(m.cfg.Relay))
	if err != nil {
		return nil, err
	}
	if len(found) > 0 {
		return nil, found[0].check()
	}
	name := pgx.Identifier{PublicationName(m.cfg.Relay)}.Sanitize()
	return []string{
		fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE %s WITH (%s)", name, publicationContent, publicationOptions),
		fmt.Sprintf("COMMENT ON PUBLICATION %s IS '%s'", name, madeByUs),
	}, nil
}

// makePublication returns the name of the publication it made, or "".
func (m *Migrator) makePublication(ctx context.Context) (string, error) {
	statements, err := m.publicationSQL(ctx)
	if err != nil || len(statements) == 0 {
		return "", err
	}
	if err := m.exec(ctx, statements); err != nil {
		return "", fmt.Errorf("make publication %s: %w", PublicationName(m.cfg.Relay), err)
	}
	return PublicationName(m.cfg.Relay), nil
}

// droppable splits what Up made into publications that are still as they were
// made and those that somebody has changed, which are left alone.
func droppable(all []publication) (drop, keep []string) {
	for _, p := range all {
		if err := p.check(); errors.Is(err, ErrPublication) {
			keep = append(keep, fmt.Sprintf("publication %s: changed since it was made (%s)", p.Name, strings.Join(p.faults(), ", ")))
			continue
		}
		drop = append(drop, p.Name)
	}
	return drop, keep
}
