-- +goose Up
-- retire_relay as it was, but that it refuses while a process lives of any relay, not only of
-- one that never began: a relay that is halted or tries again has no slot, and would begin anew.
-- It names the session, which the server has for hours where the process's host is gone.
-- +goose StatementBegin
DO $do$
BEGIN
  EXECUTE pg_catalog.replace(pg_catalog.replace(pg_catalog.pg_get_functiondef('onceward.retire_relay(text, text)'::regprocedure),
    'WHERE h.slot = retire_relay.slot;
    IF EXISTS (', 'WHERE h.slot = retire_relay.slot;
  END IF;
  IF pg_catalog.to_regclass(''onceward.relay_health'') IS NOT NULL THEN
    IF EXISTS ('),
    '''a process of relay % lives: stop it first'', relay_name USING',
    '''a process of relay % lives: stop it first; where its host is gone: SELECT pg_catalog.pg_terminate_backend(%);'', relay_name,
        (SELECT pg_catalog.min(a.pid) FROM onceward.relay_health AS h JOIN pg_catalog.pg_stat_activity AS a ON a.datname = pg_catalog.current_database() AND a.application_name = ''onceward process '' || h.process WHERE h.slot = retire_relay.slot) USING');
END
$do$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $do$
BEGIN
  EXECUTE pg_catalog.replace(pg_catalog.replace(pg_catalog.pg_get_functiondef('onceward.retire_relay(text, text)'::regprocedure),
    'WHERE h.slot = retire_relay.slot;
  END IF;
  IF pg_catalog.to_regclass(''onceward.relay_health'') IS NOT NULL THEN
    IF EXISTS (', 'WHERE h.slot = retire_relay.slot;
    IF EXISTS ('),
    '''a process of relay % lives: stop it first; where its host is gone: SELECT pg_catalog.pg_terminate_backend(%);'', relay_name,
        (SELECT pg_catalog.min(a.pid) FROM onceward.relay_health AS h JOIN pg_catalog.pg_stat_activity AS a ON a.datname = pg_catalog.current_database() AND a.application_name = ''onceward process '' || h.process WHERE h.slot = retire_relay.slot) USING',
    '''a process of relay % lives: stop it first'', relay_name USING');
END
$do$;
-- +goose StatementEnd
