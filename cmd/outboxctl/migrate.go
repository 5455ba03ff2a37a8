package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/partitions"
	"github.com/onceward/onceward/internal/operator/windows"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/migrations"
)

func migrateCommand() *cli.Command {
	dryRun := &cli.BoolFlag{Name: "dry-run", Usage: "print the SQL that would run, and run nothing"}
	return &cli.Command{
		Name:  "migrate",
		Usage: "install, look at or remove the tables of one side",
		Subcommands: []*cli.Command{
			{
				Name:   "up",
				Usage:  "install the tables or bring them up to date, with partitions for the days around today",
				Flags:  migrateFlags(dryRun),
				Action: func(c *cli.Context) error { return withMigrator(c, migrateUp) },
			},
			{
				Name:   "down",
				Usage:  "remove the tables with everything in them",
				Flags:  migrateFlags(dryRun, &cli.BoolFlag{Name: "yes", Usage: "really do it"}),
				Action: func(c *cli.Context) error { return withMigrator(c, migrateDown) },
			},
			{
				Name:   "status",
				Usage:  "say what is installed and what is missing",
				Flags:  migrateFlags(),
				Action: func(c *cli.Context) error { return withMigrator(c, migrateStatus) },
			},
			rolesCommand(),
		},
	}
}

func migrateFlags(more ...cli.Flag) []cli.Flag {
	own := []cli.Flag{
		&cli.StringFlag{Name: "side", Usage: "`SIDE` of the database: outbox (the producer's) or consumer"},
		&cli.StringFlag{Name: "relay", Usage: "`NAME` of the relay whose publication is made, on the outbox side"},
		outputFlag(),
	}
	return append(append(own, dsnFlags()...), more...)
}

func withMigrator(c *cli.Context, work func(*cli.Context, *operator.Database, *migrations.Migrator) error) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if err := noArgument(c, ""); err != nil {
		return err
	}
	if c.String("side") == "" {
		return usage("%s: --side is missing; want outbox (the producer's database) or consumer (the consumer's database)", c.Command.HelpName)
	}
	side, err := migrations.ParseSide(c.String("side"))
	if err != nil {
		return usage("--%v", err)
	}
	relay := c.String("relay")
	if relay != "" && side != migrations.Outbox {
		return usage("--relay %s: only the outbox side has a publication", relay)
	}
	if relay != "" {
		if err := migrations.ValidateRelay(relay); err != nil {
			return usage("--relay: %v", err)
		}
	}
	if c.Command.Name == "down" && !c.Bool("yes") && !c.Bool("dry-run") {
		return usage("migrate down removes every event, claim and dead letter of side %s; add --yes to do it, or --dry-run to see what it does", side)
	}
	db, err := connect(c)
	if err != nil {
		return err
	}
	defer db.Close()
	m, err := migrations.New(migrations.Config{Pool: db.Pool, Side: side, Relay: relay})
	if err != nil {
		return err
	}
	return operator.ExplainMigrator(c.Context, db, work(c, db, m), side)
}

// migrateReport is the JSON answer of up and down.
type migrateReport struct {
	Database    string   `json:"database"`
	Side        string   `json:"side"`
	From        int64    `json:"from_version"`
	To          int64    `json:"to_version"`
	Partitions  []string `json:"partitions_made"`
	Publication string   `json:"publication_made,omitempty"`
	Dropped     []string `json:"dropped,omitempty"`
	Kept        []string `json:"kept,omitempty"`
	NotValid    []string `json:"rules_not_valid,omitempty"`
}

func migrateUp(c *cli.Context, db *operator.Database, m *migrations.Migrator) error {
	if c.Bool("dry-run") {
		return printSQL(c, m.UpSQL)
	}
	res, err := m.Up(c.Context)
	if err != nil {
		return err
	}
	now, err := m.Status(c.Context)
	if err != nil {
		return err
	}
	return answer(c, newMigrateReport(c, db, res), func(p *page, report migrateReport) {
		switch {
		case res.From != res.To:
			p.line("database %s, side %s: version %d, was %d", report.Database, report.Side, res.To, res.From)
		default:
			p.line("database %s, side %s: version %d, nothing to migrate", report.Database, report.Side, res.To)
		}
		if n := len(res.Partitions); n > 0 {
			p.line("made %s: %s to %s", label.Count(n, "partition"), res.Partitions[0], res.Partitions[n-1])
		}
		if res.Publication != "" {
			p.line("made publication %s", res.Publication)
		}
		for _, rule := range res.NotValid {
			p.line("older rows break the rule %s of onceward.outbox; it holds for what is written from now on, and each migrate up looks again", rule)
		}
		if report.Side == string(migrations.Outbox) && len(now.Publications) == 0 {
			p.line("there is no publication; run it with --relay NAME before that relay starts for the first time")
		}
	})
}

