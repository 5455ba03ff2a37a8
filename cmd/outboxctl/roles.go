package main

import (
	"context"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/migrations"
)

func rolesCommand() *cli.Command {
	return &cli.Command{
		Name:  "roles",
		Usage: "make the roles of one side, each with no more rights than it needs",
		Description: "Roles belong to the whole cluster and are made by the DBA, once and after each upgrade; migrations\n" +
			"need none of it. --print shows the SQL and connects to nothing. --apply runs it in one transaction,\n" +
			"as a superuser. Passwords are the DBA's: the statements for them are shown and never run.\n\n" +
			"Members of the writer's role trust one another: each may write events of every namespace and read\n" +
			"those of the others. --producer makes one role that may not: it writes and reads events of --namespace\n" +
			"only, by row-level security on onceward.outbox. Everybody else keeps what he has; who gets rights on the\n" +
			"outbox by hand later sees nothing of it until this command ran again for the side. COPY is refused to it.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "side", Usage: "`SIDE` of the database: outbox (the producer's) or consumer; with --producer it is outbox"},
			&cli.StringFlag{Name: "prefix", Value: migrations.DefaultPrefix, Usage: "`PREFIX` of the roles' names, which are the cluster's: databases with one prefix share them"},
			&cli.StringFlag{Name: "producer", Usage: "bind the role `NAME`, made where it is not there, to one namespace"},
			&cli.StringFlag{Name: "namespace", Usage: "`NAMESPACE` of the keys that the producer may write"},
			&cli.BoolFlag{Name: "remove", Usage: "take the producer's rights away again; the role stays"},
			&cli.BoolFlag{Name: "print", Usage: "print the SQL"},
			&cli.BoolFlag{Name: "apply", Usage: "run the SQL"},
			outputFlag(),
		}, dsnFlags()...),
		Action: migrateRoles,
	}
}

// rolesReport is the JSON answer of roles.
type rolesReport struct {
	Side      string   `json:"side"`
	Roles     []string `json:"roles"`
	Namespace string   `json:"namespace,omitempty"` // to which the role is bound
	Removed   bool     `json:"removed,omitempty"`
	Applied   bool     `json:"applied"`
	Warnings  []string `json:"warnings,omitempty"`
	SQL       []string `json:"sql"`
	Logins    []string `json:"logins"`
}

// rolesOrder is what was asked for.
type rolesOrder struct {
	roles    migrations.Roles
	producer *migrations.Producer // nil: the roles of the side
}

func migrateRoles(c *cli.Context) error {
	order, report, err := readRoles(c)
	if err != nil {
		return err
	}
	if report.Applied {
		db, err := connect(c)
		if err != nil {
			return err
		}
		defer db.Close()
		others, err := order.roles.Elsewhere(c.Context, db)
		if err != nil {
			return err
		}
		if len(others) > 0 && order.producer == nil {
			report.Warnings = append(report.Warnings, order.roles.SharedRoles(others))
		}
		if err := order.apply(c.Context, db, report.Removed); err != nil {
			return operator.ExplainRoles(err)
		}
	}
	return answer(c, report, printRoles)
}

// readRoles checks what needs no server.
func readRoles(c *cli.Context) (o rolesOrder, r rolesReport, err error) {
	if err := checkOutput(c); err != nil {
		return o, r, err
	}
	if err := noArgument(c, ""); err != nil {
		return o, r, err
	}
	side, name, namespace := c.String("side"), c.String("producer"), c.String("namespace")
	switch {
	case c.Bool("print") == c.Bool("apply"):
		return o, r, usage("%s: give one of --print and --apply", c.Command.HelpName)
	case name == "" && (namespace != "" || c.Bool("remove")):
		return o, r, usage("%s: --namespace and --remove are about one role; name it by --producer", c.Command.HelpName)
	case name != "" && (namespace == "") != c.Bool("remove"):
		return o, r, usage("%s: give --producer %s one of --namespace, which it may write, and --remove", c.Command.HelpName, name)
	case name != "" && side == "":
		side = string(migrations.Outbox)
	case side == "":
		return o, r, usage("%s: --side is missing; want outbox (the producer's database) or consumer (the consumer's database)", c.Command.HelpName)
	}
	if o.roles, err = migrations.NewRoles(migrations.Side(side), c.String("prefix")); err != nil {
		return o, r, usage("%s: %v", c.Command.HelpName, err)
	}
	r = rolesReport{Side: side, Namespace: namespace, Removed: c.Bool("remove"), Applied: c.Bool("apply"), SQL: o.roles.SQL(), Logins: o.roles.Logins()}
	if name == "" {
		for _, role := range o.roles.All() {
			r.Roles = append(r.Roles, o.roles.Name(role))
		}
		return o, r, nil
	}
	producer, err := o.roles.Producer(name, namespace)
	if err != nil {
		return o, r, usage("%s: %v", c.Command.HelpName, err)
	}
	o.producer, r.Roles, r.SQL, r.Logins = &producer, []string{name}, producer.SQL(), producer.Logins()
	if r.Removed {
		r.SQL, r.Logins = producer.RemoveSQL(), nil
	}
	return o, r, nil
}

func (o rolesOrder) apply(ctx context.Context, conn migrations.Beginner, remove bool) error {
	switch {
	case o.producer == nil:
		return o.roles.Apply(ctx, conn)
	case remove:
		return o.producer.Remove(ctx, conn)
	}
	return o.producer.Apply(ctx, conn)
}

func printRoles(p *page, r rolesReport) {
	for _, warning := range r.Warnings {
		p.line("WARN %s", warning)
	}
	if !r.Applied {
		for _, sql := range r.SQL {
			p.block(sql + ";\n")
		}
		if len(r.Logins) > 0 {
			p.line("-- Who logs in is yours to say, for example:")
		}
		for _, sql := range r.Logins {
			p.block("-- " + sql + ";\n")
		}
		return
	}
	for _, role := range r.Roles {
		switch {
		case r.Removed:
			p.line("role %s has no rights on the outbox any more; the role itself is yours to drop", role)
		case r.Namespace != "":
			p.line("role %s writes and reads events of namespace %s only", role, r.Namespace)
		default:
			p.line("role %s has its rights", role)
		}
	}
	if len(r.Logins) > 0 {
		p.line("\nnow say who logs in, for example:")
	}
	for _, sql := range r.Logins {
		p.block(sql + ";\n")
	}
}
