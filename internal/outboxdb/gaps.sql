-- What a relay cannot prove that it published, and what operators decide about it.

-- name: Began :one
-- Began says whether the first start of a relay has ended: it has a published snapshot, its own or that of where it began.
SELECT EXISTS (SELECT FROM onceward.published_snapshots p WHERE p.slot = @slot)::boolean AS began;

-- name: AssignTransaction :one
-- AssignTransaction gives out a transaction id, and commits it.
SELECT pg_catalog.pg_current_xact_id() AS xid;

-- name: PassedBy :one
-- PassedBy says whether every transaction up to the given one has ended, to be seen by everybody.
SELECT (pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot()) > @xid::xid8)::boolean AS passed;

-- name: OpenTransactions :many
-- OpenTransactions names the oldest transactions of the cluster that have written and not ended: open, prepared, or waiting for a standby.
SELECT o.who::text AS who FROM (
  SELECT pg_catalog.format('pid %s of role %s in database %s (%s), %s', a.pid, a.usename, a.datname, a.application_name,
      CASE WHEN a.wait_event = 'SyncRep' THEN 'whose commit waits for its standby' ELSE COALESCE('state ' || a.state, 'whose state this role may not see') END) AS who,
    pg_catalog.age(a.backend_xid) AS age
  FROM pg_catalog.pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_catalog.pg_backend_pid()
  UNION ALL
  SELECT pg_catalog.format('prepared transaction %s of role %s in database %s', p.gid, p.owner, p.database), pg_catalog.age(p.transaction) FROM pg_catalog.pg_prepared_xacts p
) o ORDER BY o.age DESC LIMIT 3;

-- name: CountOutbox :one
-- CountOutbox counts the committed events.
SELECT pg_catalog.count(*) FROM onceward.outbox;

-- name: CountGap :one
-- CountGap counts the events that are visible in one snapshot and not in the other, without dead letters and what waits.
SELECT pg_catalog.count(*) FROM onceward.outbox o
WHERE o.tx_id >= pg_catalog.pg_snapshot_xmin(@from_snapshot::pg_snapshot) AND o.tx_id < pg_catalog.pg_snapshot_xmax(@to_snapshot::pg_snapshot)
  AND pg_catalog.pg_visible_in_snapshot(o.tx_id, @to_snapshot::pg_snapshot) AND NOT pg_catalog.pg_visible_in_snapshot(o.tx_id, @from_snapshot::pg_snapshot)
  AND NOT EXISTS (SELECT FROM onceward.dead_letters d WHERE d.slot = @slot AND d.letter_id = o.id)
  AND NOT EXISTS (SELECT FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane WHERE l.slot = @slot AND w.id = o.id);

-- name: ReplaysOfGap :many
-- ReplaysOfGap lists the first orders to replay that lay in a gap, without dead letters and what waits. No repair publishes them.
SELECT r.replay_id, r.id, r.namespace, r.requested_by, r.requested_at
FROM onceward.gaps g
JOIN onceward.replays r ON r.tx_id >= pg_catalog.pg_snapshot_xmin(g.from_snapshot) AND r.tx_id < pg_catalog.pg_snapshot_xmax(g.to_snapshot)
  AND pg_catalog.pg_visible_in_snapshot(r.tx_id, g.to_snapshot) AND NOT pg_catalog.pg_visible_in_snapshot(r.tx_id, g.from_snapshot)
WHERE g.gap_id = @gap_id AND NOT EXISTS (SELECT FROM onceward.dead_letters d WHERE d.slot = g.slot AND d.letter_id = r.replay_id)
  AND NOT EXISTS (SELECT FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane WHERE l.slot = g.slot AND w.id = r.replay_id)
ORDER BY r.seq LIMIT @row_limit::int;

-- name: LastPublished :one
-- LastPublished returns the last published snapshot. No row: the relay has none.
SELECT p.snapshot::text AS snapshot FROM onceward.published_snapshots p WHERE p.slot = @slot;

