-- +goose Up
-- What enqueue advises for a key of a time that no open partition covers: partitions are made
-- for today and the days to come, never again for a day that is over.
-- +goose StatementBegin
DO $do$
BEGIN
  EXECUTE pg_catalog.replace(
    pg_catalog.pg_get_functiondef('onceward.enqueue(text, text, text, text, bytea, text, jsonb, text)'::regprocedure),
    'Run outboxctl partitions maintain, or make the key nearer to the event.',
    'outboxctl partitions maintain makes those of today and the days to come; none of a day that is over: a key of such a day has to be made anew.');
END
$do$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $do$
BEGIN
  EXECUTE pg_catalog.replace(
    pg_catalog.pg_get_functiondef('onceward.enqueue(text, text, text, text, bytea, text, jsonb, text)'::regprocedure),
    'outboxctl partitions maintain makes those of today and the days to come; none of a day that is over: a key of such a day has to be made anew.',
    'Run outboxctl partitions maintain, or make the key nearer to the event.');
END
$do$;
-- +goose StatementEnd
