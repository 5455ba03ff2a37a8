package main

import (
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/migrations"
)

func rolesCommand() *cli.Command {
	return &cli.Command{
		Name:  "roles",
		Usage: "make the roles of one side, each with no more rights than it needs",
		Description: "Roles belong to the whole cluster and are made by the DBA, once and after each upgrade; migrations\n" +
			"need none of it. --print shows the SQL and connects to nothing. --apply runs it in one transaction,\n" +
			"as a superuser. Passwords are the DBA's: the statements for them are shown and never run.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "side", Usage: "`SIDE` of the database: outbox (the producer's) or consumer"},
			&cli.StringFlag{Name: "prefix", Value: migrations.DefaultPrefix, Usage: "`PREFIX` of the roles' names"},
			&cli.BoolFlag{Name: "print", Usage: "print the SQL"},
			&cli.BoolFlag{Name: "apply", Usage: "run the SQL"},
			outputFlag(),
		}, dsnFlags()...),
		Action: migrateRoles,
	}
}

// rolesReport is the JSON answer of roles.
type rolesReport struct {
	Side    string   `json:"side"`
	Roles   []string `json:"roles"`
	Applied bool     `json:"applied"`
	SQL     []string `json:"sql"`
	Logins  []string `json:"logins"`
}

func migrateRoles(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if err := noArgument(c, ""); err != nil {
		return err
	}
	if c.Bool("print") == c.Bool("apply") {
		return usage("%s: give one of --print and --apply", c.Command.HelpName)
	}
	if c.String("side") == "" {
		return usage("%s: --side is missing; want outbox (the producer's database) or consumer (the consumer's database)", c.Command.HelpName)
	}
	roles, err := migrations.NewRoles(migrations.Side(c.String("side")), c.String("prefix"))
	if err != nil {
		return usage("%s: %v", c.Command.HelpName, err)
	}
	report := rolesReport{Side: c.String("side"), Applied: c.Bool("apply"), SQL: roles.SQL(), Logins: roles.Logins()}
	for _, role := range roles.All() {
		report.Roles = append(report.Roles, roles.Name(role))
	}
	if report.Applied {
		db, err := connect(c)
		if err != nil {
			return err
		}
		defer db.Close()
		if err := roles.Apply(c.Context, db); err != nil {
			return err
		}
	}
	return answer(c, report, report.print)
}

func (r rolesReport) print(p *page) {
	comment := ""
	if r.Applied {
		for _, role := range r.Roles {
			p.line("role %s has its rights", role)
		}
		p.line("\nnow say who logs in, for example:")
	} else {
		for _, sql := range r.SQL {
			p.line("%s;", sql)
		}
		comment = "-- "
		p.line("-- Who logs in is yours to say, for example:")
	}
	for _, sql := range r.Logins {
		p.line("%s%s;", comment, sql)
	}
}
