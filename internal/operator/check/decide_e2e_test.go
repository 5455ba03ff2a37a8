//go:build e2e

package check_test

import (
	"context"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onceward/onceward/internal/operator/check"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/relay"
)

func execute(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql)
	require.NoError(t, err)
}

// hasRun writes what a relay leaves behind: its row, its slot and what it knew of
// the publication.
const hasRun = `SELECT pg_create_logical_replication_slot('onceward_' || current_database(), 'pgoutput');
	INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication)
	SELECT slot_name, 'orders', current_database(), (SELECT system_identifier FROM pg_control_system()), 1, confirmed_flush_lsn, 'onceward_orders'
	FROM pg_replication_slots WHERE slot_name = 'onceward_' || current_database();
	INSERT INTO onceward.published_snapshots SELECT slot, '3:3:', now() FROM onceward.relay_state`

// byDump is what `outboxctl adopt --by dump` makes of it.
const byDump = `UPDATE onceward.relay_state SET confirmed_lsn = '0/1'; UPDATE onceward.published_snapshots SET snapshot = '1:1:'`

// ranBefore returns a database in which the relay has run.
func ranBefore(t *testing.T) (*pgxpool.Pool, *relay.Config) {
	t.Helper()
	pool, cfg := ready(t)
	cfg.Postgres.Slot.Name = "onceward_" + pool.Config().ConnConfig.Database
	execute(t, pool, hasRun)
	t.Cleanup(func() {
		_, _ = pool.Exec(t.Context(), `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()`)
	})
	return pool, cfg
}

func TestCheckDecidesWhatRunDecides(t *testing.T) {
	t.Run("rows before the first start", func(t *testing.T) {
		pool, cfg := ready(t)
		enqueue(t, pool, "order")
		verdicts := check.Run(t.Context(), cfg, nil)
		require.Equal(t, check.Failed, check.Worst(verdicts))
		require.Contains(t, named(t, verdicts, "first start").Detail, "outbox.start")
	})
	for start, want := range map[string]string{"all": "the 1 event in onceward.outbox is published first", "now": "the 1 event in onceward.outbox is left out for good"} {
		t.Run("outbox.start "+start, func(t *testing.T) {
			pool, cfg := ready(t)
			enqueue(t, pool, "order")
			cfg.Outbox.Start = start
			require.Contains(t, named(t, check.Run(t.Context(), cfg, nil), "first start").Detail, want)
		})
	}
	t.Run("all is as it was", func(t *testing.T) {
		_, cfg := ranBefore(t)
		verdicts := check.Run(t.Context(), cfg, nil)
		require.NotEqual(t, check.Failed, check.Worst(verdicts), "%v", verdicts)
		require.Equal(t, check.OK, named(t, verdicts, "system, timeline, checkpoint").Status)
		require.Equal(t, check.OK, named(t, verdicts, "replication slot").Status)
	})
	// With gap: repair the relay starts, writes the gap down and repairs it; with gap:
	// ask it stops by its code. What no repair can mend stops it in any case.
	const dropSlot = `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()`
	for name, c := range map[string]struct {
		sql, verdict, want string
		asked              bool // whatever the policy is
	}{
		"publication made anew": {`UPDATE onceward.relay_state SET publication_catalog = 'publication 1 1'`, "publication since the last session", "PUBLICATION_CHANGED", false},
		"another system":        {`UPDATE onceward.relay_state SET system_identifier = '1'`, "system, timeline, checkpoint", "OTHER_SYSTEM", true},
		"slot advanced":         {`UPDATE onceward.relay_state SET confirmed_lsn = '0/10'`, "system, timeline, checkpoint", "SLOT_ADVANCED", false},
		"beyond the log":        {`UPDATE onceward.relay_state SET confirmed_lsn = 'FFFF/0'`, "system, timeline, checkpoint", "CHECKPOINT_BEYOND_LOG", true},
		"slot gone":             {dropSlot, "replication slot", "SLOT_MISSING", false},
		"adopted by dump":       {byDump, "system, timeline, checkpoint", "OTHER_SYSTEM", true},
		"adopted, slot gone":    {byDump + ";" + dropSlot, "replication slot", "SLOT_MISSING", true},
	} {
		t.Run(name, func(t *testing.T) {
			pool, cfg := ranBefore(t)
			execute(t, pool, c.sql)
			for _, policy := range []string{relay.GapRepair, relay.GapAsk} {
				cfg.Gap = policy
				verdicts := check.Run(t.Context(), cfg, nil)
				v := named(t, verdicts, c.verdict)
				require.Equal(t, c.want, v.Code, v.Detail)
				if !c.asked && policy == relay.GapRepair {
					require.Equal(t, check.Warning, v.Status, "the relay starts")
					require.NotEqual(t, check.Failed, check.Worst(verdicts), "%v", verdicts)
					continue
				}
				require.Equal(t, check.Failed, v.Status)
			}
		})
	}
}

