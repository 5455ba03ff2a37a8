package statement

import (
	"context"
	"strings"

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
	config := tx.Conn().Config() // a copy
	switch {
	case config.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement:
		return Queries{q, q}
	case config.DescriptionCacheCapacity <= 0:
		return Queries{q, consumerdb.New(planned{tx, pgx.QueryExecModeDescribeExec})}
	}
	return Queries{q, consumerdb.New(planned{tx, pgx.QueryExecModeCacheDescribe})}
}

// Claim inserts claims and returns the ids of those that are new. That of an event which is alone has a
// statement of its own, which spares the server a fifth of a message. Events that share the transaction
// get to know which it is.
func (q Queries) Claim(ctx context.Context, claims consumerdb.ClaimEventsParams, alone bool) (inserted []string,
	xact string, err error) {
	if alone && len(claims.EventIds) == 1 {
		n, err := q.ClaimEvent(ctx, consumerdb.ClaimEventParams{ConsumerGroup: claims.ConsumerGroup,
			EventID: claims.EventIds[0], EventType: claims.EventTypes[0], Namespace: claims.Namespaces[0],
			Fingerprint: claims.Fingerprints[0]})
		return claims.EventIds[:n], "", err
	}
	row, err := q.ClaimEvents(ctx, claims)
	return strings.FieldsFunc(row.EventIds, func(r rune) bool { return r == ',' }), row.Xact, err
}
