package windows

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/operator"
)

// Adoption is a group that claims the events of an old topic as its own.
type Adoption struct {
	Group  string            `json:"group"`
	Made   []string          `json:"partitions_made"`
	Floors map[string]string `json:"floors"` // by class
	Reason string            `json:"reason"`

	Classes []string `json:"-"` // in their order
}

// PlanAdopt says which classes a new group would get, and which partitions. It changes
// nothing.
func PlanAdopt(ctx context.Context, db *operator.Database, cfg consumer.AdoptConfig) (*Adoption, error) {
	cfg.DryRun = true
	return Adopt(ctx, db, cfg)
}

// Adopt lets a new group claim the events of an old topic as its own.
func Adopt(ctx context.Context, db *operator.Database, cfg consumer.AdoptConfig) (*Adoption, error) {
	var done consumer.AdoptReport
	err := db.Direct(ctx, func(conn *pgx.Conn) (err error) {
		done, err = consumer.Adopt(ctx, conn, cfg)
		return err
	})
	if err != nil {
		return nil, operator.ExplainConsumersMaintainer(err)
	}
	report := &Adoption{Group: cfg.Group, Made: operator.NotNil(done.Made), Floors: make(map[string]string), Reason: cfg.Reason, Classes: done.Classes}
	for class, floor := range done.Floors {
		report.Floors[class] = floor.UTC().Format(time.RFC3339)
	}
	return report, nil
}
