-- name: CountForReplay :many
-- CountForReplay counts the events that the filters select, by kind and by the state that the account of all relays gives them: dead, discarded, pending while any relay owes it, waiting, gap, given-up, before, or else published. Empty filters match all.
SELECT o.namespace, o.aggregate_type, o.event_type, s.state::text AS state, pg_catalog.count(*) AS events
FROM onceward.outbox o
CROSS JOIN LATERAL (SELECT CASE WHEN pg_catalog.bool_or(a.state = 'parked') THEN 'dead' WHEN pg_catalog.bool_or(a.state = 'discarded') THEN 'discarded'
    WHEN COALESCE(pg_catalog.bool_or(a.state = 'pending'), true) THEN 'pending' WHEN pg_catalog.bool_or(a.state = 'waiting') THEN 'waiting' WHEN pg_catalog.bool_or(a.state = 'gap') THEN 'gap'
    WHEN pg_catalog.bool_or(a.state = 'given-up') THEN 'given-up' WHEN pg_catalog.bool_or(a.state = 'before') THEN 'before' ELSE 'published' END AS state
  FROM onceward.account(o.id, o.tx_id, o.seq) AS a (slot, relay, state, gap_id, snapshot_at)) s
WHERE (@namespace::text = '' OR o.namespace = @namespace)
  AND (@aggregate_type::text = '' OR o.aggregate_type = @aggregate_type)
  AND (@aggregate_id::text = '' OR o.aggregate_id = @aggregate_id)
  AND (@event_type::text = '' OR o.event_type = @event_type)
  AND o.created_at >= COALESCE(sqlc.narg(from_time)::timestamptz, '-infinity'::timestamptz)
  AND o.created_at < COALESCE(sqlc.narg(to_time)::timestamptz, 'infinity'::timestamptz)
  AND (o.seq, o.id) > (@after_seq::bigint, @after_id::uuid)
GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4;

-- name: EventsForReplay :many
-- EventsForReplay lists, in the order in which they were written, those that CountForReplay counts and that neither come by themselves nor wait for a decision of their own.
SELECT o.id, o.seq
FROM onceward.outbox o
CROSS JOIN LATERAL (SELECT CASE WHEN pg_catalog.bool_or(a.state = 'parked') THEN 'dead' WHEN pg_catalog.bool_or(a.state = 'discarded') THEN 'discarded'
    WHEN COALESCE(pg_catalog.bool_or(a.state = 'pending'), true) THEN 'pending' WHEN pg_catalog.bool_or(a.state = 'waiting') THEN 'waiting' WHEN pg_catalog.bool_or(a.state = 'gap') THEN 'gap'
    WHEN pg_catalog.bool_or(a.state = 'given-up') THEN 'given-up' WHEN pg_catalog.bool_or(a.state = 'before') THEN 'before' ELSE 'published' END AS state
  FROM onceward.account(o.id, o.tx_id, o.seq) AS a (slot, relay, state, gap_id, snapshot_at)) s
WHERE (@namespace::text = '' OR o.namespace = @namespace)
  AND (@aggregate_type::text = '' OR o.aggregate_type = @aggregate_type)
  AND (@aggregate_id::text = '' OR o.aggregate_id = @aggregate_id)
  AND (@event_type::text = '' OR o.event_type = @event_type)
  AND o.created_at >= COALESCE(sqlc.narg(from_time)::timestamptz, '-infinity'::timestamptz)
  AND o.created_at < COALESCE(sqlc.narg(to_time)::timestamptz, 'infinity'::timestamptz)
  AND (o.seq, o.id) > (@after_seq::bigint, @after_id::uuid)
  AND s.state IN ('published', 'before', 'gap', 'given-up')
ORDER BY o.seq, o.id LIMIT @row_limit::int;

-- name: KeysForReplay :many
-- KeysForReplay reads what EventsForReplay and CountForReplay say of single events.
SELECT o.id, o.namespace, o.aggregate_type, o.event_type, o.seq, s.state::text AS state
FROM onceward.outbox o
CROSS JOIN LATERAL (SELECT CASE WHEN pg_catalog.bool_or(a.state = 'parked') THEN 'dead' WHEN pg_catalog.bool_or(a.state = 'discarded') THEN 'discarded'
    WHEN COALESCE(pg_catalog.bool_or(a.state = 'pending'), true) THEN 'pending' WHEN pg_catalog.bool_or(a.state = 'waiting') THEN 'waiting' WHEN pg_catalog.bool_or(a.state = 'gap') THEN 'gap'
    WHEN pg_catalog.bool_or(a.state = 'given-up') THEN 'given-up' WHEN pg_catalog.bool_or(a.state = 'before') THEN 'before' ELSE 'published' END AS state
  FROM onceward.account(o.id, o.tx_id, o.seq) AS a (slot, relay, state, gap_id, snapshot_at)) s
