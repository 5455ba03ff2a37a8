package relay

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/onceward/cdc"
)

// permanent reports whether trying again cannot mend the error, so that an
// operator must be told at once: a precondition that is not met, a wrong
// configuration, an event that cannot be published, or an SQLSTATE that says
// refused (28: login, 42: rights and names, 3D: no such database, 58P01: log
// removed). Everything else is tried again for ever.
func permanent(err error) bool {
	var start *cdc.StartError
	var field *FieldError
	var decode *cdc.DecodeError
	var layout *cdc.LayoutError
	var rival *RivalError
	if errors.As(err, &start) {
		return !start.Passing
	}
	if errors.As(err, &field) || errors.As(err, &decode) || errors.As(err, &layout) || errors.As(err, &rival) {
		return true
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || len(pg.Code) < 2 {
		return false
	}
	switch pg.Code[:2] {
	case "28", "42", "3D", "3F":
		return true
	}
	return pg.Code == "58P01"
}
