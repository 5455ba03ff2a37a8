package cdc

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// publicationState is what the catalog says of the publication.
type publicationState struct {
	insert, others, viaRoot, allTables bool
	covered                            int // of the relay's three tables, without a filter
	foreign                            int // other tables, and whole schemas
}

// checkPublication demands inserts only (a publication of updates or deletes
// breaks the application's own writes on tables without a replica identity),
// through the partition root, of the three tables.
func checkPublication(ctx context.Context, conn *pgx.Conn, cfg Config) error {
	var p publicationState
	err := conn.QueryRow(ctx, `SELECT p.pubinsert, p.pubupdate OR p.pubdelete OR p.pubtruncate, p.pubviaroot, p.puballtables,
		(SELECT pg_catalog.count(*) FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid
		 AND r.prrelid IN ('onceward.outbox'::regclass, 'onceward.replays'::regclass, 'onceward.controls'::regclass)
		 AND r.prqual IS NULL AND r.prattrs IS NULL),
		(SELECT pg_catalog.count(*) FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid
		 AND r.prrelid NOT IN ('onceward.outbox'::regclass, 'onceward.replays'::regclass, 'onceward.controls'::regclass))
		+ (SELECT pg_catalog.count(*) FROM pg_catalog.pg_publication_namespace n WHERE n.pnpubid = p.oid)
		FROM pg_catalog.pg_publication p WHERE p.pubname = $1`, cfg.Publication).Scan(&p.insert, &p.others, &p.viaRoot, &p.allTables, &p.covered, &p.foreign)
	const tables = "onceward.outbox, onceward.replays, onceward.controls"
	create := fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE %s WITH (publish = 'insert', publish_via_partition_root = true);", cfg.Publication, tables)
	if errors.Is(err, pgx.ErrNoRows) {
		return &StartError{Code: CodePublicationMissing, What: fmt.Sprintf("publication %s does not exist", cfg.Publication),
			Cure: "outboxctl migrate up --side outbox --relay " + relayOf(cfg.Publication) + " (or: " + create + ")"}
	}
	if err != nil {
		return fmt.Errorf("look up publication %s: %w", cfg.Publication, err)
	}
	switch {
	case p.allTables:
		return &StartError{Code: codePublicationTables, What: fmt.Sprintf("publication %s is FOR ALL TABLES: the whole database would go through the relay", cfg.Publication),
			Cure: fmt.Sprintf("DROP PUBLICATION %s; %s", cfg.Publication, create)}
	case p.covered != 3:
		return &StartError{Code: codePublicationTables,
			What: fmt.Sprintf("publication %s covers %d of the 3 tables that the relay reads, without a row filter or column list", cfg.Publication, p.covered),
			Cure: fmt.Sprintf("ALTER PUBLICATION %s SET TABLE %s;", cfg.Publication, tables)}
	case p.foreign > 0:
		return &StartError{Code: codePublicationTables,
			What: fmt.Sprintf("publication %s has %d tables or schemas besides the 3 tables that the relay reads: what they hold would go through the relay", cfg.Publication, p.foreign),
			Cure: fmt.Sprintf("ALTER PUBLICATION %s SET TABLE %s;", cfg.Publication, tables)}
	case !p.insert || p.others:
		return &StartError{Code: codePublicationActions, What: fmt.Sprintf("publication %s does not publish inserts and nothing else", cfg.Publication),
			Cure: fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert');", cfg.Publication)}
	case !p.viaRoot:
		return &StartError{Code: codePublicationRoot, What: fmt.Sprintf("publication %s names the partitions and not the table", cfg.Publication),
			Cure: fmt.Sprintf("ALTER PUBLICATION %s SET (publish_via_partition_root = true);", cfg.Publication)}
	}
	return nil
}

// relayOf returns the relay's name that `outboxctl migrate` derives the
// publication's name from.
func relayOf(publication string) string {
	const prefix = "onceward_"
	if len(publication) > len(prefix) && publication[:len(prefix)] == prefix {
		return publication[len(prefix):]
	}
	return publication
}
