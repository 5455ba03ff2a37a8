package pgconf

// OldestServer is the oldest server that is supported, as server_version_num has it.
const OldestServer = 150000

// OutboxSchema is the migration of side outbox that the relay of this release needs. A
// later one is let pass: the schema of an upgrade comes while the old relay runs.
const OutboxSchema = 16

// Path is the search_path of our sessions: no schema in which anybody could make
// a function, and temporary tables last.
const Path = "pg_catalog, pg_temp"

// EverybodyElse is the policy by which row-level security on onceward.outbox, there
// for producers that are bound to a namespace, hides nothing from a role.
const EverybodyElse = "onceward_everybody_else"

// Local pins the transaction that it is the first statement of. Under
// row_security = off a row filter is an error and not a short answer: events that
// a reader does not see would count as published. PostgreSQL refuses a policy that
// hides nothing there too, so that row_security stays on where ours covers the role:
// BYPASSRLS is not inherited, and an operator should not have it.
const Local = "SET LOCAL search_path = " + Path + `; SET LOCAL jit = off; SELECT pg_catalog.set_config('row_security', CASE WHEN EXISTS (
  SELECT FROM pg_catalog.pg_policy AS p
  WHERE p.polrelid = pg_catalog.to_regclass('onceward.outbox') AND p.polname = '` + EverybodyElse + `'
    AND p.polpermissive AND p.polcmd = '*' AND pg_catalog.pg_get_expr(p.polqual, p.polrelid) = 'true'
    AND EXISTS (SELECT FROM pg_catalog.unnest(p.polroles) AS r (role) WHERE pg_catalog.pg_has_role(r.role, 'USAGE'))
) AND NOT EXISTS (
  SELECT FROM pg_catalog.pg_policy AS p WHERE p.polrelid = pg_catalog.to_regclass('onceward.outbox') AND NOT p.polpermissive
) THEN 'on' ELSE 'off' END, true)`

// Begin begins a transaction that is pinned, in one round trip, as
// pgx.TxOptions.BeginQuery. Its statements see what was committed while they waited for a
// lock, whatever default_transaction_isolation is.
const Begin = "BEGIN ISOLATION LEVEL READ COMMITTED; " + Local

// BeginReadOnly is [Begin] for a transaction that only reads.
const BeginReadOnly = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; " + Local

// Startup sets the startup parameters of a direct connection. They outrank what is set
// for the role and the database; a parameter of the DSN is overwritten. A session of ours
// that has nothing to do is meant to stand there, hence idle_session_timeout; a slot that is made
// waits for whoever writes, and a gap that is counted has millions of rows, hence the two that bound statements: ours
// have bounds of their own. Compiling a statement of ours takes longer than running it: hence jit, here and in [Local].
func Startup(params map[string]string) {
	Text(params)
	params["default_transaction_isolation"] = "read committed" // a stricter one fails what has to wait
	params["search_path"] = Path
	params["row_security"] = "off"
	params["idle_session_timeout"] = "0"
	params["statement_timeout"] = "0"
	params["lock_timeout"] = "0"
	params["jit"] = "off"
}

// Text sets what decides how text goes to the server and back, which a role or a database may have set
// otherwise: what was written would be published as something else. Poolers let both pass.
func Text(params map[string]string) {
	params["client_encoding"] = "UTF8"
	params["standard_conforming_strings"] = "on"
}
