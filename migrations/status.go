package migrations

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/partition"
)

// Status is what is installed of one side.
type Status struct {
	Side           Side
	Version        int64    // in the database; 0 is not installed
	Latest         int64    // newest that this binary knows
	Pending        []string // names of the migrations that Up would run
	Partitions     int
	PartitionsFrom string // UTC day of the oldest, 2006-01-02; empty when there is none
	PartitionsTo   string // UTC day of the newest
	DaysAhead      int    // days after today that are covered without a hole; 0 where today is none of them
	Today          bool   // rows of now have a partition
	// A DEFAULT partition, which is not counted, with its schema and quoted for SQL; empty: there is none.
	Default      string
	Publications []PublicationStatus
	Missing      string // what became of a table that is not there; empty: all are
}

// PublicationStatus is one publication that Up made, or that has the name of
// the configured relay or of one that has run here.
type PublicationStatus struct {
	Name   string
	Faults []string // what keeps it from being a relay's; empty: it is good
}

// status reads without the lock: what it shows may be overtaken at any moment.
func (m *Migrator) status(ctx context.Context, tx pgx.Tx) (Status, error) {
	st := Status{Side: m.cfg.Side}
	var err error
	if st.Version, st.Latest, err = versions(ctx, tx, m.cfg.Side); err != nil {
		return st, err
	}
	all, err := m.cfg.Side.steps()
	if err != nil {
		return st, err
	}
	for _, s := range all {
		if s.version > st.Version {
			st.Pending = append(st.Pending, s.name)
		}
	}
	again, err := checkTables(ctx, tx, m.cfg.Side, st.Version)
	switch {
	case st.Version > st.Latest: // which tables it has, its own release knows
	case errors.Is(err, ErrTableGone):
		st.Missing = err.Error()
	case err != nil:
		return st, err
	case len(again) > 0:
		st.Missing = remakeWords(again)
	}
	if err := m.partitionStatus(ctx, tx, &st); err != nil {
		return st, err
	}
	return st, m.publicationStatus(ctx, tx, &st)
}

func (m *Migrator) partitionStatus(ctx context.Context, tx pgx.Tx, st *Status) error {
	table, _ := m.cfg.Side.partitioned()
	existing, err := partition.List(ctx, tx, table)
	var unwanted *partition.DefaultError
	if errors.As(err, &unwanted) {
		st.Default, err = unwanted.Partition, nil
	}
	if err != nil {
		return err
	}
	st.Partitions = len(existing)
	now := m.cfg.Now()
	st.DaysAhead, st.Today = partition.Ahead(existing, now), partition.Has(existing, now)
	if first, last, ok := partition.Extent(existing); ok {
		st.PartitionsFrom, st.PartitionsTo = first.Format("2006-01-02"), last.Format("2006-01-02")
	}
	return nil
}

func noPublication(name, relay string) PublicationStatus {
	return PublicationStatus{Name: name, Faults: []string{fmt.Sprintf("it does not exist; run `outboxctl migrate up --side outbox --relay %s`", relay)}}
}

// missingPublications adds those that relays have run with and that are gone.
func missingPublications(ctx context.Context, tx pgx.Tx, st *Status) error {
	var installed bool
	if err := tx.QueryRow(ctx, `SELECT pg_catalog.to_regclass('onceward.relay_state') IS NOT NULL`).Scan(&installed); err != nil || !installed {
		return err
	}
	rows, _ := tx.Query(ctx, `SELECT s.publication, s.relay FROM onceward.relay_state s
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_publication p WHERE p.pubname OPERATOR(pg_catalog.=) s.publication) ORDER BY 1`) // ForEachRow returns its error
	var name, relay string
	_, err := pgx.ForEachRow(rows, []any{&name, &relay}, func() error {
		st.Publications = append(st.Publications, noPublication(name, relay))
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for the relays' publications: %w", err)
	}
	return nil
}

func (m *Migrator) publicationStatus(ctx context.Context, tx pgx.Tx, st *Status) error {
	if m.cfg.Side != Outbox {
		return nil
	}
	found, err := publications(ctx, tx, "")
	if err != nil {
		return err
	}
	if m.cfg.Relay != "" {
		if found, err = publications(ctx, tx, PublicationName(m.cfg.Relay)); err != nil {
			return err
		}
		if len(found) == 0 {
			st.Publications = append(st.Publications, noPublication(PublicationName(m.cfg.Relay), m.cfg.Relay))
		}
	} else if err := missingPublications(ctx, tx, st); err != nil {
		return err
	}
	for _, p := range found {
		st.Publications = append(st.Publications, PublicationStatus{Name: p.Name, Faults: p.faults()})
	}
	return nil
}
