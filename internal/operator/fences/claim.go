package fences

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/windows"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// keepFor is how long the effects of an event are kept after its end, in a class
// of this window.
func keepFor(window time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: (2*window + 24*time.Hour).Microseconds(), Valid: true}
}

// claimOfFence is how the event of a fence is claimed.
type claimOfFence struct {
	eventType string
	ids       []uuid.UUID
	window    time.Duration
	result    []byte // nil: none
}

// claimOf chooses the ids as the group itself would: the event's own, that of
// its reprocessing replay, or by arrival. None for one effect of several: the
// handler ends the event.
func (s *settling) claimOf(ctx context.Context, q *consumerdb.Queries, given string) (claim claimOfFence, err error) {
	if !s.fence.Alone {
		return claim, nil
	}
	if s.key.Bare {
		return claim, operator.Unclear("%s: the event is claimed with its namespace, which the fence does not keep: give the whole KEY; %s", s.key, operator.KeyExample)
	}
	if claim.eventType = s.fence.event.Type; claim.eventType == "" {
		claim.eventType = given
	}
	if claim.eventType == "" {
		return claim, operator.Unclear("the fence does not keep its event: give the event's type with --type")
	}
	if given != "" && given != claim.eventType {
		return claim, operator.Unclear("--type %q: the event of the fence is of type %q", given, claim.eventType)
	}
	rows, err := q.ListWindows(ctx, s.fence.Group)
	if err != nil {
		return claim, fmt.Errorf("read the windows of group %s: %w", s.fence.Group, err)
	}
	var classes []consumer.Class
	for _, v := range rows {
		classes = append(classes, consumer.Class{Pattern: v.Class})
	}
	at := consumer.ClassOf(classes, claim.eventType)
	if at < 0 {
		return claim, fmt.Errorf("group %s has no class for event type %q; `outboxctl windows list` shows what there is", s.fence.Group, claim.eventType)
	}
	claim.window = time.Duration(rows[at].WindowMs) * time.Millisecond
	id := s.key.ID
	if e := s.fence.event; string(e.ReplayMode) == string(record.ReplayReprocess) &&
		string(e.ReplayGroup) == s.fence.Group {
		id = e.ReplayID
	}
	now, err := q.DatabaseTime(ctx)
	if err != nil {
		return claim, err
	}
	claim.ids = []uuid.UUID{id}
	if rows[at].Keyed == string(consumer.ByArrival) || outbox.IDTime(id).Before(rows[at].Floor) {
		attached, err := q.AttachedDays(ctx)
		if err != nil {
			return claim, fmt.Errorf("list the partitions of processed_events: %w", err)
		}
		claim.ids = windows.BucketsOf(rows[at]).IDs(id, now, attached)
	}
	return claim, nil
}

func (s *settling) made(ctx context.Context, q *consumerdb.Queries, claim claimOfFence, reason string) (*Settled,
	error) {
	row, err := q.FenceMade(ctx, consumerdb.FenceMadeParams{
		EventID: s.key.ID, ConsumerGroup: s.fence.Group, Name: s.fence.Name, Epoch: s.fence.Epoch, Result: claim.result,
		Keep: keepFor(claim.window), EventType: claim.eventType, Namespace: s.key.Namespace, Ids: claim.ids,
		Target: targetOf(s.key, s.fence.Name), Reason: reason,
	})
	report := &Settled{Did: "made", Notes: []string{"what the program's Commit would have written with the result is not written: do it by hand where it is needed"}}
	switch {
	case s.ended():
		report.Notes = append(report.Notes, "the event had ended without it")
	case !s.fence.Alone:
		report.Notes = append(report.Notes, s.next("runs the handler on and ends the event"))
	case row.Claimed == 0:
		report.Notes = append(report.Notes, fmt.Sprintf("the group had claimed the event before; `outboxctl processed show %s` tells how", s.key))
	}
	return report, moved(row.Settled, err)
}
