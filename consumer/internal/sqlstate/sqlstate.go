package sqlstate

import "errors"

// Infrastructure judges one of a statement of ours: it says nothing of the event, and
// passes when it is tried again.
func Infrastructure(code string) bool {
	switch code {
	case "25006", // read-only: a standby answers, after a failover
		"25P03",                   // idle in transaction for too long
		"40001", "40003", "40P01", // serialization, completion unknown, deadlock
		"55000",                                     // recovery is in progress
		"55P03",                                     // lock not available
		"57P01", "57P02", "57P03", "57P04", "57P05": // shutting down, crashed, starting, dropped, idle
		return true
	}
	// Connection exceptions, insufficient resources, errors of the system.
	return len(code) == 5 && (code[:2] == "08" || code[:2] == "53" || code[:2] == "58")
}

// Handlers judges one that broke the transaction of a handler: one that
// its own statements cause.
func Handlers(code string) bool {
	return !Infrastructure(code) || code == "53400" || code == "55P03" || code == "25P03" || code == "55000" || code == "25006"
}

// Conflict judges one by which a transaction gives way to another one.
func Conflict(code string) bool { return code == "40001" || code == "40P01" }

// Installation judges one of a statement of ours: a missing right,
// table, column or schema.
func Installation(code string) bool {
	return code == "42501" || code == "42P01" || code == "42703" || code == "3F000"
}

// Is reports whether the server sent this one.
func Is(err error, code string) bool {
	found, ok := Of(err)
	return ok && found == code
}

// Of returns the SQLSTATE of an error that the server sent.
func Of(err error) (code string, ok bool) {
	var coded interface{ SQLState() string } // pgx and lib/pq
	if !errors.As(err, &coded) {
		return "", false
	}
	return coded.SQLState(), true
}
