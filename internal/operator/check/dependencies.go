package check

import (
	"context"

	"github.com/onceward/onceward/internal/hostile"
)

// dependencies finds what runs somebody else's code whenever a relay, a producer
// or an operator touches our tables.
func dependencies(ctx context.Context, conn hostile.Querier) Verdict {
	v := Verdict{Name: "foreign functions", Status: OK}
	found, err := hostile.Foreign(ctx, conn)
	switch {
	case err != nil:
		return failure(v.Name, err)
	case len(found) > 0:
		v.Status, v.Code, v.Detail, v.Cure = Failed, hostile.Code, hostile.List(found), hostile.Cure(found, "outbox")
	}
	return v
}
