-- +goose Up
-- What the trigger of a closed partition does. Retention closes a partition
-- before it waits for what is in it, and detaches it last: see package relay.

-- +goose StatementBegin
CREATE FUNCTION onceward.refuse_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'partition % of onceward.outbox is closed', TG_TABLE_NAME
    USING ERRCODE = 'check_violation', SCHEMA = 'onceward', TABLE = 'outbox',
      DETAIL = 'The time in the event''s key is older than the outbox keeps events.',
      HINT = 'A key is made once, when the event happens, and used soon after.';
END
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $$
DECLARE closed regclass;
BEGIN
  FOR closed IN SELECT tgrelid FROM pg_catalog.pg_trigger WHERE tgfoid = 'onceward.refuse_insert'::regproc LOOP
    EXECUTE pg_catalog.format('DROP TRIGGER onceward_closed ON %s', closed);
  END LOOP;
END
$$;
-- +goose StatementEnd
DROP FUNCTION onceward.refuse_insert();
