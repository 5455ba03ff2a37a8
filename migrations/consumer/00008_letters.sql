-- +goose Up
-- The offset behind a range that nobody could read, for letters with the reason unreadable; of the others, and of those that a
-- program of an earlier release writes, 0. Until now it was in the error's text only.
ALTER TABLE onceward.consumer_dead_letters ADD COLUMN unreadable_until bigint NOT NULL DEFAULT 0;
UPDATE onceward.consumer_dead_letters SET unreadable_until = CAST(pg_catalog.substring(error, 'until ([0-9]+) of') AS bigint)
WHERE reason = 'unreadable' AND pg_catalog.substring(error, 'until ([0-9]{1,18}) of') IS NOT NULL;

-- The starts that have given an event up are no starts of its redrive, which are counted from now on.
UPDATE onceward.attempts a SET starts = 0
FROM onceward.consumer_dead_letters l
WHERE l.event_id = a.event_id AND l.consumer_group = a.consumer_group AND l.reason = 'crash';

-- +goose Down
ALTER TABLE onceward.consumer_dead_letters DROP COLUMN unreadable_until;
