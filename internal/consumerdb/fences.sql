-- Effects of an event outside this database, or in transactions of their own: a row each. An event is open while its rows
-- have no expires_at: from its first effect to the transaction that ends it. The first row keeps the event until then.

-- name: ClaimFence :one
-- ClaimFence begins an effect outside the database, or takes over an attempt whose lease has run out. No row: it is
-- complete, another attempt holds its lease, or the request is another one; FindFence says which. stale: the provider
-- may have forgotten the key by now. The time of the first attempt counts for that, unless an operator has said that
-- it did not happen, which leaves NULL.
INSERT INTO onceward.fences AS f (event_id, consumer_group, name, owner, lease_until, request_fingerprint, provider_key_until, alone, event)
SELECT @event_id, @consumer_group, @name, @owner, pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.arg(lease)::interval, @request_fingerprint,
  pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.narg(provider_key_ttl)::interval, @alone::boolean,
  CASE WHEN NOT EXISTS (SELECT FROM onceward.fences o WHERE o.event_id OPERATOR(pg_catalog.=) @event_id AND o.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND o.event IS NOT NULL)
    THEN CAST(@event::pg_catalog.text AS pg_catalog.jsonb) END
ON CONFLICT (event_id, consumer_group, name) DO UPDATE
SET epoch = f.epoch OPERATOR(pg_catalog.+) 1, owner = EXCLUDED.owner, lease_until = EXCLUDED.lease_until, alone = EXCLUDED.alone,
  provider_key_until = COALESCE(f.provider_key_until, EXCLUDED.provider_key_until), event = COALESCE(f.event, EXCLUDED.event), stuck = NULL, expires_at = NULL
WHERE f.status OPERATOR(pg_catalog.=) 'PENDING' AND f.lease_until OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp() AND f.request_fingerprint OPERATOR(pg_catalog.=) EXCLUDED.request_fingerprint
RETURNING epoch, COALESCE(provider_key_until OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp(), false)::boolean AS stale;

-- name: MakeEffect :one
-- MakeEffect begins an effect whose whole work is one transaction of this database: it is COMPLETE when that commits. 0
-- rows: it was made before, or the request is another one; FindFence says which.
WITH made AS (
INSERT INTO onceward.fences (event_id, consumer_group, name, owner, status, lease_until, request_fingerprint, completed_at, event)
SELECT @event_id, @consumer_group, @name, @owner, 'COMPLETE', pg_catalog.clock_timestamp(), @request_fingerprint, pg_catalog.clock_timestamp(),
  CASE WHEN NOT EXISTS (SELECT FROM onceward.fences o WHERE o.event_id OPERATOR(pg_catalog.=) @event_id AND o.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND o.event IS NOT NULL)
    THEN CAST(@event::pg_catalog.text AS pg_catalog.jsonb) END
ON CONFLICT DO NOTHING
RETURNING 1
)
SELECT pg_catalog.count(*) AS made, COALESCE(pg_catalog.set_config('lock_timeout', CASE WHEN pg_catalog.current_setting('onceward.lock_timeout', true) OPERATOR(pg_catalog.<>) '' THEN pg_catalog.current_setting('onceward.lock_timeout') ELSE '0' END, true), '')::pg_catalog.text AS lock_timeout FROM made;

-- name: FindFence :one
-- FindFence reads a fence.
SELECT status, epoch, owner, lease_until, request_fingerprint, result, created_at, completed_at, (lease_until OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp())::boolean AS expired
FROM onceward.fences WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group AND name OPERATOR(pg_catalog.=) @name;

-- name: EffectsOfEvent :many
-- EffectsOfEvent reads the effects of an event. open: the event was accepted and has not ended, whatever its time is by now. stuck: it waits for an operator.
SELECT name, request_fingerprint, created_at, completed_at, (expires_at IS NULL)::boolean AS open, (stuck IS NOT NULL)::boolean AS stuck
FROM onceward.fences WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group;

