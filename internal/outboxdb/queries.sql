-- name: LoadRelayState :one
-- LoadRelayState reads the whole state of the relay that owns the slot.
SELECT * FROM onceward.relay_state WHERE slot = @slot;

-- name: OtherRelays :many
-- OtherRelays lists what has run with another slot.
SELECT relay, slot, publication FROM onceward.relay_state WHERE slot <> @slot ORDER BY slot;

-- name: InsertRelayState :execrows
-- InsertRelayState writes the first state of a relay. 0 rows: the slot has one already.
INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, mode, publication, publication_catalog)
VALUES (@slot, @relay, @database, @system_identifier, @timeline, @confirmed_lsn, @mode, @publication, @publication_catalog)
ON CONFLICT DO NOTHING;

-- name: BumpEpoch :one
-- BumpEpoch starts a session that owns the slot: every session with a smaller epoch is fenced from now on. A relay that was renamed and kept its slot has its new name here.
UPDATE onceward.relay_state
SET epoch = epoch + 1, relay = @relay, updated_at = pg_catalog.clock_timestamp()
WHERE slot = @slot
RETURNING *;

-- name: SaveCheckpoint :one
-- SaveCheckpoint moves the durable checkpoint. No row: the session was fenced, or the position would go backwards.
UPDATE onceward.relay_state
SET confirmed_lsn = @confirmed_lsn, checkpoint = @checkpoint, tick = tick + 1, updated_at = pg_catalog.clock_timestamp()
WHERE slot = @slot AND epoch = @epoch AND confirmed_lsn <= @confirmed_lsn
RETURNING tick;

-- name: TakeSnapshot :one
-- TakeSnapshot takes a snapshot and, in the same statement, reads what is known of the publication: oid, content and xmin of its row,
-- oid and xmin of the rows that put the outbox, the replays and the controls into it. Rows of these tables that were written while any was
-- another may not have been sent: an event, or an order of the operator that looks carried out. Other tables do not matter.
-- So does a leaf of the outbox that is not logged: nothing of it is sent. What the relay knows is read with it: `partitions adopt`
-- changes that together with the transactions that the snapshot then sees.
WITH RECURSIVE t (leaf, short) AS (
  SELECT i.inhrelid, i.xmin::text::bigint FROM pg_catalog.pg_inherits i WHERE i.inhparent = 'onceward.outbox'::regclass
  UNION ALL SELECT i.inhrelid, i.xmin::text::bigint FROM t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.leaf
)
SELECT pg_catalog.pg_current_snapshot()::text AS snapshot, pg_catalog.clock_timestamp()::timestamptz AS taken_at,
  (COALESCE((SELECT pg_catalog.format('publication %s %s%s%s%s%s%s', p.oid, p.pubinsert::int, p.pubupdate::int, p.pubdelete::int,
      p.pubtruncate::int, p.pubviaroot::int, p.puballtables::int)
    || (SELECT pg_catalog.string_agg(pg_catalog.format(' %s %s %s', c.relname, r.oid, r.xmin), '' ORDER BY c.relname)
      FROM pg_catalog.pg_publication_rel r
      JOIN pg_catalog.pg_class c ON c.oid = r.prrelid AND c.relname IN ('outbox', 'replays', 'controls')
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'onceward'
      WHERE r.prpubid = p.oid)
    || pg_catalog.format(' xmin %s', p.xmin)
    FROM pg_catalog.pg_publication p WHERE p.pubname = @publication::text), 'none')
  || COALESCE((SELECT pg_catalog.string_agg(pg_catalog.format(' unlogged %s', c.relname), '' ORDER BY c.relname)
    FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relpersistence <> 'p'
    WHERE i.inhparent = 'onceward.outbox'::regclass), ''))::text AS publication_catalog,
  COALESCE((SELECT r.publication_catalog FROM onceward.relay_state r WHERE r.slot = @slot), '')::text AS known_catalog,
  ARRAY(SELECT t.leaf::bigint << 32 | t.short FROM t ORDER BY 1)::bigint[] AS attachings;

-- name: SavePublicationCatalog :execrows
-- SavePublicationCatalog remembers what is known of the publication. 0 rows: the session was fenced.
UPDATE onceward.relay_state SET publication_catalog = @publication_catalog, updated_at = pg_catalog.clock_timestamp()
WHERE slot = @slot AND epoch = @epoch;

