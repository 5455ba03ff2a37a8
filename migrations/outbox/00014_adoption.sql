-- +goose Up
-- A partition that retention detaches, or is about to, or that was detached closed: no repair
-- reads it. Who asks locks relay_actions first, for which retention waits once it has said so.
CREATE OR REPLACE FUNCTION onceward.leaving_partition() RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $leaving$
SELECT pg_catalog.format('onceward.%I', c.relname) FROM pg_catalog.pg_class AS c
  JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = c.oid AND t.tgname = 'onceward_closed' AND t.tgfoid = 'onceward.refuse_insert()'::regprocedure
  LEFT JOIN pg_catalog.pg_inherits AS i ON i.inhrelid = c.oid AND i.inhparent = 'onceward.outbox'::regclass
  WHERE c.relnamespace = 'onceward'::regnamespace AND c.relkind = 'r' AND
    (i.inhrelid IS NULL OR i.inhdetachpending OR pg_catalog.obj_description(t.oid, 'pg_trigger') LIKE '%, and detached by it') LIMIT 1
$leaving$;
REVOKE ALL ON FUNCTION onceward.leaving_partition() FROM PUBLIC;
COMMENT ON FUNCTION onceward.leaving_partition() IS
  'A closed partition that is detached, or that retention detaches, and not dropped; null: there is none.';

-- What was given up, or is older than a relay, is repaired later only while no such
-- partition is there: retention would find the repair done, and its rows unpublished.
-- +goose StatementBegin
DO $do$
DECLARE
  was text := pg_catalog.pg_get_functiondef('onceward.decide_gap(uuid, text, text, text)'::regprocedure);
BEGIN
  IF pg_catalog.strpos(was, 'leaving_partition') > 0 THEN
    RETURN;
  END IF;
  was := pg_catalog.replace(was, '  SELECT * INTO gap FROM', '  LOCK TABLE onceward.relay_actions IN ROW EXCLUSIVE MODE;
  SELECT * INTO gap FROM');
  EXECUTE pg_catalog.replace(was, '  END IF;
  UPDATE onceward.gaps AS g
', '  ELSIF decide_gap.decision = ''repairing'' AND gap.state <> ''open'' AND onceward.leaving_partition() IS NOT NULL THEN
    RAISE EXCEPTION ''partition % is detached, and not dropped yet: no repair reads its events. Let `outboxctl partitions maintain --config relay.yaml` drop it first, or do what that says of it'', onceward.leaving_partition()
      USING ERRCODE = ''OW006'';
  END IF;
  UPDATE onceward.gaps AS g
');
END
$do$;
-- +goose StatementEnd

-- adopt_kafka as it was, but that of a retry which the checkpoint has passed, and which nobody
-- settled yet, the letters are in the old cluster as well; that a repair which begins anew is
-- another gap, of which no checkpoint in the new cluster says how far it had come; and that it
-- waits for a partition that retention detaches: nobody would publish its rows.
-- +goose StatementBegin
DO $do$
DECLARE
  was text := pg_catalog.pg_get_functiondef('onceward.adopt_kafka(text, text, text, text, text)'::regprocedure);
BEGIN
  IF pg_catalog.strpos(was, 'leaving_partition') > 0 THEN
    RETURN;
  END IF;
  was := pg_catalog.replace(was, 'd.state = ''replayed'' AND EXISTS',
    '(d.state = ''replayed'' OR d.state = ''retrying'' AND d.retry_index IS NOT NULL AND d.retry_position < relay.confirmed_lsn) AND EXISTS');
  was := pg_catalog.replace(was, 'SET cursor = DEFAULT WHERE', 'SET cursor = DEFAULT, gap_id = pg_catalog.gen_random_uuid() WHERE');
  was := pg_catalog.replace(was, '  IF adopt_kafka.how = ''gap'' AND covered IS NOT NULL THEN
', '  LOCK TABLE onceward.relay_actions IN ROW EXCLUSIVE MODE;
  IF adopt_kafka.how = ''gap'' AND onceward.leaving_partition() IS NOT NULL THEN
    RAISE EXCEPTION ''partition % is detached, and not dropped yet: its events would be in doubt, and no repair reads them. Let `outboxctl partitions maintain --config relay.yaml` drop it first, or do what that says of it'', onceward.leaving_partition()
      USING ERRCODE = ''OW006'';
  END IF;
  IF adopt_kafka.how = ''gap'' AND covered IS NOT NULL THEN
');
  EXECUTE was;
END
$do$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $do$
DECLARE
  was text := pg_catalog.pg_get_functiondef('onceward.adopt_kafka(text, text, text, text, text)'::regprocedure);
BEGIN
  was := pg_catalog.replace(was, '(d.state = ''replayed'' OR d.state = ''retrying'' AND d.retry_index IS NOT NULL AND d.retry_position < relay.confirmed_lsn) AND EXISTS',
    'd.state = ''replayed'' AND EXISTS');
  was := pg_catalog.replace(was, 'SET cursor = DEFAULT, gap_id = pg_catalog.gen_random_uuid() WHERE', 'SET cursor = DEFAULT WHERE');
  was := pg_catalog.replace(was, '  LOCK TABLE onceward.relay_actions IN ROW EXCLUSIVE MODE;
', '');
  was := pg_catalog.regexp_replace(was, '  IF adopt_kafka.how = ''gap'' AND onceward.leaving_partition.*?  END IF;\n', '');
  EXECUTE was;
  was := pg_catalog.pg_get_functiondef('onceward.decide_gap(uuid, text, text, text)'::regprocedure);
  was := pg_catalog.replace(was, '  LOCK TABLE onceward.relay_actions IN ROW EXCLUSIVE MODE;
', '');
  EXECUTE pg_catalog.regexp_replace(was, '  ELSIF [^\n]*?leaving_partition.*?(?=  END IF;\n)', '');
END
$do$;
-- +goose StatementEnd
DROP FUNCTION onceward.leaving_partition();
