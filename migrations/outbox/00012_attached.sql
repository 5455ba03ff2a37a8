-- +goose Up
-- A partition that held rows when it was attached stops a relay: nothing of them is
-- in the log. pg_upgrade attaches every partition anew, so that it has to be known
-- which of them a relay had looked at on the system before.
ALTER TABLE onceward.published_snapshots
  ADD COLUMN leaves   oid[],        -- the partitions that are attached in the snapshot; pg_upgrade keeps their oids; NULL: not known
  ADD COLUMN attached pg_snapshot;  -- of `adopt --by copy`: an attaching that is visible in it was looked at

-- +goose Down
ALTER TABLE onceward.published_snapshots DROP COLUMN leaves, DROP COLUMN attached;
