-- +goose Up
-- How long a bucket of arrivals is, under whose ids a class claims what it claims by arrival. It is written when a program of
-- this release registers the class, and does not follow the window: copies on both sides of a change would not meet. NULL: no
-- such program has come yet, and those of before claim in buckets of one window, under the ids of their starts.
ALTER TABLE onceward.dedup_windows ADD COLUMN bucket interval;
-- The buckets before the last change, in which everything is claimed as well until then.
ALTER TABLE onceward.dedup_windows ADD COLUMN old_bucket interval, ADD COLUMN old_until timestamptz;

-- +goose Down
ALTER TABLE onceward.dedup_windows DROP COLUMN old_until, DROP COLUMN old_bucket, DROP COLUMN bucket;
