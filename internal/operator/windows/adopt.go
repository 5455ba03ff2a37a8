package windows

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/label"
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

// plannedAdoption is a new group, with the classes and partitions that it would get.
type plannedAdoption struct {
	cfg     retention.AdoptConfig
	planned *Adoption
}

// PlanAdopt says which classes a new group would get, and which partitions. It changes
// nothing.
func PlanAdopt(ctx context.Context, db *operator.Database, cfg retention.AdoptConfig) (operator.Order[*Adoption],
	error) {
	dry := cfg
	dry.DryRun = true
	planned, err := adopt(ctx, db, dry)
	return &plannedAdoption{cfg, planned}, err
}

// Question implements [operator.Order].
func (p *plannedAdoption) Question() string {
	return fmt.Sprintf("let the new group %s (classes %s) claim events from %s on, and make %s for it",
		p.cfg.Group, strings.Join(p.planned.Classes, ", "), p.cfg.From.UTC().Format(time.DateOnly), label.Count(len(p.planned.Made), "partition"))
}

// CarryOut lets the group claim the events of an old topic as its own.
func (p *plannedAdoption) CarryOut(ctx context.Context, db *operator.Database, reason string) (*Adoption, error) {
	p.cfg.Reason = reason
	return adopt(ctx, db, p.cfg)
}

func adopt(ctx context.Context, db *operator.Database, cfg retention.AdoptConfig) (*Adoption, error) {
	var done retention.AdoptReport
	err := db.Direct(ctx, func(conn *pgx.Conn) (err error) {
		done, err = retention.Adopt(ctx, conn, cfg)
		return err
	})
	if err != nil {
		return nil, operator.ExplainConsumersMaintainer(err)
	}
	report := &Adoption{Group: cfg.Group, Made: operator.NotNil(done.Made), Floors: make(map[string]string),
		Reason: cfg.Reason, Classes: done.Classes}
	for class, floor := range done.Floors {
		report.Floors[class] = floor.UTC().Format(time.RFC3339)
	}
	return report, nil
}
