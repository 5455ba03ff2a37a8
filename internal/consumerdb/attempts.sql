-- name: CountAttempt :one
-- CountAttempt counts a failure of the handler, outside the transaction that it rolled back.
INSERT INTO onceward.attempts AS a (event_id, consumer_group, last_error, expires_at)
VALUES (@event_id, @consumer_group, @last_error, pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) sqlc.arg(keep)::interval)
ON CONFLICT (event_id, consumer_group) DO UPDATE
SET attempts = a.attempts OPERATOR(pg_catalog.+) 1, last_error = EXCLUDED.last_error, expires_at = EXCLUDED.expires_at
RETURNING attempts;
