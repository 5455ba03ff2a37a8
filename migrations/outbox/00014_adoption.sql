-- +goose Up
-- adopt_kafka as it was, but that of a retry which the checkpoint has passed, and which nobody
-- settled yet, the letters are in the old cluster as well; that a repair which begins anew is
-- another gap, of which no checkpoint in the new cluster says how far it had come; and that it
-- waits for a partition that retention detaches: nobody would publish its rows.
-- +goose StatementBegin
DO $do$
DECLARE
  was text := pg_catalog.pg_get_functiondef('onceward.adopt_kafka(text, text, text, text, text)'::regprocedure);
BEGIN
  IF pg_catalog.strpos(was, 'leaving text') > 0 THEN
    RETURN;
  END IF;
  was := pg_catalog.replace(was, 'd.state = ''replayed'' AND EXISTS',
    '(d.state = ''replayed'' OR d.state = ''retrying'' AND d.retry_index IS NOT NULL AND d.retry_position < relay.confirmed_lsn) AND EXISTS');
  was := pg_catalog.replace(was, 'SET cursor = DEFAULT WHERE', 'SET cursor = DEFAULT, gap_id = pg_catalog.gen_random_uuid() WHERE');
  was := pg_catalog.replace(was, '  IF adopt_kafka.how = ''gap'' AND covered IS NOT NULL THEN
', '  SELECT pg_catalog.format(''%I.%I'', ''onceward'', c.relname) INTO leaving FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = c.oid AND t.tgname = ''onceward_closed'' AND t.tgfoid = ''onceward.refuse_insert()''::regprocedure
    LEFT JOIN pg_catalog.pg_inherits AS i ON i.inhrelid = c.oid AND i.inhparent = ''onceward.outbox''::regclass
    WHERE c.relnamespace = ''onceward''::regnamespace AND c.relkind = ''r'' AND (i.inhrelid IS NULL OR i.inhdetachpending) LIMIT 1;
  IF adopt_kafka.how = ''gap'' AND leaving IS NOT NULL THEN
    RAISE EXCEPTION ''partition % is detached, and not dropped yet: its events would be in doubt, and no repair reads them. Attach it again, or let `outboxctl partitions maintain` drop it first'', leaving
      USING ERRCODE = ''OW006'';
  END IF;
  IF adopt_kafka.how = ''gap'' AND covered IS NOT NULL THEN
');
  was := pg_catalog.replace(was, '  letters bigint := 0;
', '  letters bigint := 0;
  leaving text;
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
  was := pg_catalog.regexp_replace(was, '  SELECT pg_catalog.format\(''%I.%I''.*?  END IF;\n', '');
  was := pg_catalog.replace(was, '  leaving text;
', '');
  EXECUTE was;
END
$do$;
-- +goose StatementEnd
