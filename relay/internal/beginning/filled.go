package beginning

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/partition"
)

// CodePartitionFilled: a partition held rows when it was attached. Nothing of them
// is in the log of the outbox.
const CodePartitionFilled = "PARTITION_FILLED"

// Filled stops by name where a partition held rows when it was attached. They may
// be of transactions that the published snapshot sees, and have been published
// before the partition was detached once, or never: an operator decides. It is
// asked after a snapshot is taken and before its marker is written, so that no
// snapshot is published that sees an attaching which was not looked at. What is
// known of the publication is made another, so that the next session, once it is
// mended, finds a gap.
func (s *Beginner) Filled(ctx context.Context) error {
	rows, err := s.state.Queries.FilledLeaves(ctx, s.conf.Slot)
	if err != nil {
		return fmt.Errorf("look for partitions that were filled before they were attached: %w", err)
	}
	if len(rows) == 0 {
		return nil
	}
	var leaves, cures []string
	for _, r := range rows {
		leaves = append(leaves, r.Leaf)
		cures = append(cures, fmt.Sprintf("`outboxctl partitions adopt %s --reason \"…\"`", r.Leaf))
	}
	return &cdc.StartError{
		Code: CodePartitionFilled,
		What: whatFilled(leaves),
		Cure: fmt.Sprintf("as the maintainer: %s (the events are published, also those that were before), or detach each again, not CONCURRENTLY, and behind "+partition.Bounded+" "+
			"(writers wait behind the DETACH while that waits for who reads; when it gives up, try again); "+
			"if they came with a dump that was restored here, once for all of them: `outboxctl adopt --by dump --reason \"…\"`", strings.Join(cures, ", ")),
	}
}

func whatFilled(leaves []string) string {
	if len(leaves) == 1 {
		return fmt.Sprintf("partition %s of onceward.outbox held rows when it was attached, which are never sent", leaves[0])
	}
	return fmt.Sprintf("partitions %s of onceward.outbox held rows when they were attached, which are never sent", strings.Join(leaves, ", "))
}

// refuseFilled is filled before the slot is held.
func (s *Beginner) refuseFilled(ctx context.Context, row outboxdb.RelayState) error {
	err := s.Filled(ctx)
	var start *cdc.StartError
	if !errors.As(err, &start) || row.PublicationCatalog != nil && *row.PublicationCatalog == knownFilled {
		return err
	}
	return s.doubt(ctx, row, knownFilled, err)
}