-- name: InsertGap :exec
-- InsertGap writes a gap down.
INSERT INTO onceward.gaps (gap_id, slot, cause, detail, from_snapshot, to_snapshot, events, state)
VALUES (@gap_id, @slot, @cause, @detail, @from_snapshot::pg_snapshot, @to_snapshot::pg_snapshot, @events, @state);

-- name: BeginAnew :execrows
-- BeginAnew takes the slot's position for the checkpoint, and the server and the publication as they are now. 0 rows: the session was fenced,
-- or what is known of the publication is no longer what was read with the gap's end. The mode is idempotent until the session that follows has written the checkpoint to where its mode keeps it.
-- Nothing beyond the position counts as ended any more, also where it is the one before: orders that waited are read again.
-- The count of letters is raised to what is known of it, so that nobody misses them again; but not while a gap may be repaired still: by the
-- letters that the database lacks the next session sees that what Kafka says of that repair is of a history that is over.
UPDATE onceward.relay_state SET confirmed_lsn = @confirmed_lsn, checkpoint = NULL, timeline = @timeline, tick = GREATEST(tick, @tick::bigint) + 1, mode = 'idempotent',
  dead_letters = CASE WHEN EXISTS (SELECT FROM onceward.gaps g WHERE g.slot = @slot AND g.state <> 'repaired') THEN dead_letters
    ELSE GREATEST(dead_letters, @letters::bigint) END, publication_catalog = @publication_catalog, kafka_gap = false, updated_at = pg_catalog.clock_timestamp()
WHERE slot = @slot AND epoch = @epoch AND COALESCE(publication_catalog, '') = @known_catalog::text;

-- name: GapsOfSlot :many
-- GapsOfSlot lists the gaps of a relay that are not over, in the order of what is in them: one that was found later may lie before.
SELECT g.gap_id, g.cause, g.detail, g.from_snapshot::text AS from_snapshot, g.to_snapshot::text AS to_snapshot, g.events, g.state, g.cursor, g.found_at
FROM onceward.gaps g WHERE g.slot = @slot AND g.state IN ('open', 'repairing')
ORDER BY pg_catalog.pg_snapshot_xmax(g.to_snapshot), pg_catalog.pg_snapshot_xmin(g.to_snapshot), g.found_at, g.gap_id;

-- name: LastGap :one
-- LastGap returns the end of the last gap: the stream leaves out what is visible in it. No row: there was none.
SELECT g.to_snapshot::text AS to_snapshot FROM onceward.gaps g WHERE g.slot = @slot
ORDER BY pg_catalog.pg_snapshot_xmax(g.to_snapshot) DESC, pg_catalog.pg_snapshot_xmin(g.to_snapshot) DESC, g.found_at DESC LIMIT 1;

-- name: MoveGap :execrows
-- MoveGap says that a repair has come so far; done ends it. 0 rows: the session was fenced.
UPDATE onceward.gaps g SET cursor = GREATEST(g.cursor, @cursor::bigint), state = CASE WHEN @done::boolean THEN 'repaired' ELSE g.state END,
  repaired_at = CASE WHEN @done::boolean THEN pg_catalog.clock_timestamp() END
WHERE g.gap_id = @gap_id AND EXISTS (SELECT FROM onceward.relay_state r WHERE r.slot = g.slot AND r.epoch = @epoch FOR SHARE);

-- name: ListGaps :many
-- ListGaps lists the gaps in the given states, oldest first; none: of all states. Replays counts what ReplaysOfGap lists.
SELECT g.gap_id, g.slot, COALESCE(s.relay, '')::text AS relay, g.cause, g.detail, g.events, g.state, g.cursor, g.found_at, g.repaired_at, g.decided_by, g.decided_why, g.decided_at,
  g.from_snapshot::text AS from_snapshot, g.to_snapshot::text AS to_snapshot, n.replays
FROM onceward.gaps g LEFT JOIN onceward.relay_state s ON s.slot = g.slot
CROSS JOIN LATERAL (SELECT pg_catalog.count(*) AS replays FROM onceward.replays r
  WHERE r.tx_id >= pg_catalog.pg_snapshot_xmin(g.from_snapshot) AND r.tx_id < pg_catalog.pg_snapshot_xmax(g.to_snapshot)
  AND pg_catalog.pg_visible_in_snapshot(r.tx_id, g.to_snapshot) AND NOT pg_catalog.pg_visible_in_snapshot(r.tx_id, g.from_snapshot)
  AND NOT EXISTS (SELECT FROM onceward.dead_letters d WHERE d.slot = g.slot AND d.letter_id = r.replay_id)
  AND NOT EXISTS (SELECT FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane WHERE l.slot = g.slot AND w.id = r.replay_id)) n
