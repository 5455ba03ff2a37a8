-- The relay's statements on what is held. Places are compared as (position, ordinal): start of the commit record, ordinal in the transaction.

-- name: InsertLane :one
-- InsertLane begins to hold a lane.
INSERT INTO onceward.lanes (slot, namespace, aggregate_type, topic) VALUES (@slot, @namespace, @aggregate_type, @topic) RETURNING id;

-- name: InsertWaiting :execrows
-- InsertWaiting writes down what waits.
INSERT INTO onceward.waiting (lane, position, ordinal, tx_id, id)
SELECT w.lane, w.position::pg_lsn, w.ordinal, w.tx_id::xid8, w.id
FROM (SELECT pg_catalog.unnest(@lanes::integer[]) AS lane, pg_catalog.unnest(@positions::text[]) AS position, pg_catalog.unnest(@ordinals::integer[]) AS ordinal,
  pg_catalog.unnest(@tx_ids::text[]) AS tx_id, pg_catalog.unnest(@ids::uuid[]) AS id) w;

-- name: InsertWaitingCopy :exec
-- InsertWaitingCopy keeps one whole that cannot be read back equal.
INSERT INTO onceward.waiting_copies (lane, position, ordinal, kind, letter, item) VALUES (@lane, @position, @ordinal, @kind, @letter, @item);

-- name: ReopenReleased :execrows
-- ReopenReleased takes back what a control has released and not published, because the control waits. The letters stay marked with it.
UPDATE onceward.dead_letters SET state = 'open'
WHERE slot = @slot AND control_id = @control_id AND state = 'retrying' AND retry_index >= @from_index::bigint;

-- name: DeleteWaitingBeyond :execrows
-- DeleteWaitingBeyond forgets what a session begins to read again.
WITH c AS (
  DELETE FROM onceward.waiting_copies w USING onceward.lanes l
  WHERE l.slot = @slot AND w.lane = l.id AND w.position >= @order_position AND (w.position, w.ordinal) >= (@position::pg_lsn, @ordinal::integer)
)
DELETE FROM onceward.waiting w USING onceward.lanes l
WHERE l.slot = @slot AND w.lane = l.id AND w.position >= @order_position AND (w.position, w.ordinal) >= (@position::pg_lsn, @ordinal::integer);

-- name: DeleteWaitingOf :execrows
-- DeleteWaitingOf forgets lanes that have ended.
WITH c AS (DELETE FROM onceward.waiting_copies k WHERE k.lane = ANY(@lanes::integer[]))
DELETE FROM onceward.waiting w WHERE w.lane = ANY(@lanes::integer[]);

-- name: DeleteWaitingBefore :execrows
-- DeleteWaitingBefore forgets what has ended of a lane.
WITH c AS (DELETE FROM onceward.waiting_copies k WHERE k.lane = @lane AND (k.position, k.ordinal) < (@position::pg_lsn, @ordinal::integer))
DELETE FROM onceward.waiting w WHERE w.lane = @lane AND (w.position, w.ordinal) < (@position::pg_lsn, @ordinal::integer);

-- name: DeleteWaitingOne :execrows
-- DeleteWaitingOne forgets one that has ended beside every release.
WITH c AS (DELETE FROM onceward.waiting_copies k WHERE k.lane = @lane AND k.position = @position AND k.ordinal = @ordinal)
DELETE FROM onceward.waiting w WHERE w.lane = @lane AND w.position = @position AND w.ordinal = @ordinal;

-- name: DeleteWaitingDead :execrows
-- DeleteWaitingDead forgets what has a letter: it has ended, and nothing else says so where the session ended before it was forgotten.
WITH n AS (
  SELECT w.lane, w.position, w.ordinal FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane
  WHERE l.slot = @slot AND EXISTS (SELECT FROM onceward.dead_letters d WHERE d.slot = @slot AND d.letter_id = w.id)
), c AS (
  DELETE FROM onceward.waiting_copies k USING n WHERE k.lane = n.lane AND k.position = n.position AND k.ordinal = n.ordinal
)
DELETE FROM onceward.waiting w USING n WHERE w.lane = n.lane AND w.position = n.position AND w.ordinal = n.ordinal;

