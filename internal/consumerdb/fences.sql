-- name: ClaimFence :one
-- ClaimFence begins an effect outside the database, or takes over an attempt whose lease has run out. No row: it is
-- complete, another attempt holds its lease, or the request is another one; FindFence says which. stale: the provider
-- may have forgotten the key by now. The time of the first attempt counts for that, unless an operator has said that
-- it did not happen, which leaves NULL. The event is kept for the recovery job.
INSERT INTO onceward.fences AS f (event_id, consumer_group, name, owner, lease_until, request_fingerprint, provider_key_until, event)
VALUES (@event_id, @consumer_group, @name, @owner, pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.arg(lease)::interval, @request_fingerprint,
  pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.narg(provider_key_ttl)::interval, @event)
ON CONFLICT (event_id, consumer_group, name) DO UPDATE
SET epoch = f.epoch OPERATOR(pg_catalog.+) 1, owner = EXCLUDED.owner, lease_until = EXCLUDED.lease_until,
  provider_key_until = COALESCE(f.provider_key_until, EXCLUDED.provider_key_until), event = EXCLUDED.event, stuck = NULL
WHERE f.status OPERATOR(pg_catalog.=) 'PENDING' AND f.lease_until OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp() AND f.request_fingerprint OPERATOR(pg_catalog.=) EXCLUDED.request_fingerprint
RETURNING epoch, COALESCE(provider_key_until OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp(), false)::boolean AS stale;

-- name: FindFence :one
-- FindFence reads a fence.
SELECT status, epoch, owner, lease_until, request_fingerprint, result, created_at, completed_at
FROM onceward.fences WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group AND name OPERATOR(pg_catalog.=) @name;

-- name: RenewFence :execrows
-- RenewFence is the heartbeat. 0 rows: the lease was lost. One that has run out may be renewed as long as nobody took it.
UPDATE onceward.fences SET lease_until = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.arg(lease)::interval
WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group AND name OPERATOR(pg_catalog.=) @name AND epoch OPERATOR(pg_catalog.=) @epoch AND status OPERATOR(pg_catalog.=) 'PENDING';

-- name: ReleaseFence :execrows
-- ReleaseFence ends the lease of an attempt that has failed, so that the next one need not wait for it.
UPDATE onceward.fences SET lease_until = pg_catalog.clock_timestamp()
WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group AND name OPERATOR(pg_catalog.=) @name AND epoch OPERATOR(pg_catalog.=) @epoch AND status OPERATOR(pg_catalog.=) 'PENDING';

-- name: CompleteFence :execrows
-- CompleteFence ends the effect. 0 rows: another attempt has taken the lease, and this one must leave nothing behind.
UPDATE onceward.fences
SET status = 'COMPLETE', result = @result, completed_at = pg_catalog.clock_timestamp(), expires_at = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.arg(keep)::interval,
  event = NULL, stuck = NULL
WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group AND name OPERATOR(pg_catalog.=) @name AND epoch OPERATOR(pg_catalog.=) @epoch AND status OPERATOR(pg_catalog.=) 'PENDING';

-- name: TakeOrphanedFence :one
-- TakeOrphanedFence finds the fence that nobody has been at for longest, and keeps it from other recovery jobs for a
-- while. After each attempt the next one waits longer: 1 minute at first, 17 hours at most.
UPDATE onceward.fences f SET epoch = f.epoch OPERATOR(pg_catalog.+) 1, lease_until = pg_catalog.clock_timestamp()
FROM (
  SELECT o.event_id, o.consumer_group, o.name
  FROM onceward.fences o
  WHERE o.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND o.status OPERATOR(pg_catalog.=) 'PENDING' AND o.stuck IS NULL AND (o.event OPERATOR(pg_catalog.->>) 'type') OPERATOR(pg_catalog.=) ANY(@event_types::pg_catalog.text[])
    AND o.lease_until OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) (interval '1 minute' OPERATOR(pg_catalog.*) (1 OPERATOR(pg_catalog.<<) LEAST(o.epoch OPERATOR(pg_catalog.-) 1, 10)::integer)))
  ORDER BY o.lease_until LIMIT 1 FOR UPDATE SKIP LOCKED
) orphan
WHERE f.event_id OPERATOR(pg_catalog.=) orphan.event_id AND f.consumer_group OPERATOR(pg_catalog.=) orphan.consumer_group AND f.name OPERATOR(pg_catalog.=) orphan.name
RETURNING f.event_id, f.name, f.epoch, f.event;

-- name: MarkFencesStuck :execrows
-- MarkFencesStuck leaves PENDING fences of an event to an operator: the one of that name, or all that no attempt is at;
-- up to an epoch; of stale ones only when asked.
UPDATE onceward.fences SET stuck = @why::pg_catalog.text
WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group AND (@name::pg_catalog.text OPERATOR(pg_catalog.=) '' OR name OPERATOR(pg_catalog.=) @name::pg_catalog.text)
  AND status OPERATOR(pg_catalog.=) 'PENDING' AND lease_until OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp() AND epoch OPERATOR(pg_catalog.<=) @epoch
  AND (NOT @stale::boolean OR provider_key_until OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp());