WHERE (pg_catalog.cardinality(@states::text[]) = 0 OR g.state = ANY(@states::text[])) AND (sqlc.narg(gap_id)::uuid IS NULL OR g.gap_id = sqlc.narg(gap_id))
ORDER BY g.found_at, g.gap_id;

-- name: EventsOfGap :many
-- EventsOfGap lists the first events of a gap in the order in which a repair publishes them; what a repair has published is left out, dead letters and what waits.
SELECT o.id, o.namespace, o.aggregate_type, o.aggregate_id, o.event_type, o.created_at, o.tx_id, o.seq
FROM onceward.gaps g
JOIN onceward.outbox o ON o.tx_id >= pg_catalog.pg_snapshot_xmin(g.from_snapshot) AND o.tx_id < pg_catalog.pg_snapshot_xmax(g.to_snapshot)
  AND pg_catalog.pg_visible_in_snapshot(o.tx_id, g.to_snapshot) AND NOT pg_catalog.pg_visible_in_snapshot(o.tx_id, g.from_snapshot)
WHERE g.gap_id = @gap_id AND (o.seq > g.cursor OR g.cursor = '-9223372036854775808') AND NOT EXISTS (SELECT FROM onceward.dead_letters d WHERE d.slot = g.slot AND d.letter_id = o.id)
  AND NOT EXISTS (SELECT FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane WHERE l.slot = g.slot AND w.id = o.id)
ORDER BY o.seq, o.id LIMIT @row_limit::int;

-- name: CountEventsOfGap :one
-- CountEventsOfGap counts what EventsOfGap lists.
SELECT pg_catalog.count(*) FROM onceward.gaps g
JOIN onceward.outbox o ON o.tx_id >= pg_catalog.pg_snapshot_xmin(g.from_snapshot) AND o.tx_id < pg_catalog.pg_snapshot_xmax(g.to_snapshot)
  AND pg_catalog.pg_visible_in_snapshot(o.tx_id, g.to_snapshot) AND NOT pg_catalog.pg_visible_in_snapshot(o.tx_id, g.from_snapshot)
WHERE g.gap_id = @gap_id AND (o.seq > g.cursor OR g.cursor = '-9223372036854775808') AND NOT EXISTS (SELECT FROM onceward.dead_letters d WHERE d.slot = g.slot AND d.letter_id = o.id)
  AND NOT EXISTS (SELECT FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane WHERE l.slot = g.slot AND w.id = o.id);

-- name: CountRepairedOfGap :one
-- CountRepairedOfGap counts the events of a gap that its repair has passed and that still have a row.
SELECT pg_catalog.count(*) FROM onceward.gaps g
JOIN onceward.outbox o ON o.tx_id >= pg_catalog.pg_snapshot_xmin(g.from_snapshot) AND o.tx_id < pg_catalog.pg_snapshot_xmax(g.to_snapshot)
  AND pg_catalog.pg_visible_in_snapshot(o.tx_id, g.to_snapshot) AND NOT pg_catalog.pg_visible_in_snapshot(o.tx_id, g.from_snapshot)
WHERE g.gap_id = @gap_id AND o.seq <= @cursor::bigint;

-- name: DecideGap :exec
-- DecideGap says what becomes of a gap, and writes it down. It fails when the gap is not in the state that the operator saw.
SELECT onceward.decide_gap(@gap_id::uuid, @seen::text, @decision::text, @reason::text);

-- name: RecordAction :exec
-- RecordAction writes down what an operator decided.
INSERT INTO onceward.relay_actions (action, slot, target, reason) VALUES (@action, @slot, @target, @reason);