-- name: MarkCopy :execrows
-- MarkCopy notes how many letters of a retry are out.
UPDATE onceward.waiting_copies SET letter = @letter WHERE lane = @lane AND position = @position AND ordinal = @ordinal AND letter < @letter;

-- name: SettleWaited :execrows
-- SettleWaited ends the retries of controls that waited and are about to be forgotten, and what is out of the one at which a lane stands.
UPDATE onceward.dead_letters d SET state = 'replayed', last_at = pg_catalog.clock_timestamp()
FROM (SELECT w.id, CASE WHEN c.lane = @lane AND (c.position, c.ordinal) = (@position::pg_lsn, @ordinal::integer) THEN @letter::bigint END AS letter
  FROM onceward.waiting_copies c JOIN onceward.waiting w ON w.lane = c.lane AND w.position = c.position AND w.ordinal = c.ordinal
  WHERE c.kind = 'control' AND (c.lane = ANY(@lanes::integer[]) OR c.lane = @lane AND (c.position, c.ordinal) <= (@position::pg_lsn, @ordinal::integer))) n
WHERE d.slot = @slot AND d.control_id = n.id AND d.state = 'retrying' AND (n.letter IS NULL AND d.retry_index IS NOT NULL OR d.retry_index < n.letter);

-- name: DeleteLanes :execrows
-- DeleteLanes forgets lanes of which nothing waits any more.
DELETE FROM onceward.lanes WHERE slot = @slot AND id = ANY(@lanes::integer[]);

-- name: DeleteEmptyLanes :execrows
-- DeleteEmptyLanes forgets every lane of which nothing waits any more.
DELETE FROM onceward.lanes l WHERE l.slot = @slot AND NOT EXISTS (SELECT FROM onceward.waiting w WHERE w.lane = l.id);

-- name: LoadLanes :many
-- LoadLanes lists what is held, with how many wait and the type of the first event.
SELECT l.id, l.namespace, l.aggregate_type, l.topic, COALESCE(n.events, 0)::bigint AS events, COALESCE(o.event_type, '')::text AS event_type
FROM onceward.lanes l
LEFT JOIN (SELECT w.lane, pg_catalog.count(*) AS events FROM onceward.waiting w GROUP BY w.lane) n ON n.lane = l.id
LEFT JOIN LATERAL (SELECT f.id FROM onceward.waiting f WHERE f.lane = l.id ORDER BY f.position, f.ordinal LIMIT 1) f ON true
LEFT JOIN onceward.outbox o ON o.id = f.id
WHERE l.slot = @slot ORDER BY l.id;

-- name: LoadRelease :one
-- LoadRelease reads the release that is under way. No row: none is.
SELECT release, lanes FROM onceward.releases WHERE slot = @slot;

-- name: BeginRelease :exec
-- BeginRelease says which lanes are published from now on.
INSERT INTO onceward.releases (slot, release, lanes) VALUES (@slot, @release, @lanes::integer[]);

-- name: EndRelease :execrows
-- EndRelease ends a release.
DELETE FROM onceward.releases WHERE slot = @slot;

-- name: WaitingControls :many
-- WaitingControls lists the controls that wait: a session that reads one again leaves it out.
SELECT w.id FROM onceward.waiting_copies c JOIN onceward.lanes l ON l.id = c.lane
JOIN onceward.waiting w ON w.lane = c.lane AND w.position = c.position AND w.ordinal = c.ordinal
WHERE l.slot = @slot AND c.kind = 'control';

-- name: RestartRetries :exec
-- RestartRetries has retries that wait begin at their first letter again: what was out is not known any more.
UPDATE onceward.waiting_copies c SET letter = 0 FROM onceward.lanes l
WHERE l.slot = ANY(@slots::text[]) AND c.lane = l.id AND c.kind = 'control' AND c.letter > 0;

