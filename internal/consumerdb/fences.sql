-- name: ClaimFence :one
-- ClaimFence begins an effect outside the database, or takes over an attempt whose lease has run out. No row: it is
-- complete, another attempt holds its lease, or the request is another one; FindFence says which. stale: the provider
-- may have forgotten the key by now.
INSERT INTO onceward.fences AS f (event_id, consumer_group, name, owner, lease_until, request_fingerprint, provider_key_until)
VALUES (@event_id, @consumer_group, @name, @owner, clock_timestamp() + sqlc.arg(lease)::interval, @request_fingerprint,
  clock_timestamp() + sqlc.narg(provider_key_ttl)::interval)
ON CONFLICT (event_id, consumer_group, name) DO UPDATE
SET epoch = f.epoch + 1, owner = EXCLUDED.owner, lease_until = EXCLUDED.lease_until
WHERE f.status = 'PENDING' AND f.lease_until < clock_timestamp() AND f.request_fingerprint = EXCLUDED.request_fingerprint
RETURNING epoch, COALESCE(provider_key_until < clock_timestamp(), false)::boolean AS stale;

-- name: FindFence :one
-- FindFence reads a fence.
SELECT status, epoch, owner, lease_until, request_fingerprint, result, created_at, completed_at
FROM onceward.fences WHERE event_id = @event_id AND consumer_group = @consumer_group AND name = @name;

-- name: RenewFence :execrows
-- RenewFence is the heartbeat. 0 rows: the lease was lost. One that has run out may be renewed as long as nobody took it.
UPDATE onceward.fences SET lease_until = clock_timestamp() + sqlc.arg(lease)::interval
WHERE event_id = @event_id AND consumer_group = @consumer_group AND name = @name AND epoch = @epoch AND status = 'PENDING';

-- name: ReleaseFence :execrows
-- ReleaseFence ends the lease of an attempt that has failed, so that the next one need not wait for it.
UPDATE onceward.fences SET lease_until = clock_timestamp()
WHERE event_id = @event_id AND consumer_group = @consumer_group AND name = @name AND epoch = @epoch AND status = 'PENDING';

-- name: CompleteFence :execrows
-- CompleteFence ends the effect. 0 rows: another attempt has taken the lease, and this one must leave nothing behind.
UPDATE onceward.fences SET status = 'COMPLETE', result = @result, completed_at = clock_timestamp()
WHERE event_id = @event_id AND consumer_group = @consumer_group AND name = @name AND epoch = @epoch AND status = 'PENDING';