-- name: RetireRelay :one
-- RetireRelay forgets a relay that is gone for good, and writes it down. It returns how many dead letters went with it, and fails while the slot exists.
SELECT onceward.retire_relay(@slot::text, @reason::text)::bigint AS letters;

-- name: WaitingLetters :one
-- WaitingLetters counts the dead letters of a relay that nobody has decided about.
SELECT pg_catalog.count(*) FROM onceward.dead_letters d WHERE d.slot = @slot AND d.state IN ('open', 'retrying');

-- name: RetireGaps :execrows
-- RetireGaps forgets the gaps of a relay: they say nothing of this database's transactions.
DELETE FROM onceward.gaps WHERE slot = @slot;

-- name: OutboxWriters :one
-- OutboxWriters names the transactions that have written to the outbox and are open, for which LockOutbox waits, and bounds how long it does:
-- behind one who waits for this lock all writers wait.
SELECT pg_catalog.set_config('lock_timeout', '5s', true)::text AS bound,
  COALESCE((SELECT pg_catalog.string_agg(COALESCE('pid ' || l.pid, 'a prepared one'), ', ' ORDER BY l.pid) FROM pg_catalog.pg_locks l
    WHERE l.locktype = 'relation' AND l.relation = 'onceward.outbox'::regclass AND l.granted AND l.mode = 'RowExclusiveLock'
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())), '')::text AS writers;

-- name: LockOutbox :exec
-- LockOutbox keeps producers from writing until the end of the transaction. It waits for those that have written.
LOCK TABLE onceward.outbox IN SHARE ROW EXCLUSIVE MODE;

-- name: SystemsOfRelays :many
-- SystemsOfRelays lists the relays, on which system the state of each was written, and whether it is this one.
SELECT r.slot, r.relay, c.system_identifier::text AS here, (r.system_identifier <> c.system_identifier::text)::boolean AS moved
FROM onceward.relay_state r, pg_catalog.pg_control_system() c (control, catalog, system_identifier, modified) ORDER BY r.relay, r.slot;

-- name: StreamingSlot :one
-- StreamingSlot returns one of the slots of this database that a process streams from, or nothing.
SELECT COALESCE((SELECT p.slot_name FROM pg_catalog.pg_replication_slots p WHERE p.slot_name = ANY(@slots::text[]) AND p.database = pg_catalog.current_database() AND p.active LIMIT 1), '')::text AS slot;

-- name: AdoptRelays :execrows
-- AdoptRelays makes this system that of the relays, at a checkpoint before everything: at its next start each finds a gap. Whoever runs by
-- their names is fenced, and one that starts waits for the end of the transaction.
UPDATE onceward.relay_state r SET system_identifier = c.system_identifier::text, timeline = p.timeline_id, confirmed_lsn = '0/1', epoch = r.epoch + 1, updated_at = pg_catalog.clock_timestamp()
FROM pg_catalog.pg_control_system() c (control, catalog, system_identifier, modified), (SELECT pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) AS name) w,
  LATERAL (SELECT ('x' || pg_catalog.left(w.name, 8))::bit(32)::int AS timeline_id) p
WHERE r.slot = ANY(@slots::text[]);

-- name: AdoptLetters :exec
-- AdoptLetters puts the letters that wait before everything of this system's log, and takes retries back, as TakeBackLetters does.
UPDATE onceward.dead_letters d SET position = '0/1', state = 'open', retry_position = NULL, retry_index = CASE WHEN EXISTS (
    SELECT FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane WHERE l.slot = d.slot AND w.id = d.control_id) THEN d.retry_index END
WHERE d.slot = ANY(@slots::text[]) AND d.state IN ('open', 'retrying');

