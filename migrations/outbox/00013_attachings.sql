-- +goose Up
-- What a relay has looked at is an attaching: a partition that is detached, filled
-- and attached again is another one, and the row of pg_inherits tells, also of one
-- that was attached within a savepoint.
ALTER TABLE onceward.published_snapshots
  DROP COLUMN leaves, DROP COLUMN attached,
  ADD COLUMN attachings bigint[]; -- those in the snapshot: the partition's oid << 32 | xmin in pg_inherits; NULL: not known

-- +goose Down
ALTER TABLE onceward.published_snapshots DROP COLUMN attachings, ADD COLUMN leaves oid[], ADD COLUMN attached pg_snapshot;
