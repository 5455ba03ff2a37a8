-- name: CountAttempt :one
-- CountAttempt counts a failure of the handler, outside the transaction that it rolled back. One whose earlier failures are over begins anew.
INSERT INTO onceward.attempts AS a (event_id, consumer_group, last_error, expires_at)
VALUES (@event_id, @consumer_group, @last_error, pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.arg(keep)::interval)
ON CONFLICT (event_id, consumer_group) DO UPDATE
SET attempts = CASE WHEN a.expires_at OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp() THEN 0 ELSE a.attempts END OPERATOR(pg_catalog.+) 1, last_error = EXCLUDED.last_error, expires_at = EXCLUDED.expires_at
RETURNING attempts;

-- name: ForgetAttempts :exec
-- ForgetAttempts forgets the failures of an event that was given up, of whose key there will be others.
DELETE FROM onceward.attempts WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group;

-- name: CountStart :one
-- CountStart counts that the handling of an event begins, before it does. No row: so many have begun and not come back; a negative
-- limit is none.
INSERT INTO onceward.attempts AS a (event_id, consumer_group, attempts, starts, last_error, expires_at)
VALUES (@event_id, @consumer_group, 0, 1, @last_error, pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.arg(keep)::interval)
ON CONFLICT (event_id, consumer_group) DO UPDATE
SET starts = a.starts OPERATOR(pg_catalog.+) 1, expires_at = EXCLUDED.expires_at
WHERE @most::integer OPERATOR(pg_catalog.<) 0 OR a.starts OPERATOR(pg_catalog.<) @most::integer
RETURNING starts;

-- name: StartsLeft :one
-- StartsLeft reads how many starts of an event have not come back. over: the last one is so long ago that none is under way.
SELECT starts, (expires_at OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.arg(keep)::interval OPERATOR(pg_catalog.-) sqlc.arg(longest)::interval))::boolean AS over
FROM onceward.attempts
WHERE event_id OPERATOR(pg_catalog.=) @event_id AND consumer_group OPERATOR(pg_catalog.=) @consumer_group;

-- name: CameBack :exec
-- CameBack takes starts back: the handling has ended, however, or the event was given up. A row that says nothing else goes.
WITH gone AS (
  DELETE FROM onceward.attempts g WHERE g.event_id OPERATOR(pg_catalog.=) @event_id AND g.consumer_group OPERATOR(pg_catalog.=) @consumer_group
    AND g.attempts OPERATOR(pg_catalog.=) 0 AND g.starts OPERATOR(pg_catalog.<=) @starts::integer
  RETURNING g.event_id
)
UPDATE onceward.attempts a SET starts = GREATEST(a.starts OPERATOR(pg_catalog.-) @starts::integer, 0)
WHERE a.event_id OPERATOR(pg_catalog.=) @event_id AND a.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND a.starts OPERATOR(pg_catalog.>) 0 AND NOT EXISTS (SELECT FROM gone);
