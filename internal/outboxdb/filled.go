package outboxdb

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"
)

// FilledPartition is a partition for which a relay stops (FilledLeaves).
type FilledPartition struct {
	Slot, Relay string
	FilledLeavesRow
}

// Filled are all of them. The relay was sent nothing of what is in them, so that
// the account's "published", which rests on the published snapshot alone, is not
// true there.
type Filled []FilledPartition

// FilledPartitions finds those of each relay but the ones that have run on another
// system: their transaction ids mean nothing here.
func (q *Queries) FilledPartitions(ctx context.Context) (found Filled, err error) {
	relays, err := q.RelaysToLook(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for relays: %w", err)
	}
	for _, r := range relays {
		leaves, err := q.FilledLeaves(ctx, r.Slot)
		if err != nil {
			return nil, fmt.Errorf("look for filled partitions: %w", err)
		}
		for _, l := range leaves {
			found = append(found, FilledPartition{Slot: r.Slot, Relay: r.Relay, FilledLeavesRow: l})
		}
	}
	return found, nil
}

// Tables are what ListByState and ListPublished take: each table that holds rows,
// with the slot of the relay that stops for it.
func (f Filled) Tables() (slots []string, tables []pgtype.Uint32) {
	for _, p := range f {
		for _, table := range p.Tables {
			slots, tables = append(slots, p.Slot), append(tables, table)
		}
	}
	return slots, tables
}

// Leaves are their names, each once.
func (f Filled) Leaves() (names []string) {
	for _, p := range f {
		if !slices.Contains(names, p.Leaf) {
			names = append(names, p.Leaf)
		}
	}
	return names
}