-- name: AdoptWaiting :exec
-- AdoptWaiting puts what waits, in its order, before everything of this system's log, with the transactions that its rows have here.
-- Of a row that is gone it is one that has ended. A second time the place is another, so that no two meet.
WITH r AS (
  SELECT w.lane, w.position, w.ordinal, pg_catalog.row_number() OVER (PARTITION BY w.lane ORDER BY w.position, w.ordinal)::integer AS rank,
    COALESCE(o.tx_id, '3'::xid8) AS tx_id,
    CASE WHEN EXISTS (SELECT FROM onceward.waiting a WHERE a.position = '0/1') THEN '0/2'::pg_lsn ELSE '0/1' END AS place
  FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane LEFT JOIN onceward.outbox o ON o.id = w.id WHERE l.slot = ANY(@slots::text[])
), c AS (
  UPDATE onceward.waiting_copies k SET position = r.place, ordinal = r.rank FROM r WHERE k.lane = r.lane AND k.position = r.position AND k.ordinal = r.ordinal
)
UPDATE onceward.waiting k SET position = r.place, ordinal = r.rank, tx_id = r.tx_id FROM r WHERE k.lane = r.lane AND k.position = r.position AND k.ordinal = r.ordinal;

-- name: EndReleases :exec
-- EndReleases forgets the releases that are under way: what waits starts again, whatever a checkpoint says that they had ended.
DELETE FROM onceward.releases WHERE slot = ANY(@slots::text[]);

-- name: IsNoCopy :one
-- IsNoCopy says whether an event, or what a relay has published, is of a transaction that this cluster has not begun, or whether less
-- than half of the partitions that a relay has looked at are here by their oids, which a dump gives anew and may meet by chance.
SELECT (EXISTS (SELECT FROM onceward.outbox o WHERE o.tx_id >= n.next)
  OR EXISTS (SELECT FROM onceward.published_snapshots p WHERE p.slot = ANY(@slots::text[]) AND (pg_catalog.pg_snapshot_xmax(p.snapshot) > n.next
    OR pg_catalog.cardinality(p.attachings) > 2 * (SELECT pg_catalog.count(*) FROM pg_catalog.pg_partition_tree('onceward.outbox') i
      WHERE i.relid::oid::bigint IN (SELECT k.k >> 32 & 4294967295 FROM pg_catalog.unnest(p.attachings) k (k))))))::boolean AS ahead
FROM (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()) AS next) n;

-- name: AdoptRows :execrows
-- AdoptRows gives every event the present transaction of this system.
UPDATE onceward.outbox SET tx_id = pg_catalog.pg_current_xact_id();

-- name: LastInOrder :one
-- LastInOrder finds the event of the greatest seq, and the partition that holds it.
SELECT o.namespace, o.id, o.seq, (SELECT c.relname FROM pg_catalog.pg_class c WHERE c.oid = o.tableoid)::text AS leaf
FROM onceward.outbox o ORDER BY o.seq DESC LIMIT 1;

-- name: AdoptSequence :exec
-- AdoptSequence lets new events have a greater seq than all that are there: logical replication does not carry sequences. The caller holds LockOutbox.
SELECT pg_catalog.setval(s.sequence, m.last) FROM (SELECT pg_catalog.pg_get_serial_sequence('onceward.outbox', 'seq')::regclass AS sequence) s,
  (SELECT pg_catalog.max(o.seq) AS last FROM onceward.outbox o) m
WHERE m.last > COALESCE(pg_catalog.pg_sequence_last_value(s.sequence), 0);

-- name: RulesNotValid :many
-- RulesNotValid returns the statements that drop the CHECKs which old rows may break and those that add them again, the table's own before
-- those of its leaves: a dump gives each leaf its own. Leaves that retention has detached and not dropped yet are among them.
SELECT pg_catalog.format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I', c.conrelid::regclass, c.conname)::text AS lift,
  (CASE WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_constraint r
      WHERE r.conrelid = 'onceward.outbox'::regclass AND r.conname = c.conname AND r.oid <> c.oid AND NOT r.convalidated)
    OR NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.conrelid) AND c.conrelid <> 'onceward.outbox'::regclass
    THEN pg_catalog.format('ALTER TABLE %s ADD CONSTRAINT %I %s', c.conrelid::regclass, c.conname, pg_catalog.pg_get_constraintdef(c.oid)) ELSE '' END)::text AS put_back
