package windows

import (
	"errors"
	"slices"
	"time"

	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
)

// ClaimsTable has the claims, by the day of their event.
const ClaimsTable = "onceward.processed_events"

// BucketsOf reads those of a class.
func BucketsOf(v consumerdb.ListWindowsRow) claims.Buckets {
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	return claims.BucketsOf(v.Keyed, ms(v.WindowMs), ms(v.BucketMs), ms(v.OldBucketMs), v.OldUntil)
}

// errNoClass: nothing was found that the command could change.
var errNoClass = errors.New("no such class in use; `outboxctl windows list` shows what there is")

// classOf finds a class in use.
func classOf(rows []consumerdb.ListWindowsRow, class string) (consumerdb.ListWindowsRow, error) {
	at := slices.IndexFunc(rows, func(v consumerdb.ListWindowsRow) bool {
		return v.Class == class &&
			v.RetiredAt == nil
	})
	if at < 0 {
		return consumerdb.ListWindowsRow{}, errNoClass
	}
	return rows[at], nil
}
