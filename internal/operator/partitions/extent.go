package partitions

import (
	"fmt"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/relay/retention"
)

// Extent says how far partitions reach.
type Extent struct {
	Count     int    `json:"count"`
	From      string `json:"from,omitempty"`
	To        string `json:"to,omitempty"`
	DaysAhead int    `json:"days_ahead"`
	NoToday   bool   `json:"today_is_missing,omitempty"`
	Default   string `json:"default_partition,omitempty"` // its name: it is not counted
}

// ExtentOf is that of a side as it is installed.
func ExtentOf(st migrations.Status) Extent {
	return Extent{Count: st.Partitions, From: st.PartitionsFrom, To: st.PartitionsTo, DaysAhead: st.DaysAhead,
		NoToday: !st.Today, Default: st.Default}
}

// String is one line for a person.
func (r Extent) String() string {
	if r.Count == 0 {
		return "none"
	}
	if r.NoToday {
		return fmt.Sprintf("%d, %s to %s, but none of today", r.Count, r.From, r.To)
	}
	return fmt.Sprintf("%d, %s to %s, %s ahead", r.Count, r.From, r.To, label.Count(r.DaysAhead, "day"))
}

// Unknown: nobody says how many days ahead are wanted.
const Unknown = 0

// Few says that producers cannot write, or soon no more; nil: they can. Where no more days
// are wanted than there are, making them again mends nothing.
func Few(ahead int, today bool, wanted int) error {
	switch {
	case !today:
		return retention.NoPartitionToday()
	case ahead >= partition.FewAhead:
		return nil
	case wanted != Unknown && wanted < partition.FewAhead:
		return fmt.Errorf("partitions reach only %s ahead, and no more than %d are wanted: set outbox.partitions.ahead of relay.yaml (or --ahead) to %d or more and start the relay again",
			label.Count(ahead, "day"), wanted, partition.FewAhead)
	}
	return fmt.Errorf("partitions reach only %s ahead; run `outboxctl partitions maintain --config relay.yaml`, in which outbox.partitions.ahead is %d or more",
		label.Count(ahead, "day"), partition.FewAhead)
}
