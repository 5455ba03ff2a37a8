package statement

import (
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/consumerdb"
)

// Queries are the statements of a delivery. Those that find rows of
// processed_events by their ids are planned each time: a plan that is kept for
// any ids locks every partition.
type Queries struct {
	*consumerdb.Queries
	ByID *consumerdb.Queries
}

// On returns those of a transaction of pgx.
func On(tx pgx.Tx) Queries {
	q := consumerdb.New(tx)
	if tx.Conn().Config().DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		return Queries{q, q}
	}
	return Queries{q, consumerdb.New(planned{tx})}
}