WHERE o.id = ANY(@ids::uuid[]) ORDER BY o.seq, o.id;

-- name: LettersForReplay :many
-- LettersForReplay lists the events of dead letters in the given states, each once. Letters of replays are left out: those are replayed by the key of their event.
SELECT DISTINCT ON (d.seq, d.letter_id) d.letter_id, d.namespace, d.aggregate_type, d.event_type, d.seq, d.state
FROM onceward.dead_letters d
WHERE d.state = ANY(@states::text[])
  AND d.replay_of IS NULL
  AND (pg_catalog.cardinality(@ids::uuid[]) = 0 OR d.letter_id = ANY(@ids::uuid[]))
  AND (@namespace::text = '' OR d.namespace = @namespace)
  AND (@aggregate_type::text = '' OR d.aggregate_type = @aggregate_type)
  AND (@aggregate_id::text = '' OR d.aggregate_id = @aggregate_id)
  AND (@event_type::text = '' OR d.event_type = @event_type)
  AND d.created_at >= COALESCE(sqlc.narg(from_time)::timestamptz, '-infinity'::timestamptz)
  AND d.created_at < COALESCE(sqlc.narg(to_time)::timestamptz, 'infinity'::timestamptz)
  AND (d.seq, d.letter_id) > (@after_seq::bigint, @after_id::uuid)
ORDER BY d.seq, d.letter_id LIMIT @row_limit::int;

-- name: OvertakenEvents :many
-- OvertakenEvents counts, by kind, those of the events of which it is not known that they are the newest of their aggregate: another was written later, or the row is gone (kind empty).
SELECT COALESCE(o.namespace, '')::text AS namespace, COALESCE(o.aggregate_type, '')::text AS aggregate_type, COALESCE(o.event_type, '')::text AS event_type,
  pg_catalog.count(*) AS events, pg_catalog.min(w.id::text)::text AS example
FROM (SELECT pg_catalog.unnest(@ids::uuid[]) AS id) w LEFT JOIN onceward.outbox o ON o.id = w.id
WHERE o.id IS NULL OR EXISTS (SELECT FROM onceward.outbox n WHERE n.namespace = o.namespace AND n.aggregate_type = o.aggregate_type
    AND n.aggregate_id = o.aggregate_id AND n.seq > o.seq)
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;

-- name: InsertReplays :many
-- InsertReplays orders events to be published again, in the order of the arrays. Their content is filled in by a trigger: the letter's, where there is one in a state that counts (an edited letter is what was published, not its row), else the row's. What is gone meanwhile is left out, and what was inserted under the same replay id before: that makes a repetition safe.
INSERT INTO onceward.replays (replay_id, id, dead, mode, replay_group, topic, reason)
SELECT w.replay_id, w.id, @dead, @mode, sqlc.narg(replay_group), sqlc.narg(topic), @reason
FROM (SELECT pg_catalog.unnest(@replay_ids::uuid[]) AS replay_id, pg_catalog.unnest(@ids::uuid[]) AS id,
  pg_catalog.generate_series(1, pg_catalog.cardinality(@ids::uuid[])) AS place) w
WHERE EXISTS (SELECT FROM onceward.dead_letters d WHERE d.letter_id = w.id AND d.replay_of IS NULL AND d.state = ANY(@states::text[]))
  OR (NOT @dead AND EXISTS (SELECT FROM onceward.outbox o WHERE o.id = w.id))
ORDER BY w.place
ON CONFLICT DO NOTHING
RETURNING replay_id;

-- name: CountReplays :one
-- CountReplays counts which of the orders are there, when the answer to an insert was lost.
SELECT pg_catalog.count(*) FROM onceward.replays WHERE replay_id = ANY(@replay_ids::uuid[]);

-- name: ListLetters :many
-- ListLetters lists letters in the given states, oldest first; replay_of is the event of a replay's letter, and waits says that its retry waits for its route. Empty filters match all.
SELECT d.slot, d.letter_id, d.replay_of, d.namespace, d.aggregate_type, d.aggregate_id, d.event_type, d.created_at, d.seq, d.position::text AS position,
  d.error_class, d.error, d.attempts, d.first_at, d.last_at, d.state, d.holds, d.control_id, d.decided_by, d.decided_why, d.edited_at,
  EXISTS (SELECT FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane WHERE l.slot = d.slot AND w.id = d.control_id)::boolean AS waits