// A dump that was restored beside its original, whose relay runs: the slot and the
// walsender are the original's, and that is said before what has a cure that would end in
// it. What is not looked at is named.
func TestACopyBesideItsOriginalIsSeen(t *testing.T) {
	original, own := ranBefore(t)
	execute(t, original, `INSERT INTO onceward.controls (control_id, action, letter_id, reason) VALUES (gen_random_uuid(), 'retry', gen_random_uuid(), 'log')`)
	conf, err := pgconn.ParseConfig(original.Config().ConnString())
	require.NoError(t, err)
	conf.RuntimeParams["replication"] = "database"
	conf.RuntimeParams["application_name"] = "onceward relay " + own.SlotName()
	streams, err := pgconn.ConnectConfig(t.Context(), conf)
	require.NoError(t, err)
	t.Cleanup(func() { // the database goes when its walsender is gone
		_, err := original.Exec(context.Background(), "SELECT pg_terminate_backend(active_pid, 60000) FROM pg_replication_slots WHERE slot_name = $1", own.SlotName())
		require.NoError(t, err)
		_ = streams.Close(context.Background())
	})
	require.NoError(t, pglogrepl.StartReplication(t.Context(), streams, own.SlotName(), 0,
		pglogrepl.StartReplicationOptions{PluginArgs: []string{"proto_version '1'", "publication_names 'onceward_orders'"}}))
	require.Equal(t, "a process of this relay has it", named(t, check.Run(t.Context(), own, nil), "replication connection").Detail)

	pool, cfg := ready(t)
	cfg.Postgres.Slot.Name = own.SlotName()
	_, err = pool.Exec(t.Context(), `INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication)
		SELECT $1, 'orders', 'd', system_identifier, 1, '0/1', 'onceward_orders' FROM pg_control_system()`, own.SlotName())
	require.NoError(t, err)
	execute(t, pool, `INSERT INTO onceward.published_snapshots SELECT slot, '5:5:', now() FROM onceward.relay_state`)
	execute(t, pool, attachFilled)
	verdicts := check.Run(t.Context(), cfg, nil)
	slot := named(t, verdicts, "replication slot")
	require.Equal(t, []any{check.Failed, "SLOT_FOREIGN"}, []any{slot.Status, slot.Code}, slot.Detail)
	require.Contains(t, slot.Detail, original.Config().ConnConfig.Database)
	skipped := []string{"partitions since the last session", "system, timeline, checkpoint", "publication since the last session", "gaps", "mode and routes"}
	for _, name := range skipped {
		v := named(t, verdicts, name)
		require.Equal(t, []any{check.Skipped, "the checks before it failed"}, []any{v.Status, v.Detail}, name)
	}
	connection := named(t, verdicts, "replication connection")
	require.Equal(t, []any{check.OK, ""}, []any{connection.Status, connection.Detail}, "it is this database that was connected to")

	cfg.Postgres.Slot.Name = "onceward_" + pool.Config().ConnConfig.Database // as after another name
	execute(t, pool, `UPDATE onceward.relay_state SET slot = 'onceward_' || current_database();
		UPDATE onceward.published_snapshots SET slot = 'onceward_' || current_database()`)
	verdicts = check.Run(t.Context(), cfg, nil)
	require.Equal(t, "PARTITION_FILLED", named(t, verdicts, skipped[0]).Code)
	for _, name := range append(skipped[1:], "replication slot") {
		require.Equal(t, check.Skipped, named(t, verdicts, name).Status, name)
	}
}

// attachFilled attaches a partition that holds a row.
const attachFilled = `DO $$ DECLARE leaf text; bound text; BEGIN
	SELECT inhrelid::regclass::text, pg_get_expr(relpartbound, c.oid) INTO leaf, bound FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
		WHERE inhparent = 'onceward.outbox'::regclass AND relname = 'outbox_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD');
	EXECUTE 'ALTER TABLE onceward.outbox DETACH PARTITION ' || leaf;
	EXECUTE 'INSERT INTO ' || leaf || ' (id, namespace, aggregate_type, aggregate_id, event_type, tx_id, seq) VALUES
		((lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, ''0'') || ''70008000000000000001'')::uuid, ''n'', ''t'', ''a'', ''e'', ''4'', 1)';
	EXECUTE 'ALTER TABLE onceward.outbox ATTACH PARTITION ' || leaf || ' ' || bound; END $$`

func TestAGapThatIsUndecidedIsSeen(t *testing.T) {
	pool, cfg := ranBefore(t)
	execute(t, pool, `INSERT INTO onceward.gaps (gap_id, slot, cause, detail, from_snapshot, to_snapshot, events, state)
		SELECT gen_random_uuid(), slot, 'SLOT_LOST', 'x', '1:1:', '2:2:', 1, 'open' FROM onceward.relay_state`)
	v := named(t, check.Run(t.Context(), cfg, nil), "gaps")
	require.Equal(t, check.Failed, v.Status)
	require.Equal(t, "SLOT_LOST", v.Code)
	require.Contains(t, v.Cure, "outboxctl gap show")
}

