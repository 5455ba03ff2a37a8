package pinned

// Path is the search_path of our sessions: no schema in which anybody could make
// a function, and temporary tables last.
const Path = "pg_catalog, pg_temp"

// Local pins the transaction that it is the first statement of. Under
// row_security = off a row filter is an error and not a short answer: events that
// a reader does not see would count as published.
const Local = "SET LOCAL search_path = " + Path + "; SET LOCAL row_security = off"

// Begin begins a transaction that is pinned, in one round trip, as
// pgx.TxOptions.BeginQuery.
const Begin = "BEGIN; " + Local

// BeginReadOnly is [Begin] for a transaction that only reads.
const BeginReadOnly = "BEGIN READ ONLY; " + Local

// Startup sets the startup parameters of a direct connection. They outrank what is set
// for the role and the database; a parameter of the DSN is overwritten. A session of ours
// that has nothing to do is meant to stand there, hence idle_session_timeout.
func Startup(params map[string]string) {
	params["search_path"] = Path
	params["row_security"] = "off"
	params["idle_session_timeout"] = "0"
}
