-- name: CountAttempt :one
-- CountAttempt counts a failure of the handler, outside the transaction that it rolled back.
INSERT INTO onceward.attempts AS a (event_id, consumer_group, last_error, expires_at)
VALUES (@event_id, @consumer_group, @last_error, pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.arg(keep)::interval)
ON CONFLICT (event_id, consumer_group) DO UPDATE
SET attempts = a.attempts OPERATOR(pg_catalog.+) 1, last_error = EXCLUDED.last_error, expires_at = EXCLUDED.expires_at
RETURNING attempts;

-- name: CountStart :one
-- CountStart counts that the handling of an event begins, before it does.
INSERT INTO onceward.attempts AS a (event_id, consumer_group, attempts, starts, last_error, expires_at)
VALUES (@event_id, @consumer_group, 0, 1, @last_error, pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.arg(keep)::interval)
ON CONFLICT (event_id, consumer_group) DO UPDATE
SET starts = a.starts OPERATOR(pg_catalog.+) 1, expires_at = EXCLUDED.expires_at
RETURNING starts;

-- name: CameBack :exec
-- CameBack takes one start back: the handling has ended, however. A row that says nothing else goes.
WITH gone AS (
  DELETE FROM onceward.attempts g WHERE g.event_id OPERATOR(pg_catalog.=) @event_id AND g.consumer_group OPERATOR(pg_catalog.=) @consumer_group
    AND g.attempts OPERATOR(pg_catalog.=) 0 AND g.starts OPERATOR(pg_catalog.<=) 1
  RETURNING g.event_id
)
UPDATE onceward.attempts a SET starts = a.starts OPERATOR(pg_catalog.-) 1
WHERE a.event_id OPERATOR(pg_catalog.=) @event_id AND a.consumer_group OPERATOR(pg_catalog.=) @consumer_group AND a.starts OPERATOR(pg_catalog.>) 0 AND NOT EXISTS (SELECT FROM gone);
