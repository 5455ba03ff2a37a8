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
-- ListGaps lists the gaps in the given states, oldest first; none: of all states.
SELECT g.gap_id, g.slot, COALESCE(r.relay, '')::text AS relay, g.cause, g.detail, g.events, g.state, g.cursor, g.found_at, g.repaired_at, g.decided_by, g.decided_why, g.decided_at,
  g.from_snapshot::text AS from_snapshot, g.to_snapshot::text AS to_snapshot
FROM onceward.gaps g LEFT JOIN onceward.relay_state r ON r.slot = g.slot
WHERE (pg_catalog.cardinality(@states::text[]) = 0 OR g.state = ANY(@states::text[])) AND (sqlc.narg(gap_id)::uuid IS NULL OR g.gap_id = sqlc.narg(gap_id))
ORDER BY g.found_at, g.gap_id;

-- name: EventsOfGap :many
-- EventsOfGap lists the first events of a gap in the order in which a repair publishes them; what a repair has published is left out, dead letters and what waits.
SELECT o.id, o.namespace, o.aggregate_type, o.aggregate_id, o.event_type, o.created_at, o.tx_id, o.seq
FROM onceward.gaps g
JOIN onceward.outbox o ON o.tx_id >= pg_catalog.pg_snapshot_xmin(g.from_snapshot) AND o.tx_id < pg_catalog.pg_snapshot_xmax(g.to_snapshot)
  AND pg_catalog.pg_visible_in_snapshot(o.tx_id, g.to_snapshot) AND NOT pg_catalog.pg_visible_in_snapshot(o.tx_id, g.from_snapshot)
WHERE g.gap_id = @gap_id AND o.seq > g.cursor AND NOT EXISTS (SELECT FROM onceward.dead_letters d WHERE d.slot = g.slot AND d.letter_id = o.id)
  AND NOT EXISTS (SELECT FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane WHERE l.slot = g.slot AND w.id = o.id)
ORDER BY o.seq LIMIT @row_limit::int;

-- name: CountEventsOfGap :one
-- CountEventsOfGap counts what EventsOfGap lists.
SELECT pg_catalog.count(*) FROM onceward.gaps g
JOIN onceward.outbox o ON o.tx_id >= pg_catalog.pg_snapshot_xmin(g.from_snapshot) AND o.tx_id < pg_catalog.pg_snapshot_xmax(g.to_snapshot)
  AND pg_catalog.pg_visible_in_snapshot(o.tx_id, g.to_snapshot) AND NOT pg_catalog.pg_visible_in_snapshot(o.tx_id, g.from_snapshot)
WHERE g.gap_id = @gap_id AND o.seq > g.cursor AND NOT EXISTS (SELECT FROM onceward.dead_letters d WHERE d.slot = g.slot AND d.letter_id = o.id)
  AND NOT EXISTS (SELECT FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane WHERE l.slot = g.slot AND w.id = o.id);

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

-- name: LockOutbox :exec
-- LockOutbox keeps producers from writing until the end of the transaction. It waits for those that have written.
LOCK TABLE onceward.outbox IN SHARE ROW EXCLUSIVE MODE;

-- name: SystemsOfRelays :many
-- SystemsOfRelays lists the relays, on which system the state of each was written, and whether it is this one.
SELECT r.slot, r.relay, c.system_identifier::text AS here, (r.system_identifier <> c.system_identifier::text)::boolean AS moved
FROM onceward.relay_state r, pg_catalog.pg_control_system() c (control, catalog, system_identifier, modified) ORDER BY r.relay, r.slot;

-- name: StreamingSlot :one
-- StreamingSlot returns one of the slots that a process streams from, or nothing.
SELECT COALESCE((SELECT p.slot_name FROM pg_catalog.pg_replication_slots p WHERE p.slot_name = ANY(@slots::text[]) AND p.active LIMIT 1), '')::text AS slot;

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

-- name: TransactionsAhead :one
-- TransactionsAhead says whether an event, or what a relay has published, is of a transaction that this cluster has not begun:
-- then its transaction ids were not kept.
SELECT (EXISTS (SELECT FROM onceward.outbox o WHERE o.tx_id >= n.next)
  OR EXISTS (SELECT FROM onceward.published_snapshots p WHERE p.slot = ANY(@slots::text[]) AND pg_catalog.pg_snapshot_xmax(p.snapshot) > n.next))::boolean AS ahead
FROM (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()) AS next) n;

-- name: AdoptRows :execrows
-- AdoptRows gives every event the present transaction of this system.
UPDATE onceward.outbox SET tx_id = pg_catalog.pg_current_xact_id();

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
      pg_catalog.to_char(pg_catalog.now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))))::text AS statement
FROM pg_catalog.pg_trigger t WHERE t.tgname = 'onceward_closed' AND t.tgfoid = 'onceward.refuse_insert'::regproc;

-- name: CountLeftOut :one
-- CountLeftOut counts the events that are there, and those of them that a relay leaves out because they are older than it or were given up.
SELECT pg_catalog.count(DISTINCT o.id) AS events, pg_catalog.count(DISTINCT o.id) FILTER (WHERE a.state = 'before') AS before,
  pg_catalog.count(DISTINCT o.id) FILTER (WHERE a.state = 'given-up') AS given_up