FROM pg_catalog.pg_constraint c
WHERE c.contype = 'c' AND NOT c.convalidated AND (c.conrelid = 'onceward.outbox'::regclass
  OR c.conrelid IN (SELECT i.inhrelid FROM pg_catalog.pg_inherits i WHERE i.inhparent = 'onceward.outbox'::regclass)
  OR c.conrelid IN (SELECT t.tgrelid FROM pg_catalog.pg_trigger t WHERE t.tgname = 'onceward_closed' AND t.tgfoid = 'onceward.refuse_insert'::regproc))
ORDER BY c.conrelid <> 'onceward.outbox'::regclass, c.oid;

-- name: CloseAnew :many
-- CloseAnew returns the statements that say of closed leaves that the present transaction closed them: what retention wrote there is a
-- transaction of another system. So are those of the rows of a leaf that was detached and not dropped yet, which a dump
-- leaves as a table beside the outbox. The caller holds LockOutbox, so that no writer of them is open.
SELECT (CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhrelid = t.tgrelid) THEN ''
    ELSE pg_catalog.format('UPDATE %s SET tx_id = pg_catalog.pg_current_xact_id(); ', t.tgrelid::regclass) END
  || pg_catalog.format('COMMENT ON TRIGGER onceward_closed ON %s IS %L', t.tgrelid::regclass,
    pg_catalog.format('closed by outbox retention in transaction %s at %s', pg_catalog.pg_current_xact_id(),
      pg_catalog.to_char(pg_catalog.now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
      || COALESCE(pg_catalog.substring(pg_catalog.obj_description(t.oid, 'pg_trigger'), ', and detached by it$'), '')))::text AS statement
FROM pg_catalog.pg_trigger t WHERE t.tgname = 'onceward_closed' AND t.tgfoid = 'onceward.refuse_insert'::regproc;

-- name: CountLeftOut :one
-- CountLeftOut counts the events that are there and neither are letters nor wait, and those of them that a relay leaves out because they are
-- older than it or were given up.
SELECT pg_catalog.count(DISTINCT o.id) AS events, pg_catalog.count(DISTINCT o.id) FILTER (WHERE g.state = 'before') AS before,
  pg_catalog.count(DISTINCT o.id) FILTER (WHERE g.state = 'accepted') AS given_up
FROM onceward.outbox o LEFT JOIN onceward.gaps g ON g.slot = ANY(@slots::text[]) AND g.state IN ('before', 'accepted') AND (o.seq > g.cursor OR g.cursor = '-9223372036854775808')
  AND pg_catalog.pg_visible_in_snapshot(o.tx_id, g.to_snapshot) AND NOT pg_catalog.pg_visible_in_snapshot(o.tx_id, g.from_snapshot)
WHERE NOT EXISTS (SELECT FROM onceward.dead_letters d WHERE d.slot = ANY(@slots::text[]) AND d.letter_id = o.id)
  AND NOT EXISTS (SELECT FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane AND l.slot = ANY(@slots::text[]) WHERE w.id = o.id);

-- name: AdoptSnapshots :exec
-- AdoptSnapshots says that nothing is proved published here.
UPDATE onceward.published_snapshots SET snapshot = '1:1:'::pg_snapshot, taken_at = pg_catalog.clock_timestamp() WHERE slot = ANY(@slots::text[]);

-- name: AdoptAttachings :exec
-- AdoptAttachings says that the relays have looked at each partition that is attached now. The caller holds LockOutbox.
WITH RECURSIVE t (leaf, short) AS (
  SELECT i.inhrelid, i.xmin::text::bigint FROM pg_catalog.pg_inherits i WHERE i.inhparent = 'onceward.outbox'::regclass
  UNION ALL SELECT i.inhrelid, i.xmin::text::bigint FROM t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.leaf
)
UPDATE onceward.published_snapshots SET attachings = ARRAY(SELECT t.leaf::bigint << 32 | t.short FROM t)
WHERE slot = ANY(@slots::text[]);

-- name: RowsOfGap :many
-- RowsOfGap reads events in the order of seq, those of one in that of id, the first in any case, further ones while their payloads and headers together are within the bytes.
SELECT o.* FROM onceward.outbox o
JOIN (SELECT s.id, pg_catalog.sum(s.size) OVER (ORDER BY s.seq, s.id) AS upto, pg_catalog.row_number() OVER (ORDER BY s.seq, s.id) AS n
  FROM (SELECT i.id, i.seq, COALESCE(pg_catalog.octet_length(i.payload), 0) + COALESCE(pg_catalog.octet_length(i.headers::text), 0) AS size FROM onceward.outbox i WHERE i.id = ANY(@ids::uuid[])) s) f ON f.id = o.id
WHERE f.n = 1 OR f.upto <= @bytes::bigint ORDER BY o.seq, o.id;

-- name: RelaysToLook :many
-- RelaysToLook lists the relays of this system with a partition whose attaching is not in their published snapshot: FilledLeaves of the others is empty, and dearer to ask.
WITH RECURSIVE t (leaf, short) AS (
  SELECT i.inhrelid, i.xmin::text::bigint FROM pg_catalog.pg_inherits i WHERE i.inhparent = 'onceward.outbox'::regclass
  UNION ALL SELECT i.inhrelid, i.xmin::text::bigint FROM t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.leaf
)
SELECT r.slot, r.relay FROM onceward.relay_state r JOIN onceward.published_snapshots p ON p.slot = r.slot
WHERE r.system_identifier = (SELECT c.system_identifier::text FROM pg_catalog.pg_control_system() c (control, catalog, system_identifier, modified))
  AND (p.attachings IS NULL OR EXISTS (SELECT FROM t WHERE NOT (t.leaf::bigint << 32 | t.short) = ANY(p.attachings)))
ORDER BY r.relay, r.slot;

-- name: FilledLeaves :many
-- FilledLeaves lists partitions, also those of partitions, whose attaching is not in the relay's published snapshot and that hold rows which are
-- never sent. Such are, of each attaching that is new:
--   covered  rows that the published snapshot sees: they were in the table before, and would be called published;
--   older    rows of transactions that began before it, unless the partition was made by the (sub)transaction that attached it;
--   same     rows of the attaching transaction itself, before it by their command; of a row of which a change was rolled back, or a partition of
--            which one was, the number is that command's: then all of the transaction count, and so do those that another one wrote anew, and
--            all where the number is 0: what a server replays from its log after a crash has no other;
--   foreign  rows of transactions that nobody has begun here;
--   within   the same where the attaching was in a subtransaction, whose transaction nobody can tell: rows of subtransactions count.
-- Rows of a transaction that began after the attaching one, and wrote them into the table before, are not told from those that were sent. A partition
-- that is being detached has that in its row of pg_inherits. Known are those that were attached in the published snapshot by another
-- transaction: pg_upgrade attaches what was attached. Where an earlier release has written no list, new is what had not ended for certain: a
-- subtransaction is in no snapshot.
WITH RECURSIVE t (leaf, short, command, touched, pending, low, high) AS (
  SELECT 'onceward.outbox'::regclass::oid, 0::bigint, 0::bigint, false, false,
    '00000000-0000-0000-0000-000000000000'::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid
  UNION ALL
  SELECT c.oid, i.xmin::text::bigint, i.cmin::text::bigint, i.xmax::text <> '0', t.pending OR i.inhdetachpending,
    CASE WHEN m.found[1] LIKE '''%' THEN pg_catalog.btrim(m.found[1], '''')::uuid ELSE t.low END,
    CASE WHEN m.found[2] LIKE '''%' THEN pg_catalog.btrim(m.found[2], '''')::uuid ELSE t.high END
  FROM t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.leaf JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
  CROSS JOIN LATERAL (SELECT pg_catalog.regexp_match(pg_catalog.pg_get_expr(c.relpartbound, c.oid),
    'FROM \((MINVALUE|''[0-9a-f-]{36}'')\) TO \((MAXVALUE|''[0-9a-f-]{36}'')\)') AS found) m
)
SELECT c.relname::text AS leaf, t.leaf::oid AS relid, t.low::uuid AS low, t.high::uuid AS high, v.covered::boolean AS covered,
  ARRAY(SELECT r.relid::oid FROM pg_catalog.pg_partition_tree(t.leaf) r WHERE r.isleaf)::oid[] AS tables,
  COALESCE(t.leaf::bigint IN (SELECT k.k >> 32 & 4294967295 FROM pg_catalog.unnest(p.attachings) k (k)), false)::boolean AS known
FROM onceward.published_snapshots p
CROSS JOIN t
JOIN pg_catalog.pg_class c ON c.oid = t.leaf
JOIN pg_catalog.pg_attribute f ON f.attrelid = t.leaf AND f.attnum = -6
CROSS JOIN LATERAL (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint AS next) n
CROSS JOIN LATERAL (SELECT (n.next >> 32 << 32 | t.short) - CASE WHEN t.short >= (n.next & 4294967295) THEN 4294967296 ELSE 0 END AS long,
  f.xmin::text::bigint = t.short AS made) w
CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM onceward.outbox o WHERE o.id >= t.low AND o.id < t.high
  AND o.tableoid IN (SELECT r.relid FROM pg_catalog.pg_partition_tree(t.leaf) r) AND pg_catalog.pg_visible_in_snapshot(o.tx_id, p.snapshot)) AS covered) v
