// Package topics makes the topics that a relay's routes lead to, for an operator who does
// not let the relay make them (topics.create).
//
// Which they are is what `relay check` looks at: those that routes name, those of the
// newest events in the table and of what waits. Making one that is there changes nothing;
// nothing is ever deleted or altered. Safe for concurrent use.
package topics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/check"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay"
)

// Report is what became of the topics.
type Report struct {
	Partitions        int32              `json:"partitions"` // of each that is made
	ReplicationFactor int16              `json:"replication_factor"`
	DryRun            bool               `json:"dry_run,omitempty"`
	Made              []string           `json:"made"` // with DryRun: would be made
	There             []string           `json:"there"`
	Checkpoint        string             `json:"checkpoint_made,omitempty"` // the topic of exactly-once mode, with partitions of its own
	Problems          []operator.Problem `json:"problems"`
}

// Wrong tells that a topic could not be made, or that it is not known which there are.
func (r *Report) Wrong() bool { return len(r.Problems) > 0 }

// Create makes what is missing; with dryRun it only says so. It connects to Kafka and,
// as the relay, to PostgreSQL; where PostgreSQL does not answer, a problem says that only
// the topics that routes name without a variable are known. The error says that Kafka
// cannot be asked, that it is another cluster than the one that the relay is bound to, or
// that the configuration is wrong.
func Create(ctx context.Context, cfg *relay.Config, dryRun bool) (*Report, error) {
	sink, err := cfg.Publisher(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	r := &Report{
		Partitions: sink.Topics.Partitions, ReplicationFactor: sink.Topics.ReplicationFactor, DryRun: dryRun,
		Problems: []operator.Problem{},
	}
	if err := check.BoundElsewhere(ctx, cfg); err != nil {
		return nil, fmt.Errorf("no topic was made: %w", err)
	}
	names, problems, err := check.Topics(ctx, cfg, sink)
	if err != nil {
		return nil, err
	}
	r.Problems = append(r.Problems, operator.Problems(problems...)...)
	missing, err := r.look(ctx, sink, names)
	if err != nil {
		return nil, err
	}
	r.checkpoint(ctx, cfg, sink)
	if r.Made = missing; dryRun || len(missing) == 0 {
		return r, nil
	}
	made, refused, err := publisher.CreateTopics(ctx, sink, missing)
	if err != nil {
		return nil, err
	}
	r.Made = operator.NotNil(made)
	for _, why := range refused {
		r.Problems = append(r.Problems, operator.ProblemOf(why))
	}
	return r, nil
}

// checkpoint makes the topic under which exactly-once mode keeps its checkpoint, where that is
// missing; one that is not as it must be is a problem.
func (r *Report) checkpoint(ctx context.Context, cfg *relay.Config, sink publisher.Config) {
	if cfg.Kafka.Mode != relay.ModeExactlyOnce {
		return
	}
	err := publisher.InspectCheckpoint(ctx, sink, false)
	var wrong *publisher.CheckpointError
	if errors.As(err, &wrong) && wrong.Missing {
		if r.Checkpoint = wrong.Topic; r.DryRun {
			return
		}
		err = publisher.InspectCheckpoint(ctx, sink, true)
	}
	if err != nil {
		r.Checkpoint = ""
		r.Problems = append(r.Problems, operator.ProblemOf(err))
	}
}

// look tells those that are missing from those that are there.
func (r *Report) look(ctx context.Context, sink publisher.Config, names []string) ([]string, error) {
	r.There = []string{}
	missing := []string{}
	if len(names) == 0 {
		return missing, nil
	}
	sink.Topics.Create = true // Missing is said of those that may be made
	found, err := publisher.Inspect(ctx, sink, names)
	if err != nil {
		return nil, fmt.Errorf("look at the topics: %w", err)
	}
	for _, v := range found {
		if v.Missing {
			missing = append(missing, v.Name)
		} else {
			r.There = append(r.There, v.Name)
		}
	}
	slices.Sort(missing)
	return missing, nil
}