FROM onceward.dead_letters d
WHERE d.state = ANY(@states::text[])
  AND (pg_catalog.cardinality(@ids::uuid[]) = 0 OR d.letter_id = ANY(@ids::uuid[]))
  AND (@slot::text = '' OR d.slot = @slot)
  AND (@namespace::text = '' OR d.namespace = @namespace)
  AND (@aggregate_type::text = '' OR d.aggregate_type = @aggregate_type)
  AND (@aggregate_id::text = '' OR d.aggregate_id = @aggregate_id)
  AND (@event_type::text = '' OR d.event_type = @event_type)
  AND (@error_class::text = '' OR d.error_class = @error_class)
  AND d.first_at >= COALESCE(sqlc.narg(from_time)::timestamptz, '-infinity'::timestamptz)
  AND d.first_at < COALESCE(sqlc.narg(to_time)::timestamptz, 'infinity'::timestamptz)
ORDER BY d.seq, d.letter_id, d.slot LIMIT @row_limit::int;

-- name: ReadLetter :many
-- ReadLetter reads a letter whole, one row per slot.
SELECT slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, headers, traceparent, created_at, seq,
  position::text AS position, error_class, error, attempts, first_at, last_at, state, holds, replay_of, replay_mode, replay_group, topic,
  control_id, decided_by, decided_why, edited_at, edited_by, edited_why,
  EXISTS (SELECT FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane WHERE l.slot = d.slot AND w.id = d.control_id)::boolean AS waits
FROM onceward.dead_letters d WHERE letter_id = @letter_id ORDER BY slot;

-- name: ParkedAggregates :many
-- ParkedAggregates lists aggregates whose later events wait behind a letter, oldest first, each with its first letter. A letter that holds nothing, such as a replay's, does not count.
SELECT a.slot, a.namespace, a.aggregate_type, a.aggregate_id, a.letters, a.since, d.letter_id AS first_letter, d.error_class, d.error
FROM (SELECT w.slot, w.namespace, w.aggregate_type, w.aggregate_id, pg_catalog.count(*) AS letters, pg_catalog.min(w.first_at)::timestamptz AS since
  FROM onceward.dead_letters w WHERE w.state IN ('open', 'retrying') AND w.holds GROUP BY 1, 2, 3, 4
  ORDER BY 6, 1, 2, 3, 4 LIMIT @row_limit::int) a
CROSS JOIN LATERAL (SELECT x.letter_id, x.error_class, x.error FROM onceward.dead_letters x
  WHERE x.slot = a.slot AND pg_catalog.hashtextextended(x.aggregate_id, pg_catalog.hashtextextended(x.aggregate_type, pg_catalog.hashtextextended(x.namespace, 0::bigint)))
      = pg_catalog.hashtextextended(a.aggregate_id, pg_catalog.hashtextextended(a.aggregate_type, pg_catalog.hashtextextended(a.namespace, 0::bigint)))
    AND x.namespace = a.namespace AND x.aggregate_type = a.aggregate_type AND x.aggregate_id = a.aggregate_id
    AND x.state IN ('open', 'retrying') AND x.holds ORDER BY x.position, x.seq LIMIT 1) d
ORDER BY a.since, a.slot, a.namespace, a.aggregate_type, a.aggregate_id;

-- name: InsertControl :exec
-- InsertControl writes one of the operator's words into the stream.
INSERT INTO onceward.controls (control_id, action, namespace, aggregate_type, aggregate_id, letter_id, payload, payload_null, headers, reason)
VALUES (@control_id, @action, sqlc.narg(namespace), sqlc.narg(aggregate_type), sqlc.narg(aggregate_id), sqlc.narg(letter_id), @payload, @payload_null, @headers, @reason);

-- name: ControlsOfLetter :many
-- ControlsOfLetter lists the words that name a letter or its aggregate, oldest first.
SELECT control_id, action, letter_id, payload, payload_null, headers, reason, requested_by, requested_at FROM onceward.controls
WHERE letter_id = @letter_id OR (namespace = @namespace::text AND aggregate_type = @aggregate_type::text AND aggregate_id = @aggregate_id::text)
ORDER BY seq;

-- name: LettersNow :many
-- LettersNow reads how letters stand. Released says that a word has handed them to the relay and was not taken back, waits that the word waits for their route.
SELECT d.slot, d.letter_id, d.state, d.error, d.attempts, d.control_id, (d.retry_index IS NOT NULL)::boolean AS released,
  EXISTS (SELECT FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane WHERE l.slot = d.slot AND w.id = d.control_id)::boolean AS waits
FROM onceward.dead_letters d WHERE d.letter_id = ANY(@ids::uuid[]);

-- name: ResultsOfControls :many
-- ResultsOfControls says which relays have obeyed words, on how many letters, and why on none.
SELECT slot, control_id, letters, note FROM onceward.control_results WHERE control_id = ANY(@control_ids::uuid[]);

-- name: Rest :one
-- Rest lets a relay rest or go on or, where routes are named, these of it, and writes it down.
SELECT r.relay::text AS relay, r.rests::boolean AS rests, r.resting_routes::text[] AS resting_routes
FROM onceward.rest_relay(@slot::text, @paused::boolean, @routes::text[], @reason::text) AS r;

