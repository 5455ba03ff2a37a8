-- name: RaiseTick :one
-- RaiseTick makes the tick that the next checkpoint in Kafka carries. No row: the session was fenced.
UPDATE onceward.relay_state SET tick = tick + 1, updated_at = pg_catalog.clock_timestamp()
WHERE slot = @slot AND epoch = @epoch
RETURNING tick;

-- name: EnterExactlyOnce :execrows
-- EnterExactlyOnce says that the checkpoint is in Kafka from now on, where it was written before. 0 rows: the session was fenced.
UPDATE onceward.relay_state SET mode = 'exactly-once', updated_at = pg_catalog.clock_timestamp()
WHERE slot = @slot AND epoch = @epoch;

-- name: LeaveExactlyOnce :one
-- LeaveExactlyOnce takes the checkpoint over from Kafka, and says that it is here from now on. No row: the session was fenced.
UPDATE onceward.relay_state SET mode = 'idempotent', confirmed_lsn = @confirmed_lsn, checkpoint = @checkpoint, tick = tick + 1, updated_at = pg_catalog.clock_timestamp()
WHERE slot = @slot AND epoch = @epoch
RETURNING tick;