FROM onceward.outbox o LEFT JOIN LATERAL onceward.account(o.id, o.tx_id, o.seq) a ON a.slot = ANY(@slots::text[]);

-- name: AdoptSnapshots :exec
-- AdoptSnapshots says that nothing is proved published here.
UPDATE onceward.published_snapshots SET snapshot = '1:1:'::pg_snapshot, leaves = NULL, attached = NULL, taken_at = pg_catalog.clock_timestamp()
WHERE slot = ANY(@slots::text[]);

-- name: AdoptAttachings :exec
-- AdoptAttachings says that the relays have looked at each partition that is attached now. The caller holds LockOutbox.
UPDATE onceward.published_snapshots SET attached = pg_catalog.pg_current_snapshot() WHERE slot = ANY(@slots::text[]);

-- name: RowsOfGap :many
-- RowsOfGap reads events in the order of seq, the first in any case, further ones while their payloads together are within the bytes.
SELECT o.* FROM onceward.outbox o
JOIN (SELECT s.id, pg_catalog.sum(s.size) OVER (ORDER BY s.seq) AS upto, pg_catalog.row_number() OVER (ORDER BY s.seq) AS n
  FROM (SELECT i.id, i.seq, COALESCE(pg_catalog.octet_length(i.payload), 0) AS size FROM onceward.outbox i WHERE i.id = ANY(@ids::uuid[])) s) f ON f.id = o.id
WHERE f.n = 1 OR f.upto <= @bytes::bigint ORDER BY o.seq;

-- name: FilledLeaves :many
-- FilledLeaves lists partitions that held rows when they were attached, as far as the relay's published snapshot does not see the attaching:
-- nothing of these rows is ever sent. A partition that was made by the transaction that attached it can hold only rows of that one. A row
-- is older than the attaching when its transaction began before it; rows of one that a later transaction brought in while the attaching one
-- was open already are not told from those that came by the table. A partition that is being detached has that in its row of pg_inherits. A row
-- of which a change was rolled back has the number of that command in place of its own: where that is the partition's, all rows of its
-- transaction count, and a row of the outbox counts itself. Known are those that were attached in the published snapshot by another
-- transaction: pg_upgrade attaches what was attached.
SELECT c.relname::text AS leaf, b.low::uuid AS low, b.high::uuid AS high, COALESCE(c.oid = ANY(p.leaves), false)::boolean AS known
FROM onceward.published_snapshots p
JOIN pg_catalog.pg_inherits i ON i.inhparent = 'onceward.outbox'::regclass
JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
JOIN pg_catalog.pg_attribute f ON f.attrelid = c.oid AND f.attnum = -6
CROSS JOIN LATERAL (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint AS next, i.xmin::text::bigint AS short) n
CROSS JOIN LATERAL (SELECT ((n.next >> 32 << 32 | n.short) - CASE WHEN n.short >= (n.next & 4294967295) THEN 4294967296 ELSE 0 END) AS long) w
CROSS JOIN LATERAL (SELECT pg_catalog.regexp_match(pg_catalog.pg_get_expr(c.relpartbound, c.oid), 'FROM \(''([^'']+)''\) TO \(''([^'']+)''\)') AS found) m
CROSS JOIN LATERAL (SELECT m.found[1]::uuid AS low, m.found[2]::uuid AS high) b
WHERE p.slot = @slot AND NOT i.inhdetachpending AND n.short > 2 AND w.long > 0
  AND NOT pg_catalog.pg_visible_in_snapshot(w.long::text::xid8, p.snapshot)
  AND (p.attached IS NULL OR NOT pg_catalog.pg_visible_in_snapshot(w.long::text::xid8, p.attached))
  AND (EXISTS (SELECT FROM onceward.outbox o WHERE o.id >= b.low AND o.id < b.high AND o.tx_id < w.long::text::xid8 AND f.xmin <> i.xmin)
    OR EXISTS (SELECT FROM onceward.outbox o WHERE o.id >= b.low AND o.id < b.high AND o.tx_id = w.long::text::xid8
      AND (o.cmin::text::bigint < i.cmin::text::bigint OR i.xmax::text <> '0' OR o.xmax::text <> '0')))
ORDER BY c.relname;

-- name: AdoptLeaf :execrows
-- AdoptLeaf gives the events of a partition the present transaction. Those that wait for their route have come by the stream, and are found
-- again by the transaction that they have. The caller holds LockOutbox.
UPDATE onceward.outbox o SET tx_id = pg_catalog.pg_current_xact_id()
WHERE o.id >= @low AND o.id < @high AND NOT EXISTS (SELECT FROM onceward.waiting w WHERE w.id = o.id);

-- name: ForgetCatalogs :many
-- ForgetCatalogs lets each relay find a gap at its next start: what it knows of the publication is another.
UPDATE onceward.relay_state SET publication_catalog = 'filled', updated_at = pg_catalog.clock_timestamp()
WHERE slot = ANY(@slots::text[]) RETURNING slot;

-- name: CountLeaf :one
-- CountLeaf counts the events of a partition.
SELECT pg_catalog.count(*) FROM onceward.outbox WHERE id >= @low AND id < @high;
