-- +goose Up
-- An event whose effects lie outside the database is open from its first effect to the transaction that ends it. The
-- rows of an open event have no expires_at; one of them, the first, keeps the event itself until the end.

-- The effect is the whole event: it was made outside of a delivery, and ends its event.
ALTER TABLE onceward.fences ADD COLUMN alone boolean; -- NULL: no

-- A PENDING effect whose program did not say how long its provider keeps a key had none: it was driven for ever.
UPDATE onceward.fences SET provider_key_until = created_at + interval '24 hours' WHERE status = 'PENDING' AND provider_key_until IS NULL;

CREATE INDEX fences_open ON onceward.fences (event_id, consumer_group) WHERE expires_at IS NULL;
DROP INDEX onceward.fences_expires;
CREATE INDEX fences_expires ON onceward.fences (expires_at) WHERE expires_at IS NOT NULL;

-- +goose Down
DROP INDEX onceward.fences_expires;
CREATE INDEX fences_expires ON onceward.fences (expires_at) WHERE status = 'COMPLETE';
DROP INDEX onceward.fences_open;
ALTER TABLE onceward.fences DROP COLUMN alone;