-- name: SavePublished :execrows
-- SavePublished writes the published snapshot: every transaction visible in it has ended, but for letters and gaps. 0 rows: the session was fenced.
WITH owner AS (SELECT r.slot FROM onceward.relay_state r WHERE r.slot = @slot AND r.epoch = @epoch FOR SHARE)
INSERT INTO onceward.published_snapshots AS p (slot, snapshot, taken_at, attachings) SELECT owner.slot, @snapshot::pg_snapshot, @taken_at, @attachings FROM owner
ON CONFLICT (slot) DO UPDATE SET snapshot = excluded.snapshot, taken_at = excluded.taken_at, attachings = excluded.attachings;

-- name: SaveTimeline :execrows
-- SaveTimeline follows the server to a timeline that holds the checkpoint. 0 rows: the session was fenced.
UPDATE onceward.relay_state SET timeline = @timeline, updated_at = pg_catalog.clock_timestamp()
WHERE slot = @slot AND epoch = @epoch;

-- name: SlotHealth :one
-- SlotHealth says what the slot keeps of the log, and the oldest open transaction that is not the relay's own, which is what pins it when
-- the relay is up to date. Of who reads from it and waits for standbys it says where that stands; of one that leads it on, and to a role without pg_monitor, where it was confirmed.
SELECT COALESCE(s.wal_status, 'lost')::text AS wal_status,
  COALESCE(pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), s.restart_lsn), 0)::bigint AS retained_bytes,
  COALESCE(pg_catalog.pg_wal_lsn_diff(s.confirmed_flush_lsn, s.restart_lsn), 0)::bigint AS pinned_bytes,
  COALESCE(pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), s.confirmed_flush_lsn), 0)::bigint AS lag_bytes,
  COALESCE(s.safe_wal_size, -1)::bigint AS safe_bytes,
  COALESCE(x.who, '')::text AS oldest_transaction,
  COALESCE(EXTRACT(epoch FROM pg_catalog.clock_timestamp() - x.since), 0)::float8 AS oldest_seconds,
  COALESCE((SELECT COALESCE(r.sent_lsn, s.confirmed_flush_lsn) FROM pg_catalog.pg_stat_activity a LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = a.pid
    WHERE a.pid = s.active_pid AND a.wait_event = 'WaitForStandbyConfirmation')::text, '')::text AS awaits_standbys
FROM pg_catalog.pg_replication_slots s
LEFT JOIN LATERAL (
  SELECT o.who, o.since FROM (
    SELECT pg_catalog.format('pid %s, role %s, application %s, %s', a.pid, a.usename, a.application_name, a.state) AS who, a.xact_start AS since
    FROM pg_catalog.pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND a.application_name <> 'onceward relay ' || s.slot_name
    UNION ALL
    SELECT pg_catalog.format('prepared transaction %s of role %s', p.gid, p.owner), p.prepared FROM pg_catalog.pg_prepared_xacts p
  ) o WHERE o.since IS NOT NULL ORDER BY o.since LIMIT 1
) x ON true
WHERE s.slot_name = @slot::text;

-- name: RelayStates :many
-- RelayStates lists every relay of this database.
SELECT * FROM onceward.relay_state ORDER BY relay, slot;

-- name: FindOutboxRow :one
-- FindOutboxRow reads one event.
SELECT * FROM onceward.outbox WHERE id = @id;

-- name: IsIn :one
-- IsIn says whether one of the tables holds an event.
SELECT EXISTS (SELECT FROM onceward.outbox o WHERE o.id = @id AND o.tableoid = ANY(@tables::oid[]));

-- name: AccountOf :many
-- AccountOf says for every relay in which state an event is; known is false before the relay's first start has ended.
SELECT a.slot::text AS slot, a.relay::text AS relay, a.state::text AS state, g.gap_id, (p.slot IS NOT NULL)::boolean AS known, p.taken_at,
  (r.system_identifier <> (SELECT c.system_identifier::text FROM pg_catalog.pg_control_system() c (control, catalog, system_identifier, modified)))::boolean AS moved
