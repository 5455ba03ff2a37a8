package main

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/migrations"
)

func auditCommand() *cli.Command {
	return &cli.Command{
		Name:  "audit",
		Usage: "check in the consumer's database what must hold; exit code 3 when something does not, or was not looked at",
		Description: "It reads the catalog, the newest claims of each partition, and what indexes find: no DEFAULT partition, no hole,\n" +
			"no claim below the floor of its class, no key twice, each dead event with its letter, no effect without an end.\n" +
			"It changes nothing, ends within minutes on tables of any size, and may run at any time.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "group", Usage: "say of claims, letters, fences and windows only what is of the consumer group `NAME`; default: all"},
			outputFlag(),
		}, dsnFlags()...),
		Action: auditAll,
	}
}

// auditReport is the JSON answer.
type auditReport struct {
	Findings   []findingReport `json:"findings"`
	Unfinished []string        `json:"unfinished"` // checks that were cut short, or could not begin
}

type findingReport struct {
	Check   string `json:"check"`
	Group   string `json:"group,omitempty"`
	Subject string `json:"subject"`
	Count   int    `json:"count"`
	What    string `json:"what"`
	Do      string `json:"do"`
}

// String is one line for a person.
func (f findingReport) String() string {
	subject := f.Subject
	if f.Group != "" {
		subject = "group " + f.Group + ", " + subject
	}
	if f.Count > 1 {
		subject += fmt.Sprintf(" and %d more", f.Count-1)
	}
	return fmt.Sprintf("%s: %s: %s; %s", f.Check, subject, f.What, f.Do)
}

func newFindings(report consumer.AuditReport) []findingReport {
	out := []findingReport{}
	for _, f := range report.Findings {
		out = append(out, findingReport(f))
	}
	return out
}

func auditAll(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if err := noArgument(c, "to name a group: --group"); err != nil {
		return err
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	found, err := consumer.Audit(c.Context, db, consumer.AuditConfig{Group: c.String("group")})
	if err != nil && !errors.Is(err, consumer.ErrDefaultPartition) { // that one is among the findings
		return operator.Explain(err, migrations.Consumer)
	}
	report := &auditReport{Findings: newFindings(found), Unfinished: operator.NotNil(found.Unfinished)}
	if err := report.noteUnknown(c, db); err != nil {
		return operator.Explain(err, migrations.Consumer)
	}
	if err := answer(c, report, printAudit); err != nil {
		return err
	}
	if len(report.Findings)+len(report.Unfinished) > 0 {
		return errWrong
	}
	return nil
}

// noteUnknown says of a group that has never begun here that nothing of it was
// checked: its name may be wrong.
func (r *auditReport) noteUnknown(c *cli.Context, db *operator.Database) error {
	group := c.String("group")
	if group == "" {
		return nil
	}
	known, err := consumerdb.New(db).GroupKnown(c.Context, group)
	if err != nil {
		return fmt.Errorf("look for group %s: %w", group, err)
	}
	if !known {
		r.Findings = append(r.Findings, findingReport{
			Check: "unknown-group", Group: group, Subject: "this database", Count: 1,
			What: "nothing is known of the group, which has never begun here, so that nothing of it was checked", Do: "`outboxctl windows list` names those that have",
		})
	}
	return nil
}

// notFinished says of a check that nobody knows what it would have found.
func notFinished(cut string) string { return "not finished: " + cut }

func printAudit(p *page, r *auditReport) {
	for _, f := range r.Findings {
		p.line("! %s", f)
	}
	for _, cut := range r.Unfinished {
		p.line("! %s", notFinished(cut))
	}
	if len(r.Findings)+len(r.Unfinished) == 0 {
		p.line("nothing is wrong")
	}
}
