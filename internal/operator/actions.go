package operator

import (
	"context"
	"time"

	"github.com/onceward/onceward/internal/consumerdb"
)

// Action is one row of onceward.consumer_actions.
type Action struct {
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Action string    `json:"action"`
	Group  string    `json:"group"`
	Target string    `json:"target"`
	Reason string    `json:"reason"`
}

// ActionsOn lists what operators did about the targets.
func ActionsOn(ctx context.Context, q *consumerdb.Queries, group string, targets []string) ([]Action, error) {
	rows, err := q.ActionsOn(ctx, consumerdb.ActionsOnParams{Targets: NotNil(targets), ConsumerGroup: group})
	out := []Action{}
	for _, v := range rows {
		out = append(out, Action{At: v.At.UTC(), By: v.ByRole, Action: v.Action, Group: v.ConsumerGroup,
			Target: v.Target, Reason: v.Reason})
	}
	return out, err
}
