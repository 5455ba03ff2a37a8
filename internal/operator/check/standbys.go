package check

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/relay"
)

// standbys looks at what decides, from PostgreSQL 17 on, whether a promoted standby
// has the slot with nothing missing behind it; and, from 18 on, whether the server
// takes the slot away from a relay that is stopped.
func standbys(ctx context.Context, conn *pgx.Conn, cfg *relay.Config) Verdict {
	v := Verdict{Name: "standbys of the slot", Status: OK}
	major := cdc.ServerMajor(conn)
	if major < 17 {
		v.Detail = "a slot of PostgreSQL before 17 is on no standby"
		return v
	}
	awaited, err := cdc.AwaitedStandbys(ctx, conn)
	if err != nil {
		return failure(v.Name, err)
	}
	var idle int64 // minutes in 18; 0: never
	var physical, failover bool
	wanted := cfg.Postgres.Slot.Failover
	err = conn.QueryRow(ctx, `SELECT COALESCE((SELECT setting::bigint * CASE unit WHEN 'min' THEN 60 ELSE 1 END FROM pg_catalog.pg_settings WHERE name = 'idle_replication_slot_timeout'), 0),
		EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_type = 'physical'),
		COALESCE((SELECT failover FROM pg_catalog.pg_replication_slots WHERE slot_name = $1), $2)`, cfg.SlotName(), wanted).Scan(&idle, &physical, &failover)
	switch {
	case err != nil:
		return failure(v.Name, err)
	case (wanted || failover) && awaited.Away != "":
		v.Status, v.Code, v.Detail = Warning, codeStandbyAway, "synchronized_standby_slots names "+awaited.Away+": what is committed is not published before that standby has it"
		v.Cure = awaited.Cure
	case idle > 0:
		v.Status, v.Code, v.Detail = Warning, codeIdleTimeout, fmt.Sprintf("idle_replication_slot_timeout is %d s: the server invalidates the slot of a relay that is away for so long, and what was written meanwhile is not sent", idle)
		v.Cure = "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_catalog.pg_reload_conf(); max_slot_wal_keep_size bounds what a slot keeps"
	case wanted && !failover:
		v.Status, v.Code, v.Detail = Warning, codeNoFailover, "slot "+cfg.SlotName()+" was made without failover: it is on no standby, and the relay may publish what no standby has yet"
		v.Cure = "restart the relay: it alters the slot before it reads from it, and its log says so, or why it cannot"
	case wanted && physical && awaited.Slots == "":
		v.Status, v.Code, v.Detail = Warning, codeStandbys, "synchronized_standby_slots is empty: the relay may publish what no standby has yet, and a promoted one then lacks it"
		v.Cure = "ALTER SYSTEM SET synchronized_standby_slots = '…'; with the physical slots of the standbys that may be promoted; SELECT pg_catalog.pg_reload_conf();"
	}
	return v
}