func migrateDown(c *cli.Context, db *operator.Database, m *migrations.Migrator) error {
	if c.Bool("dry-run") {
		return printSQL(c, m.DownSQL)
	}
	res, err := m.Down(c.Context)
	if err != nil {
		return err
	}
	return answer(c, newMigrateReport(c, db, res), func(p *page, report migrateReport) {
		p.line("database %s, side %s: removed, was at version %d", report.Database, report.Side, res.From)
		for _, d := range res.Dropped {
			p.line("dropped %s", d)
		}
		for _, k := range res.Kept {
			p.line("kept %s", k)
		}
	})
}

func newMigrateReport(c *cli.Context, db *operator.Database, res migrations.Result) migrateReport {
	return migrateReport{
		Database: db.Name, Side: c.String("side"), From: res.From, To: res.To, Partitions: operator.NotNil(res.Partitions),
		Publication: res.Publication, Dropped: res.Dropped, Kept: res.Kept, NotValid: res.NotValid,
	}
}

// printSQL prints what would run, as a script or as a JSON array.
func printSQL(c *cli.Context, plan func(context.Context) ([]string, error)) error {
	statements, err := plan(c.Context)
	if err != nil {
		return err
	}
	return answer(c, operator.NotNil(statements), func(p *page, statements []string) {
		if len(statements) == 0 {
			p.line("-- nothing to do")
		}
		for _, s := range statements {
			p.block(strings.TrimSuffix(s, ";") + ";\n")
		}
	})
}

type migrateStatusReport struct {
	Database     string              `json:"database"`
	Side         string              `json:"side"`
	Version      int64               `json:"version"`
	Latest       int64               `json:"latest"`
	Pending      []string            `json:"pending"`
	Partitions   partitions.Extent   `json:"partitions"`
	Publications []publicationReport `json:"publications"`
	Missing      string              `json:"missing,omitempty"`
}

type publicationReport struct {
	Name   string   `json:"name"`
	Faults []string `json:"faults"`
}

// migrateStatus finds something wrong when up would change something, or
// could not.
func migrateStatus(c *cli.Context, db *operator.Database, m *migrations.Migrator) error {
	st, err := m.Status(c.Context)
	if err != nil {
		return err
	}
	report := migrateStatusReport{
		Database: db.Name, Side: string(st.Side), Version: st.Version, Latest: st.Latest,
		Pending: operator.NotNil(st.Pending), Partitions: partitions.ExtentOf(st),
		Publications: []publicationReport{}, Missing: st.Missing,
	}
	wrong := st.Version != st.Latest || st.Missing != "" || st.Default != ""
	for _, pub := range st.Publications {
		report.Publications = append(report.Publications,
			publicationReport{Name: pub.Name, Faults: operator.NotNil(pub.Faults)})
		wrong = wrong || len(pub.Faults) > 0
	}
	return judge(write(c, report, printMigrateStatus), wrong)
}

func printMigrateStatus(p *page, r migrateStatusReport) {
	version := strconv.FormatInt(r.Version, 10)
	switch {
	case r.Version == 0:
		version = fmt.Sprintf("not installed; run `outboxctl migrate up --side %s`", r.Side)
	case r.Version > r.Latest:
		version += fmt.Sprintf(", newer than this binary knows (%d); upgrade outboxctl", r.Latest)
	}
	p.pairs(
		[2]string{"database", r.Database}, [2]string{"side", r.Side},
		[2]string{"version", version},
		[2]string{"pending", strings.Join(r.Pending, ", ")},
		[2]string{"partitions", r.Partitions.String()},
	)
	for _, pub := range r.Publications {
		state := "good"
		if len(pub.Faults) > 0 {
			state = strings.Join(pub.Faults, ", ")
		}
		p.pairs([2]string{"publication", pub.Name + ": " + state})
	}
	if r.Missing != "" {
		p.line("! %s", r.Missing)
	}
	if name := r.Partitions.Default; name != "" {
		wrong := &partition.DefaultError{Table: partition.Outbox, Partition: name}
		if r.Side == string(migrations.Consumer) {
			wrong.Table = windows.ClaimsTable
		}
		p.line("! %v", wrong)
	}
}