-- name: ReadWaiting :many
-- ReadWaiting reads the next of a lane: the first, and as many more as fit into the bytes and the rows. Written says whether the transaction is visible: a row that is missing though it was written has been deleted.
SELECT q.position::text AS position, q.ordinal, q.id, q.tx_id, q.written, q.dead, q.row_tx_id, q.namespace, q.aggregate_type, q.aggregate_id, q.event_type,
  q.payload, q.content_type, q.headers, q.traceparent, q.created_at, q.seq, q.kind, q.letter, q.item
FROM (
  SELECT w.position, w.ordinal, w.id, w.tx_id, pg_catalog.pg_visible_in_snapshot(w.tx_id, pg_catalog.pg_current_snapshot())::boolean AS written,
    EXISTS (SELECT FROM onceward.dead_letters d WHERE d.slot = @slot AND d.letter_id = w.id)::boolean AS dead,
    o.tx_id AS row_tx_id, o.namespace, o.aggregate_type, o.aggregate_id, o.event_type, o.payload, o.content_type, o.headers, o.traceparent, o.created_at, COALESCE(o.seq, 0)::bigint AS seq,
    c.kind, c.letter, c.item,
    COALESCE(pg_catalog.sum(z.bytes) OVER (ORDER BY w.position, w.ordinal ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
  FROM (SELECT f.* FROM onceward.waiting f WHERE f.lane = @lane AND (f.position, f.ordinal) >= (@position::pg_lsn, @ordinal::integer)
    ORDER BY f.position, f.ordinal LIMIT @row_limit::int) w
  LEFT JOIN onceward.waiting_copies c ON c.lane = @lane AND c.position = w.position AND c.ordinal = w.ordinal
  LEFT JOIN onceward.outbox o ON o.id = w.id AND (c.kind IS NULL OR c.kind = 'repair')
  CROSS JOIN LATERAL (SELECT COALESCE(pg_catalog.octet_length(o.payload), pg_catalog.octet_length(c.item), 0)
    + COALESCE(pg_catalog.octet_length(o.headers::text), 0) + 512 AS bytes) z
) q
WHERE q.before < @byte_limit::bigint ORDER BY q.position, q.ordinal;

-- name: WaitingIDs :many
-- WaitingIDs finds, of some events, those that wait.
SELECT w.id, w.lane, w.position::text AS position, w.ordinal FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane
WHERE l.slot = @slot AND w.id = ANY(@ids::uuid[]);

-- name: LastOrdinal :one
-- LastOrdinal returns the highest ordinal of what waits at a position; 0 when nothing does.
SELECT COALESCE(pg_catalog.max(w.ordinal), 0)::integer AS ordinal FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane
WHERE l.slot = @slot AND w.position = @position;

-- name: DeleteWholeBeyond :execrows
-- DeleteWholeBeyond forgets the replays and the bad rows that a relay which begins anew reads again. Orders about letters keep their place.
WITH w AS (
  DELETE FROM onceward.waiting w USING onceward.lanes l, onceward.waiting_copies c
  WHERE l.slot = @slot AND w.lane = l.id AND w.position >= @order_position AND c.lane = w.lane AND c.position = w.position AND c.ordinal = w.ordinal AND c.kind IN ('event', 'replay')
  RETURNING w.lane, w.position, w.ordinal
)
DELETE FROM onceward.waiting_copies c USING w WHERE c.lane = w.lane AND c.position = w.position AND c.ordinal = w.ordinal;

-- name: JoinLanes :exec
-- JoinLanes puts what waits of a lane that was held once more behind what waited of it before, which may have been moved to the same place.
WITH j AS (
  SELECT l.id, pg_catalog.min(l.id) OVER (PARTITION BY l.namespace, l.aggregate_type, l.topic)::integer AS eldest FROM onceward.lanes l WHERE l.slot = @slot
), r AS (
  SELECT w.lane, w.position, w.ordinal, j.eldest, w.ordinal + COALESCE(
    (SELECT pg_catalog.max(e.ordinal) FROM onceward.waiting e WHERE e.lane = j.eldest AND e.position = w.position), 0)::integer AS rank
  FROM onceward.waiting w JOIN j ON j.id = w.lane WHERE j.eldest < j.id
), c AS (
  UPDATE onceward.waiting_copies k SET lane = r.eldest, ordinal = r.rank FROM r WHERE k.lane = r.lane AND k.position = r.position AND k.ordinal = r.ordinal
)
UPDATE onceward.waiting k SET lane = r.eldest, ordinal = r.rank FROM r WHERE k.lane = r.lane AND k.position = r.position AND k.ordinal = r.ordinal;

-- name: MoveWaiting :exec
-- MoveWaiting puts what waits at or beyond a position before it, in its order, behind the ordinal last there.
WITH r AS (
  SELECT w.lane, w.position, w.ordinal, (sqlc.arg(last)::integer + pg_catalog.row_number() OVER (PARTITION BY w.lane ORDER BY w.position, w.ordinal))::integer AS rank
  FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane WHERE l.slot = sqlc.arg(slot) AND w.position >= sqlc.arg(order_position)
), c AS (
  UPDATE onceward.waiting_copies k SET position = sqlc.arg(place), ordinal = r.rank FROM r WHERE k.lane = r.lane AND k.position = r.position AND k.ordinal = r.ordinal
)
UPDATE onceward.waiting k SET position = sqlc.arg(place), ordinal = r.rank FROM r WHERE k.lane = r.lane AND k.position = r.position AND k.ordinal = r.ordinal;

-- name: SortWaiting :exec
-- SortWaiting merges, in the lanes where a repair left events at the place, these by seq into what waits before the position, whose order
-- stays; PlaceSorted ends it: the ordinals are negative until then, so that no two meet.
WITH r AS (
  SELECT q.lane, q.position, q.ordinal, pg_catalog.row_number() OVER (PARTITION BY q.lane ORDER BY q.key, q.position, q.ordinal)::integer AS rank
  FROM (
    SELECT w.lane, w.position, w.ordinal, COALESCE(CASE WHEN c.kind = 'repair' THEN o.seq
      ELSE pg_catalog.max(CASE WHEN c.kind IS NULL THEN o.seq END) OVER (PARTITION BY w.lane ORDER BY w.position, w.ordinal) END, 0) AS key
    FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane
    LEFT JOIN onceward.waiting_copies c ON c.lane = w.lane AND c.position = w.position AND c.ordinal = w.ordinal
    LEFT JOIN onceward.outbox o ON o.id = w.id AND o.tx_id = w.tx_id
    WHERE l.slot = sqlc.arg(slot) AND w.position < sqlc.arg(order_position)
      AND EXISTS (SELECT FROM onceward.waiting_copies k WHERE k.lane = w.lane AND k.kind = 'repair' AND k.position = sqlc.arg(place))
  ) q
), c AS (
  UPDATE onceward.waiting_copies k SET position = sqlc.arg(place), ordinal = -r.rank FROM r WHERE k.lane = r.lane AND k.position = r.position AND k.ordinal = r.ordinal
)
UPDATE onceward.waiting k SET position = sqlc.arg(place), ordinal = -r.rank FROM r WHERE k.lane = r.lane AND k.position = r.position AND k.ordinal = r.ordinal;

-- name: PlaceSorted :exec
-- PlaceSorted ends SortWaiting.
WITH c AS (
  UPDATE onceward.waiting_copies k SET ordinal = -k.ordinal FROM onceward.lanes l WHERE l.slot = sqlc.arg(slot) AND k.lane = l.id AND k.position = sqlc.arg(place) AND k.ordinal < 0
)
UPDATE onceward.waiting k SET ordinal = -k.ordinal FROM onceward.lanes l WHERE l.slot = sqlc.arg(slot) AND k.lane = l.id AND k.position = sqlc.arg(place) AND k.ordinal < 0;
