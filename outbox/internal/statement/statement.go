// Package statement holds the SQL that package outbox sends.
//
// It is a package of its own so that outboxtest can play a database without one:
// the recorder there knows a statement by its text and its arguments by their
// order. Nothing else may depend on either.
//
// Every parameter that is not text is cast in the statement and given as a string
// or bytes. That way the statements work in each of pgx's query modes, among them
// those that PgBouncer in transaction mode asks for, and with database/sql.
package statement

const columns = `(id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, headers, traceparent)`

// Insert writes one event: the arguments are the columns in their order.
const Insert = `INSERT INTO onceward.outbox
 ` + columns + `
VALUES ($1::uuid, $2, $3, $4, $5, $6::bytea, $7, $8::jsonb, $9) ON CONFLICT DO NOTHING`

// Compare tells whether the event that has the key is the same as the one given
// by the first eight arguments of Insert. It compares all that makes the event, and
// not the trace context, which differs between two tries. No row: the event is gone.
const Compare = `SELECT namespace = $2 AND aggregate_type = $3 AND aggregate_id = $4 AND event_type = $5
 AND payload IS NOT DISTINCT FROM $6::bytea AND content_type = $7 AND headers IS NOT DISTINCT FROM $8::jsonb
FROM onceward.outbox WHERE id = $1::uuid`

// Call is Insert and Compare in one, for a batch: the SQL function of the outbox.
// The arguments are those of Insert, with the whole key in place of its two parts.
// Other content is an SQL error there and so ends the transaction.
const Call = `SELECT onceward.enqueue($1, $2, $3, $4, $5::bytea, $6, $7::jsonb, $8)`

// rows turns nine arrays, one per column, into the rows of a SELECT, numbered
// from 1 in the order of the arrays.
const rows = `unnest($1::text[]::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::text[], $9::text[])
 WITH ORDINALITY AS e (id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, headers, traceparent, n)`

// InsertMany writes the events of the arrays in their order, which the column
// seq follows, and returns the ids of those it wrote as one array, NULL for none.
const InsertMany = `WITH written AS (INSERT INTO onceward.outbox
 ` + columns + `
SELECT id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, headers::jsonb, traceparent
FROM ` + rows + ` ORDER BY n ON CONFLICT DO NOTHING RETURNING id) SELECT array_agg(id::text) FROM written`

// CompareMany is Compare for arrays: one element per event in their order, NULL
// where the event is gone.
const CompareMany = `SELECT array_agg(
  o.namespace = e.namespace AND o.aggregate_type = e.aggregate_type AND o.aggregate_id = e.aggregate_id AND o.event_type = e.event_type
  AND o.payload IS NOT DISTINCT FROM e.payload AND o.content_type = e.content_type AND o.headers IS NOT DISTINCT FROM e.headers::jsonb ORDER BY n)
FROM ` + rows + ` LEFT JOIN onceward.outbox AS o ON o.id = e.id`