-- name: Rests :many
-- Rests says who let rest last what rests, and why, by relay and route; the empty route is the relay itself. A word with a reason, since it
-- went on last, counts before one without.
SELECT DISTINCT ON (a.slot, a.target) a.slot, a.target AS route, a.reason, a.requested_by, a.requested_at
FROM onceward.relay_actions a JOIN onceward.relay_state r ON r.slot = a.slot AND (a.target = '' AND r.paused OR a.target = ANY(r.paused_routes))
WHERE a.action = 'pause' AND NOT EXISTS (SELECT FROM onceward.relay_actions u WHERE u.slot = a.slot AND u.target = a.target AND u.action = 'resume' AND u.action_id > a.action_id)
ORDER BY a.slot, a.target, (a.reason <> '') DESC, a.action_id DESC;

-- name: MayReadActions :one
-- MayReadActions says whether the login may read what operators did, as Rests does. That of a relay may not.
SELECT pg_catalog.has_table_privilege('onceward.relay_actions', 'SELECT')::boolean AS allowed;

-- name: Skip :one
-- Skip tells the relay to end an event without publishing it, and forgets those that have ended. A letter that waits, or is retried, has not.
UPDATE onceward.relay_state s SET skip = ARRAY(SELECT DISTINCT k FROM pg_catalog.unnest(s.skip || @ids::uuid[]) AS t (k)
  WHERE k = ANY(@ids::uuid[]) OR NOT EXISTS (SELECT FROM onceward.dead_letters d
    WHERE d.slot = s.slot AND d.letter_id = k AND d.state IN ('discarded', 'replayed')) ORDER BY k)
WHERE s.slot = @slot RETURNING s.relay, s.slot, s.skip;

-- name: TakeBackSkip :one
-- TakeBackSkip takes a word of Skip back. Stood says whether there was one; what the relay is just carrying out is waited for.
UPDATE onceward.relay_state s SET skip = pg_catalog.array_remove(s.skip, @id::uuid)
FROM (SELECT r.slot, (@id::uuid = ANY(r.skip))::boolean AS stood FROM onceward.relay_state r WHERE r.slot = @slot FOR UPDATE) w
WHERE s.slot = w.slot RETURNING s.relay, s.slot, s.skip, w.stood;

-- name: SkipTarget :one
-- SkipTarget looks for what is no row of the outbox and may hold a relay up all the same: an order to replay, with the state that the relay's account gives it (else empty), or what waits for its route. Of a replay that would count as published and lay in a gap, whatever became of the gap, that gap is told: no repair publishes it, and it has no seq.
SELECT COALESCE(p.namespace, '')::text AS namespace, COALESCE(p.state, '')::text AS state, COALESCE(p.id, k.id)::uuid AS event_id, COALESCE(g.gap_id::text, '')::text AS gap_id,
  EXISTS (SELECT FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane WHERE l.slot = @slot AND w.id = k.id)::boolean AS waits
FROM (SELECT @id::uuid AS id) k
LEFT JOIN (SELECT r.replay_id, r.id, r.namespace, r.tx_id, a.state FROM onceward.replays r
  CROSS JOIN LATERAL onceward.account(r.replay_id, r.tx_id, NULL::bigint) AS a (slot, relay, state, gap_id, snapshot_at)
  WHERE r.replay_id = @id::uuid AND a.slot = @slot) p ON p.replay_id = k.id
LEFT JOIN onceward.gaps g ON g.slot = @slot AND p.state = 'published'
  AND pg_catalog.pg_visible_in_snapshot(p.tx_id, g.to_snapshot) AND NOT pg_catalog.pg_visible_in_snapshot(p.tx_id, g.from_snapshot)
  AND NOT EXISTS (SELECT FROM onceward.dead_letters d WHERE d.slot = @slot AND d.letter_id = k.id)
ORDER BY g.found_at DESC LIMIT 1;

-- name: LettersOfAggregates :many
-- LettersOfAggregates lists the letters that wait of the aggregates.
SELECT d.slot, d.letter_id, d.namespace, d.aggregate_type, d.aggregate_id, d.attempts, d.holds
FROM (SELECT pg_catalog.unnest(@namespaces::text[]) AS namespace, pg_catalog.unnest(@aggregate_types::text[]) AS aggregate_type, pg_catalog.unnest(@aggregate_ids::text[]) AS aggregate_id) a
JOIN onceward.dead_letters d ON d.namespace = a.namespace AND d.aggregate_type = a.aggregate_type AND d.aggregate_id = a.aggregate_id
WHERE d.state IN ('open', 'retrying')
ORDER BY d.position, d.seq, d.slot;