WHERE p.slot = @slot AND NOT t.pending AND t.short > 2 AND w.long > 0
  AND CASE WHEN p.attachings IS NULL THEN w.long >= pg_catalog.pg_snapshot_xmin(p.snapshot)::text::bigint
    ELSE NOT (t.leaf::bigint << 32 | t.short) = ANY(p.attachings) END
  AND (v.covered OR EXISTS (SELECT FROM onceward.outbox o WHERE o.id >= t.low AND o.id < t.high
    AND o.tableoid IN (SELECT r.relid FROM pg_catalog.pg_partition_tree(t.leaf) r) AND (
      NOT w.made AND o.tx_id < w.long::text::xid8
      OR o.tx_id >= n.next::text::xid8
      OR o.tx_id = w.long::text::xid8 AND o.xmin::text::bigint <> t.short
      OR (o.tx_id = w.long::text::xid8 OR w.made AND o.tx_id < w.long::text::xid8 AND o.xmin::text::bigint >= t.short)
        AND (o.cmin::text::bigint <= t.command OR t.command = 0 OR t.touched OR o.xmax::text <> '0'))))
ORDER BY c.relname;

-- name: AdoptLeaf :execrows
-- AdoptLeaf gives the events of a partition the present transaction, also in what says that they wait for their route. The caller holds
-- LockOutbox, and ForgetCatalogs comes before it.
WITH w AS (
  UPDATE onceward.waiting k SET tx_id = pg_catalog.pg_current_xact_id()
  FROM onceward.outbox o WHERE o.id = k.id AND o.id >= @low AND o.id < @high AND k.tx_id = o.tx_id
    AND o.tableoid IN (SELECT r.relid FROM pg_catalog.pg_partition_tree(@relid::oid) r)
)
UPDATE onceward.outbox o SET tx_id = pg_catalog.pg_current_xact_id()
WHERE o.id >= @low AND o.id < @high AND o.tableoid IN (SELECT r.relid FROM pg_catalog.pg_partition_tree(@relid::oid) r);

-- name: ForgetCatalogs :many
-- ForgetCatalogs lets every relay find a gap at its next start: what it knows of the publication is another. Whoever runs is fenced: what it
-- has read has the transactions of before, and must not be written down to wait any more.
UPDATE onceward.relay_state SET publication_catalog = 'filled', epoch = epoch + 1, updated_at = pg_catalog.clock_timestamp() RETURNING slot;

-- name: SettleMoved :exec
-- SettleMoved ends the retries that the relays' checkpoints have passed.
UPDATE onceward.dead_letters d SET state = 'replayed', last_at = pg_catalog.clock_timestamp()
FROM onceward.relay_state r WHERE r.slot = ANY(@slots::text[]) AND d.slot = r.slot AND d.state = 'retrying' AND d.retry_index IS NOT NULL
  AND d.retry_position < r.confirmed_lsn;

-- name: CountLeaf :one
-- CountLeaf counts the events of a partition.
SELECT pg_catalog.count(*) FROM onceward.outbox o
WHERE o.id >= @low AND o.id < @high AND o.tableoid IN (SELECT r.relid FROM pg_catalog.pg_partition_tree(@relid::oid) r);