-- name: RenewFence :execrows
-- RenewFence is the heartbeat. 0 rows: the lease was lost. One that has run out may be renewed as long as nobody took it.
UPDATE onceward.fences SET lease_until = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.arg(lease)::interval
WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group AND name OPERATOR(pg_catalog.=) @name AND epoch OPERATOR(pg_catalog.=) @epoch AND status OPERATOR(pg_catalog.=) 'PENDING';

-- name: ReleaseFence :execrows
-- ReleaseFence ends the lease of an attempt that has failed, so that the next one need not wait for it.
UPDATE onceward.fences SET lease_until = pg_catalog.clock_timestamp()
WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group AND name OPERATOR(pg_catalog.=) @name AND epoch OPERATOR(pg_catalog.=) @epoch AND status OPERATOR(pg_catalog.=) 'PENDING';

-- name: CompleteFence :one
-- CompleteFence ends an effect. 0 rows: another attempt has taken the lease, and this one must leave nothing behind.
WITH done AS (
UPDATE onceward.fences
SET status = 'COMPLETE', result = CAST(@result::pg_catalog.text AS pg_catalog.jsonb), completed_at = pg_catalog.clock_timestamp(), stuck = NULL
WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group AND name OPERATOR(pg_catalog.=) @name AND epoch OPERATOR(pg_catalog.=) @epoch AND status OPERATOR(pg_catalog.=) 'PENDING'
RETURNING 1
)
SELECT pg_catalog.count(*) AS done, COALESCE(CASE WHEN NOT @alone::boolean THEN
    pg_catalog.set_config('lock_timeout', CASE WHEN pg_catalog.current_setting('onceward.lock_timeout', true) OPERATOR(pg_catalog.<>) '' THEN pg_catalog.current_setting('onceward.lock_timeout') ELSE '0' END, true) END, '')::pg_catalog.text AS lock_timeout FROM done;

-- name: ResultOfEffect :exec
-- ResultOfEffect stores what the effect of this transaction has returned.
UPDATE onceward.fences SET result = CAST(@result::pg_catalog.text AS pg_catalog.jsonb)
WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group AND name OPERATOR(pg_catalog.=) @name;

-- name: EndEffects :one
-- EndEffects ends an open event: its effects may go after a while. One that is PENDING still was not called by the handler
-- that has finished: an operator has to say what became of it. No row keeps the event any more. again: it was a replay
-- that is for this group alone; it leaves the effects to a letter of the event that waits, other than the one at its place.
WITH ended AS (
  UPDATE onceward.fences f
  SET expires_at = CASE WHEN f.status OPERATOR(pg_catalog.=) 'COMPLETE' THEN pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.arg(keep)::interval END,
    event = NULL,
    stuck = CASE WHEN f.status OPERATOR(pg_catalog.<>) 'COMPLETE' THEN @why::pg_catalog.text END
  WHERE f.event_id OPERATOR(pg_catalog.=) @event_id AND f.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND f.expires_at IS NULL
    AND (NOT @again::boolean OR NOT EXISTS (SELECT FROM onceward.consumer_dead_letters l WHERE l.event_id OPERATOR(pg_catalog.=) f.event_id AND l.consumer_group OPERATOR(pg_catalog.=) f.consumer_group
      AND l.reason OPERATOR(pg_catalog.<>) ALL('{mismatch,unreadable}'::pg_catalog.text[]) AND l.state OPERATOR(pg_catalog.=) ANY('{open,requested,parked}'::pg_catalog.text[])
      AND (l.topic, l.kafka_partition, l.kafka_offset) OPERATOR(pg_catalog.<>) (@topic::pg_catalog.text, @kafka_partition::integer, @kafka_offset::bigint)))
  RETURNING f.status
)
SELECT pg_catalog.count(*) FILTER (WHERE status OPERATOR(pg_catalog.<>) 'COMPLETE') AS left_over FROM ended;

-- name: EndGivenUp :execrows
-- EndGivenUp ends an open event that was given up and of which no letter waits: it was discarded while somebody was at it.
UPDATE onceward.fences f SET expires_at = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.arg(keep)::interval, event = NULL
WHERE f.event_id OPERATOR(pg_catalog.=) @event_id AND f.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND f.expires_at IS NULL
  AND NOT EXISTS (SELECT FROM onceward.consumer_dead_letters l WHERE l.event_id OPERATOR(pg_catalog.=) f.event_id AND l.consumer_group OPERATOR(pg_catalog.=) f.consumer_group
    AND l.state OPERATOR(pg_catalog.=) ANY('{open,requested,parked}'::pg_catalog.text[]));

