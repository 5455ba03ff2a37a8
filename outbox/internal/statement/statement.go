// Package statement holds the SQL that package outbox sends.
//
// It is a package of its own so that outboxtest can play a database without one:
// the recorder there knows a statement by its text and its arguments by their
// order. Nothing else may depend on either.
//
// Every parameter that is not text is cast in the statement and given as a string
// or bytes. That way the statements work in each of pgx's query modes, among them
// those that PgBouncer in transaction mode asks for, and with database/sql.
//
// They run in transactions of others, whose search_path is not ours to set. So
// every function, operator and type is named with its schema, or somebody who may
// create a function in a schema of that path would run it with the rights of the
// service. IS NOT DISTINCT FROM, IN and the like cannot be named so, and are
// written out.
package statement

const columns = `(id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, headers, traceparent)`

// Insert writes one event: the arguments are the columns in their order.
const Insert = `INSERT INTO onceward.outbox
 ` + columns + `
VALUES ($1::pg_catalog.uuid, $2, $3, $4, $5, $6::pg_catalog.bytea, $7, $8::pg_catalog.jsonb, $9) ON CONFLICT DO NOTHING`

// Compare tells whether the event that has the key is the same as the one given
// by the first eight arguments of Insert. It compares all that makes the event, and
// not the trace context, which differs between two tries. No row: the event is gone.
const Compare = `SELECT namespace OPERATOR(pg_catalog.=) $2 AND aggregate_type OPERATOR(pg_catalog.=) $3
 AND aggregate_id OPERATOR(pg_catalog.=) $4 AND event_type OPERATOR(pg_catalog.=) $5
 AND COALESCE(payload OPERATOR(pg_catalog.=) $6::pg_catalog.bytea, payload IS NULL AND $6::pg_catalog.bytea IS NULL)
 AND content_type OPERATOR(pg_catalog.=) $7
 AND COALESCE(headers OPERATOR(pg_catalog.=) $8::pg_catalog.jsonb, headers IS NULL AND $8::pg_catalog.jsonb IS NULL)
FROM onceward.outbox WHERE id OPERATOR(pg_catalog.=) $1::pg_catalog.uuid`

// Filtered tells whether a row that has the key may be there and not be shown: the
// role is bound to a namespace, and the key taken by an event of another.
const Filtered = `SELECT pg_catalog.row_security_active('onceward.outbox'::pg_catalog.regclass)`

// Call is Insert and Compare in one, for a batch: the SQL function of the outbox.
// The arguments are those of Insert, with the whole key in place of its two parts.
// Other content is an SQL error there and so ends the transaction, and so is an encoding over which text would
// become another: who queues it has no connection yet, to look at that. No such parameter as [Encoding] exists.
const Call = `SELECT CASE WHEN pg_catalog.current_setting('client_encoding') OPERATOR(pg_catalog.=) ANY ('{UTF8,UNICODE,SQL_ASCII}'::pg_catalog.text[])
 THEN onceward.enqueue($1, $2, $3, $4, $5::pg_catalog.bytea, $6, $7::pg_catalog.jsonb, $8) ELSE pg_catalog.current_setting('` + Encoding + `') END`

// Encoding is in the error of [Call] over a connection whose client_encoding is another.
const Encoding = "onceward.client_encoding_is_not_UTF8"

// rows turns nine arrays, one per column, into the rows of a SELECT, numbered
// from 1 in the order of the arrays.
const rows = `ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]::pg_catalog.uuid[]), pg_catalog.unnest($2::pg_catalog.text[]),
  pg_catalog.unnest($3::pg_catalog.text[]), pg_catalog.unnest($4::pg_catalog.text[]), pg_catalog.unnest($5::pg_catalog.text[]),
  pg_catalog.unnest($6::pg_catalog.bytea[]), pg_catalog.unnest($7::pg_catalog.text[]), pg_catalog.unnest($8::pg_catalog.text[]),
  pg_catalog.unnest($9::pg_catalog.text[]))
 WITH ORDINALITY AS e (id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, headers, traceparent, n)`

// InsertMany writes the events of the arrays in their order, which the column
// seq follows, and returns the ids of those it wrote as one array, NULL for none.
const InsertMany = `WITH written AS (INSERT INTO onceward.outbox
 ` + columns + `
SELECT id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, headers::pg_catalog.jsonb, traceparent
FROM ` + rows + ` ORDER BY n ON CONFLICT DO NOTHING RETURNING id) SELECT pg_catalog.array_agg(id::pg_catalog.text) FROM written`

// CompareMany is Compare for arrays: one element per event in their order, NULL
// where the event is gone.
const CompareMany = `SELECT pg_catalog.array_agg(CASE WHEN o.id IS NOT NULL THEN
  o.namespace OPERATOR(pg_catalog.=) e.namespace AND o.aggregate_type OPERATOR(pg_catalog.=) e.aggregate_type
  AND o.aggregate_id OPERATOR(pg_catalog.=) e.aggregate_id AND o.event_type OPERATOR(pg_catalog.=) e.event_type
  AND COALESCE(o.payload OPERATOR(pg_catalog.=) e.payload, o.payload IS NULL AND e.payload IS NULL)
  AND o.content_type OPERATOR(pg_catalog.=) e.content_type
  AND COALESCE(o.headers OPERATOR(pg_catalog.=) e.headers::pg_catalog.jsonb, o.headers IS NULL AND e.headers IS NULL) END ORDER BY n)
FROM ` + rows + ` LEFT JOIN onceward.outbox AS o ON o.id OPERATOR(pg_catalog.=) e.id`
