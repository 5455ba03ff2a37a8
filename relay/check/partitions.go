package check

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/relay"
)

// minAhead is how many days of partitions must be there before it is time to
// wake somebody.
const minAhead = 7

// partitionsAhead warns before producers can no longer write.
func partitionsAhead(ctx context.Context, conn *pgx.Conn, _ *relay.Config) Verdict {
	v := Verdict{Name: "partitions ahead", Status: OK}
	days, err := partition.List(ctx, conn, "onceward.outbox")
	if err != nil {
		return failure(v.Name, err)
	}
	ahead := partition.Ahead(days, time.Now())
	v.Detail = fmt.Sprintf("%d days are made ahead", ahead)
	if ahead < minAhead {
		v.Status, v.Cure = Warning, "outboxctl migrate up --side outbox (or outboxctl partitions maintain, from cron)"
	}
	return v
}

// today fails when producers cannot write now.
func today(ctx context.Context, conn *pgx.Conn, _ *relay.Config) Verdict {
	v := Verdict{Name: "partition of today", Status: OK}
	var now time.Time
	if err := conn.QueryRow(ctx, `SELECT pg_catalog.clock_timestamp()`).Scan(&now); err != nil {
		return failure(v.Name, err)
	}
	days, err := partition.List(ctx, conn, "onceward.outbox")
	if err != nil {
		return failure(v.Name, err)
	}
	if !partition.Has(days, now) {
		v.Status, v.Code, v.Cure = Failed, cdc.CodeNoPartition, "outboxctl partitions maintain (or migrate up --side outbox)"
		v.Detail = fmt.Sprintf("onceward.outbox has no partition of %s: every Enqueue fails", now.UTC().Format(time.DateOnly))
	}
	return v
}
