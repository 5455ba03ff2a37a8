package audit

import (
	"context"
	"errors"
	"fmt"

	"github.com/onceward/onceward/consumer"
	consumeraudit "github.com/onceward/onceward/consumer/audit"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/migrations"
)

// Report is what was found.
type Report struct {
	Findings   []Finding `json:"findings"`
	Unfinished []string  `json:"unfinished"` // checks that were cut short, or could not begin
}

// Finding is one thing that does not hold.
type Finding struct {
	Check   string `json:"check"`
	Group   string `json:"group,omitempty"`
	Subject string `json:"subject"`
	Count   int    `json:"count"`
	What    string `json:"what"`
	Do      string `json:"do"`
}

// String is one line for a person.
func (f Finding) String() string {
	subject := f.Subject
	if f.Group != "" {
		subject = "group " + f.Group + ", " + subject
	}
	if f.Count > 1 {
		subject += fmt.Sprintf(" and %d more", f.Count-1)
	}
	return fmt.Sprintf("%s: %s: %s; %s", f.Check, subject, f.What, f.Do)
}

// Problem is the finding where it stands among others of a report.
func (f Finding) Problem() operator.Problem {
	return operator.NewProblem(f.String()).Of(f.Check, "", "")
}

// Read checks in the consumer's database what must hold, of one group where it is
// named.
func Read(ctx context.Context, db *operator.Database, group string) (*Report, error) {
	found, err := consumeraudit.Check(ctx, db, consumeraudit.Config{Group: group})
	if err != nil && !errors.Is(err, consumer.ErrDefaultPartition) { // that one is among the findings
		return nil, operator.Explain(err, migrations.Consumer)
	}
	report := &Report{Findings: NewFindings(found), Unfinished: operator.NotNil(found.Unfinished)}
	return report, operator.Explain(report.noteUnknown(ctx, db, group), migrations.Consumer)
}

// Wrong tells that something is not as it must be, or was not looked at.
func (r *Report) Wrong() bool { return len(r.Findings)+len(r.Unfinished) > 0 }

// NewFindings are those of package consumer.
func NewFindings(report consumeraudit.Report) []Finding {
	out := []Finding{}
	for _, f := range report.Findings {
		out = append(out, Finding(f))
	}
	return out
}

// noteUnknown says of a group that has never begun here that nothing of it was
// checked: its name may be wrong.
func (r *Report) noteUnknown(ctx context.Context, db *operator.Database, group string) error {
	if group == "" {
		return nil
	}
	known, err := consumerdb.New(db).GroupKnown(ctx, group)
	if err != nil {
		return fmt.Errorf("look for group %s: %w", group, err)
	}
	if !known {
		r.Findings = append(r.Findings, Finding{
			Check: "unknown-group", Group: group, Subject: "this database", Count: 1,
			What: "nothing is known of the group, which has never begun here, so that nothing of it was checked", Do: "`outboxctl windows list` names those that have",
		})
	}
	return nil
}

// NotFinished says of a check that nobody knows what it would have found.
func NotFinished(cut string) operator.Problem { return operator.NewProblem("not finished: " + cut) }