FROM onceward.account(@id, @tx_id, @seq) AS a (slot, relay, state, gap_id, snapshot_at)
JOIN onceward.relay_state r ON r.slot = a.slot
LEFT JOIN onceward.published_snapshots p ON p.slot = a.slot
LEFT JOIN onceward.gaps g ON g.gap_id = a.gap_id
ORDER BY 2, 1;

-- name: DeadLettersByID :many
-- DeadLettersByID lists the letters of an event or of a replay, one per slot at most.
SELECT slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, position, error_class, error, attempts,
  first_at, last_at, state, decided_by, decided_why, edited_at
FROM onceward.dead_letters WHERE letter_id = ANY(@ids::uuid[]) ORDER BY slot, first_at;

-- name: ReplaysOfEvent :many
-- ReplaysOfEvent lists the orders to publish an event again, oldest first, with the slots of the relays with which they wait for their route.
SELECT r.replay_id, r.namespace, r.mode, r.replay_group, r.topic, r.reason, r.requested_by, r.requested_at,
  ARRAY(SELECT l.slot FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane WHERE w.id = r.replay_id ORDER BY l.slot)::text[] AS waits_in
FROM onceward.replays r WHERE r.id = @id ORDER BY r.seq;

-- name: DeadLettersByState :many
-- DeadLettersByState counts letters.
SELECT slot, state, pg_catalog.count(*) AS letters FROM onceward.dead_letters GROUP BY slot, state ORDER BY slot, state;

-- name: HeldLanes :many
-- HeldLanes lists what is held, the longest held first, with how many events (or replays) wait, how many orders about letters, and the
-- first of the replays to a topic.
SELECT l.slot, l.namespace, l.aggregate_type, l.topic, l.held_at, (n.items - o.orders)::bigint AS events, o.orders,
  COALESCE(f.replay_id, '00000000-0000-0000-0000-000000000000')::uuid AS replay_id, COALESCE(f.namespace, '')::text AS replay_namespace
FROM onceward.lanes l
CROSS JOIN LATERAL (SELECT pg_catalog.count(*) AS items FROM onceward.waiting w WHERE w.lane = l.id) n
CROSS JOIN LATERAL (SELECT pg_catalog.count(*) AS orders FROM onceward.waiting_copies c WHERE c.lane = l.id AND c.kind = 'control') o
LEFT JOIN LATERAL (SELECT r.replay_id, r.namespace FROM onceward.waiting w JOIN onceward.replays r ON r.replay_id = w.id
  WHERE w.lane = l.id AND l.topic <> '' ORDER BY w.position, w.ordinal LIMIT 1) f ON true
ORDER BY l.id LIMIT @row_limit::int;

-- name: Slots :many
-- Slots lists the logical slots of this database, with what they cost, and who holds them: strange is a session that is of no relay of
-- the slot. A slot whose WAL is gone has wal_status lost and 0 bytes.
SELECT s.slot_name::text AS slot, COALESCE(s.plugin::text, '')::text AS plugin, s.active::boolean AS active, s.active_pid, s.wal_status,
  COALESCE(s.confirmed_flush_lsn::text, '')::text AS confirmed_flush_lsn,
  COALESCE(pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), s.restart_lsn)::bigint, 0)::bigint AS retained_bytes,
  COALESCE(pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), s.confirmed_flush_lsn)::bigint, 0)::bigint AS lag_bytes,
  COALESCE(a.application_name <> pg_catalog.left('onceward relay ' || s.slot_name, 63), false)::boolean AS strange,
  COALESCE(a.application_name, '')::text AS application, COALESCE(a.usename, '')::text AS role
FROM pg_catalog.pg_replication_slots s LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
WHERE s.database = pg_catalog.current_database() AND s.slot_type = 'logical'
ORDER BY s.slot_name;

-- name: OutboxEstimate :one
-- OutboxEstimate is the planner's row count of the outbox, summed over its partitions. A partition that was never analyzed counts 0; -1: none was.
SELECT CASE WHEN pg_catalog.bool_or(c.reltuples >= 0) THEN pg_catalog.sum(GREATEST(c.reltuples, 0)) ELSE -1 END::bigint AS rows
FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'onceward.outbox'::regclass;
