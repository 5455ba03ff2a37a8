-- +goose Up
-- retire_relay as it was, but that it refuses while a process lives of any relay, not only of
-- one that never began: a relay that is halted or tries again has no slot, and would begin anew.
-- +goose StatementBegin
DO $do$
BEGIN
  EXECUTE pg_catalog.replace(pg_catalog.pg_get_functiondef('onceward.retire_relay(text, text)'::regprocedure),
    'WHERE h.slot = retire_relay.slot;
    IF EXISTS (', 'WHERE h.slot = retire_relay.slot;
  END IF;
  IF pg_catalog.to_regclass(''onceward.relay_health'') IS NOT NULL THEN
    IF EXISTS (');
END
$do$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $do$
BEGIN
  EXECUTE pg_catalog.replace(pg_catalog.pg_get_functiondef('onceward.retire_relay(text, text)'::regprocedure),
    'WHERE h.slot = retire_relay.slot;
  END IF;
  IF pg_catalog.to_regclass(''onceward.relay_health'') IS NOT NULL THEN
    IF EXISTS (', 'WHERE h.slot = retire_relay.slot;
    IF EXISTS (');
END
$do$;
-- +goose StatementEnd
