-- Read by sqlc only: package migrations makes the schema before the first
-- versioned migration, because the version table lives in it.
CREATE SCHEMA onceward;