-- name: OpenEventTypes :many
-- OpenEventTypes lists the types of the group's open events.
SELECT DISTINCT (event OPERATOR(pg_catalog.->>) 'type')::pg_catalog.text AS event_type
FROM onceward.fences WHERE consumer_group OPERATOR(pg_catalog.=) @consumer_group AND expires_at IS NULL AND event IS NOT NULL;

-- name: TakeOpenEvent :one
-- TakeOpenEvent finds the open event that nobody has been at for longest, and keeps it from other recovery jobs for a while:
-- after each attempt the next one waits longer, 1 minute at first, 17 hours at most. One whose dead letter waits, or of
-- which an effect waits for an operator, is left alone. The event itself counts these attempts, as taken: deliveries are none.
UPDATE onceward.fences f SET epoch = f.epoch OPERATOR(pg_catalog.+) 1, lease_until = pg_catalog.clock_timestamp(),
  event = pg_catalog.jsonb_set(f.event, '{taken}'::pg_catalog.text[], pg_catalog.to_jsonb(COALESCE((f.event OPERATOR(pg_catalog.->>) 'taken')::integer, 0) OPERATOR(pg_catalog.+) 1))
FROM (
  SELECT o.event_id, o.consumer_group, o.name
  FROM onceward.fences o
  WHERE o.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND o.expires_at IS NULL AND o.event IS NOT NULL AND (o.event OPERATOR(pg_catalog.->>) 'type') OPERATOR(pg_catalog.=) ANY(@event_types::pg_catalog.text[])
    AND o.lease_until OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) (interval '1 minute' OPERATOR(pg_catalog.*) (1 OPERATOR(pg_catalog.<<) LEAST(COALESCE((o.event OPERATOR(pg_catalog.->>) 'taken')::integer, 0), 10))))
    AND NOT EXISTS (SELECT FROM onceward.fences s WHERE s.event_id OPERATOR(pg_catalog.=) o.event_id AND s.consumer_group OPERATOR(pg_catalog.=) o.consumer_group AND s.expires_at IS NULL
      AND (s.stuck IS NOT NULL OR s.lease_until OPERATOR(pg_catalog.>=) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) interval '1 minute')
        OR s.completed_at OPERATOR(pg_catalog.>=) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) interval '1 minute')))
    AND NOT EXISTS (SELECT FROM onceward.consumer_dead_letters l WHERE l.event_id OPERATOR(pg_catalog.=) o.event_id AND l.consumer_group OPERATOR(pg_catalog.=) o.consumer_group
      AND l.reason OPERATOR(pg_catalog.<>) ALL('{mismatch,unreadable}'::pg_catalog.text[]) AND l.state OPERATOR(pg_catalog.=) ANY('{open,requested,parked}'::pg_catalog.text[]))
  ORDER BY o.lease_until LIMIT 1 FOR UPDATE OF o SKIP LOCKED
) orphan
WHERE f.event_id OPERATOR(pg_catalog.=) orphan.event_id AND f.consumer_group OPERATOR(pg_catalog.=) orphan.consumer_group AND f.name OPERATOR(pg_catalog.=) orphan.name
RETURNING f.event_id, f.name, f.epoch, f.event;

-- name: MarkEffectsStuck :execrows
-- MarkEffectsStuck leaves effects of an open event to an operator: those that are PENDING and that no attempt is at, and the
-- row that keeps the event when @whole; of stale ones only when asked.
UPDATE onceward.fences SET stuck = @why::pg_catalog.text
WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group AND expires_at IS NULL AND lease_until OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()
  AND (status OPERATOR(pg_catalog.=) 'PENDING' OR @whole::boolean AND event IS NOT NULL)
  AND (NOT @stale::boolean OR provider_key_until OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp());
