package hostile

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Code names the finding in errors and verdicts.
const Code = "HOSTILE_DEPENDENCY"

// Querier is what [Foreign] needs: a connection, a pool or a transaction of pgx,
// whose search_path is pinned to pg_catalog.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Dependency is one object of schema onceward that leans on something foreign.
type Dependency struct {
	Kind   string // of the object, e.g. "default value", "table constraint", "index", "trigger"
	Object string // e.g. "for onceward.outbox.tx_id"
	On     string // e.g. "function public.pg_current_xact_id()"
}

// String says who leans on what.
func (d Dependency) String() string { return d.Kind + " " + d.Object + " leans on " + d.On }

// Rebuilt reports whether it is of a kind that `outboxctl migrate up` makes anew,
// if it is ours.
func (d Dependency) Rebuilt() bool {
	switch d.Kind {
	case "default value", "table constraint", "index":
		return true
	}
	return false
}

// foreign walks from the foreign functions to what leans on them: the index of
// pg_depend leads that way, and there are few. Parents come before partitions.
const foreign = `WITH theirs AS (
  SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass AS class, p.oid FROM pg_catalog.pg_proc p WHERE p.pronamespace <> ALL ($1)
  UNION ALL SELECT 'pg_catalog.pg_operator'::pg_catalog.regclass, o.oid FROM pg_catalog.pg_operator o WHERE o.oprnamespace <> ALL ($1)
  UNION ALL SELECT 'pg_catalog.pg_type'::pg_catalog.regclass, t.oid FROM pg_catalog.pg_type t WHERE t.typtype = 'd' AND t.typnamespace <> ALL ($1)
), leaning AS (
  SELECT d.*, CASE d.classid
    WHEN 'pg_catalog.pg_class'::pg_catalog.regclass THEN d.objid
    WHEN 'pg_catalog.pg_attrdef'::pg_catalog.regclass THEN (SELECT a.adrelid FROM pg_catalog.pg_attrdef a WHERE a.oid = d.objid)
    WHEN 'pg_catalog.pg_trigger'::pg_catalog.regclass THEN (SELECT g.tgrelid FROM pg_catalog.pg_trigger g WHERE g.oid = d.objid)
    WHEN 'pg_catalog.pg_policy'::pg_catalog.regclass THEN (SELECT p.polrelid FROM pg_catalog.pg_policy p WHERE p.oid = d.objid)
    WHEN 'pg_catalog.pg_rewrite'::pg_catalog.regclass THEN (SELECT r.ev_class FROM pg_catalog.pg_rewrite r WHERE r.oid = d.objid)
    WHEN 'pg_catalog.pg_constraint'::pg_catalog.regclass THEN (SELECT c.conrelid FROM pg_catalog.pg_constraint c WHERE c.oid = d.objid)
    WHEN 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass THEN (SELECT s.stxrelid FROM pg_catalog.pg_statistic_ext s WHERE s.oid = d.objid)
    WHEN 'pg_catalog.pg_publication_rel'::pg_catalog.regclass THEN (SELECT r.prrelid FROM pg_catalog.pg_publication_rel r WHERE r.oid = d.objid)
  END AS table
  FROM theirs JOIN pg_catalog.pg_depend d ON d.refclassid = theirs.class AND d.refobjid = theirs.oid
)
SELECT i.type, i.identity, f.type || ' ' || f.identity FROM leaning d
LEFT JOIN pg_catalog.pg_class c ON c.oid = d.table
LEFT JOIN pg_catalog.pg_proc p ON d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND p.oid = d.objid
CROSS JOIN LATERAL pg_catalog.pg_identify_object(d.classid, d.objid, d.objsubid) i
CROSS JOIN LATERAL pg_catalog.pg_identify_object(d.refclassid, d.refobjid, d.refobjsubid) f
WHERE $2 IN (c.relnamespace, p.pronamespace)
ORDER BY COALESCE(c.relispartition, false), i.type, i.identity, 3`

// Foreign returns what in schema onceward leans on a function, an operator or a
// domain outside of pg_catalog and onceward; empty where the schema is not there.
func Foreign(ctx context.Context, q Querier) ([]Dependency, error) {
	const schemas = `SELECT oid FROM pg_catalog.pg_namespace WHERE nspname IN ('pg_catalog', 'onceward') ORDER BY nspname`
	rows, err := q.Query(ctx, schemas)
	if err != nil {
		return nil, fmt.Errorf("look up schema onceward: %w", err)
	}
	ours, err := pgx.CollectRows(rows, pgx.RowTo[uint32])
	if err != nil {
		return nil, fmt.Errorf("look up schema onceward: %w", err)
	}
	if len(ours) < 2 {
		return nil, nil
	}
	rows, err = q.Query(ctx, foreign, ours, ours[0])
	if err != nil {
		return nil, fmt.Errorf("look for foreign functions in schema onceward: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Dependency])
	if err != nil {
		return nil, fmt.Errorf("look for foreign functions in schema onceward: %w", err)
	}
	return found, nil
}

// most is how many dependencies an error names: each partition repeats those of
// its table.
const most = 5

// List puts dependencies into one sentence.
func List(all []Dependency) string {
	var out []string
	for _, d := range all[:min(most, len(all))] {
		out = append(out, d.String())
	}
	if n := len(all) - len(out); n > 0 {
		out = append(out, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(out, "; ")
}

// Cure says what mends the dependencies: our command where it can, and else what
// the owner of the schema has to take away. The side is the one that was looked at.
func Cure(all []Dependency, side string) string {
	up := "run `outboxctl migrate up --side " + side + "`, and for the other side too if both are in this database"
	for _, d := range all {
		if !d.Rebuilt() {
			return "drop " + d.Kind + " " + d.Object + ", or have it use functions of schema onceward; then " + up
		}
	}
	return up
}
