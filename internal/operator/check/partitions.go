package check

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/relay"
	"github.com/onceward/onceward/relay/retention"
)

// maintenance logs in as the relay does to make partitions, where it is to: nothing else
// uses that login, and a wrong one shows when the partitions have run out. One that leads
// to another database is worse: what is maintained there is somebody else's.
func maintenance(ctx context.Context, conn *pgx.Conn, cfg *relay.Config) Verdict {
	v := Verdict{Name: "maintenance login", Status: OK}
	if cfg.Postgres.MaintenanceDSNFile == "" {
		v.Detail = "none: another job makes partitions (outboxctl partitions maintain --config relay.yaml)"
		return v
	}
	v = verdictOf(v.Name, relay.CheckMaintenance(ctx, conn, cfg))
	if v.Status != OK && v.Code != relay.CodeMaintenanceElsewhere {
		v.Status = Warning // the relay starts without
	}
	return v
}

// partitionsAhead fails when producers cannot write now, and warns before they
// no longer can.
func partitionsAhead(ctx context.Context, conn *pgx.Conn, cfg *relay.Config) Verdict {
	v := Verdict{Name: "partitions of today and ahead", Status: OK}
	ahead, today, err := retention.Ahead(ctx, conn)
	switch {
	case err != nil:
		return failure(v.Name, err)
	case !today:
		return failure(v.Name, retention.NoPartitionToday())
	case ahead < partition.FewAhead:
		v.Status, v.Code, v.Cure = Warning, codeFewPartitions, "outboxctl migrate up --side outbox (or outboxctl partitions maintain --config relay.yaml, from cron)"
		if wanted := cfg.Outbox.Partitions.Ahead; wanted > 0 && wanted < partition.FewAhead { // 0: the default
			v.Cure = fmt.Sprintf("set outbox.partitions.ahead, which is %d, to %d or more; then %s", wanted, partition.FewAhead, v.Cure)
		}
	}
	v.Detail = label.Count(ahead, "day is", "days are") + " made ahead"
	return v
}