func TestTopicsOfTheRoutesAreLookedAt(t *testing.T) {
	pool := testdb.New(t, "15")
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "literal"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	cfg := config(pool.Config().ConnString(), cluster.ListenAddrs()...)
	cfg.Routes = []relay.RouteConfig{{Match: relay.MatchConfig{Namespace: "a"}, Topic: "literal"}, {Match: relay.MatchConfig{Namespace: "b"}, Topic: "typo"}}
	verdicts := check.Run(t.Context(), cfg, nil)
	require.NotEqual(t, check.Held, named(t, verdicts, "topic literal").Status)
	require.Equal(t, check.Held, named(t, verdicts, "topic typo").Status, "before any event goes there")
	cfg.Topics.Create = true
	typo := named(t, check.Run(t.Context(), cfg, nil), "topic typo")
	require.Equal(t, check.OK, typo.Status)
	require.NotContains(t, typo.Detail+typo.Cure, "or set topics.create")
}

func TestAnEventWithoutARouteHoldsUntilItIsPublished(t *testing.T) {
	pool, cfg := ranBefore(t)
	cfg.Routes[0].Match.Namespace = "other"
	enqueue(t, pool, "order")
	require.Equal(t, check.Held, check.Worst(check.Run(t.Context(), cfg, nil)), "the relay starts, and holds it")
	execute(t, pool, `UPDATE onceward.published_snapshots SET snapshot = pg_current_snapshot()`)
	require.Equal(t, check.Warning, check.Worst(check.Run(t.Context(), cfg, nil)), "skipped, or of an earlier configuration")
}

// What waits is visible in the published snapshot, and no route takes it all the same.
func TestWhatWaitsWithoutARouteIsSeen(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*relay.Config)
		why    string
	}{
		"no rule":     {func(cfg *relay.Config) { cfg.Routes[0].Match.Namespace = "other" }, "no route matches"},
		"not allowed": {func(cfg *relay.Config) { cfg.Topics.Allow = []string{"other.*"} }, "is not in the allow-list"},
	} {
		t.Run(name, func(t *testing.T) {
			pool, cfg := ranBefore(t)
			c.change(cfg)
			enqueue(t, pool, "order")
			enqueue(t, pool, "order")
			execute(t, pool, `UPDATE onceward.published_snapshots SET snapshot = pg_current_snapshot()`)
			require.Equal(t, check.Warning, check.Worst(check.Run(t.Context(), cfg, nil)), "nothing waits")
			execute(t, pool, `WITH l AS (INSERT INTO onceward.lanes (slot, namespace, aggregate_type, topic) SELECT slot, 'shop', 'order', '' FROM onceward.relay_state RETURNING id)
				INSERT INTO onceward.waiting (lane, position, ordinal, tx_id, id) SELECT l.id, '0/10', o.seq, o.tx_id, o.id FROM l, onceward.outbox o`)
			v := named(t, check.Run(t.Context(), cfg, nil), "route of T in shop.order")
			require.Equal(t, check.Held, v.Status)
			require.Equal(t, "ROUTE", v.Code)
			require.Contains(t, v.Detail, c.why)
			require.NotEmpty(t, v.Cure)
		})
	}
}

// Replays that wait for a topic of their own are no kind of the outbox.
func TestTheTopicOfReplaysThatWaitIsSeen(t *testing.T) {
	pool, cfg := ranBefore(t)
	execute(t, pool, `INSERT INTO onceward.lanes (slot, namespace, aggregate_type, topic) SELECT slot, '', '', 'shop.repair' FROM onceward.relay_state`)
	v := named(t, check.Run(t.Context(), cfg, nil), "topic shop.repair")
	require.Equal(t, check.Held, v.Status)
	require.Contains(t, v.Cure, "kafka-topics.sh")
	cfg.Topics.Allow = []string{"shop.order"}
	v = named(t, check.Run(t.Context(), cfg, nil), "topic shop.repair")
	require.Equal(t, check.Held, v.Status)
	require.Contains(t, v.Detail, "allow-list")
}

func TestTheDayThatProducersNeedIsMissed(t *testing.T) {
	pool, cfg := ready(t)
	execute(t, pool, `DO $$ BEGIN EXECUTE 'DROP TABLE onceward.outbox_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD'); END $$`)
	verdicts := check.Run(t.Context(), cfg, nil)
	v := named(t, verdicts, "partitions of today and ahead")
	require.Equal(t, check.Failed, v.Status)
	require.Contains(t, v.Detail, "every Enqueue fails")
	require.Equal(t, check.OK, named(t, verdicts, "partitions of the outbox").Status, "there are others")
}

// What PostgreSQL 17 and 18 can be set to is looked at where it exists.
func TestStandbysOfTheSlot(t *testing.T) {
	for version, want := range map[string]check.Status{"15": check.OK, "18": check.OK} {
		pool := testdb.New(t, version)
		cfg := config(pool.Config().ConnString(), "127.0.0.1:1")
		for _, v := range check.Run(t.Context(), cfg, nil) {
			if v.Name == "standbys of the slot" {
				require.Equal(t, want, v.Status, v.Detail)
			}
		}
	}
}
