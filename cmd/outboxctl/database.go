package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/relay"
)

const (
	// dsnVariable holds the connection string when no flag does.
	dsnVariable = "ONCEWARD_POSTGRES_DSN"
	// insecureVariable is --insecure; the relay has it too.
	insecureVariable = "ONCEWARD_POSTGRES_INSECURE"
)

func dsnFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "dsn", Usage: "connect to PostgreSQL with `DSN` (other users of this machine see it; prefer --dsn-file)"},
		&cli.StringFlag{Name: "dsn-file", Usage: "read the connection string from `FILE`; without both flags it is taken from " + dsnVariable},
		&cli.BoolFlag{Name: "insecure", EnvVars: []string{insecureVariable}, Usage: "allow a connection that is not sslmode=verify-full, on a network that you trust"},
	}
}

// dsn returns the connection string of --<prefix>dsn or --<prefix>dsn-file;
// empty when neither is given.
func dsn(c *cli.Context, prefix string) (string, error) {
	text, file := c.String(prefix+"dsn"), c.String(prefix+"dsn-file")
	if text != "" && file != "" {
		return "", usage("--%sdsn and --%sdsn-file: give one of them", prefix, prefix)
	}
	if file == "" {
		return text, nil
	}
	text, err := secret.File("--"+prefix+"dsn-file", file)
	return strings.TrimSpace(text), err
}

// connect opens a pool to the database of --dsn, --dsn-file or the
// environment. The caller closes it.
func connect(c *cli.Context) (*database, error) {
	text, err := dsn(c, "")
	if err != nil {
		return nil, err
	}
	if text == "" {
		text = os.Getenv(dsnVariable)
	}
	if text == "" {
		return nil, noDatabase(c)
	}
	if err := verified(c, text); err != nil {
		return nil, err
	}
	return open(c.Context, text)
}

// noDatabase says how to name one. That of a relay.yaml is not taken: it has the
// relay's login, who may not do what an operator may.
func noDatabase(c *cli.Context) error {
	why := ""
	if c.String("config") != "" {
		why = ", with your own login: the one in --config is the relay's, who may not do this"
	}
	return usage("%s: no database; give --dsn, --dsn-file or the environment variable %s%s", c.Command.HelpName, dsnVariable, why)
}

// verified refuses a connection that somebody else could read or answer, by the
// rule of the relay.
func verified(c *cli.Context, text string) error {
	ok, err := relay.VerifiesServer("connection string", text)
	switch {
	case err != nil:
		return usage("%v", err)
	case ok || c.Bool("insecure"):
		return nil
	}
	return usage("the connection is not sslmode=verify-full, so somebody else could read or answer it; add sslmode=verify-full "+
		"(with sslrootcert) to the connection string or, on a network that you trust, give --insecure (or set %s=true)", insecureVariable)
}

func open(ctx context.Context, text string) (*database, error) {
	cfg, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, usage("%v", secret.ParseError("connection string", err))
	}
	cfg.MaxConns = 4
	cfg.ConnConfig.RuntimeParams["application_name"] = "outboxctl"
	// A pooler may keep no prepared statement; and without types no list of ids can be sent.
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect to PostgreSQL: %w", secret.ConnectError(err, &cfg.ConnConfig.Config))
	}
	return &database{pool}, nil
}

// explain adds what to run when Onceward is not installed, and who may.
func explain(err error, side migrations.Side) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	var start *cdc.StartError
	if filtered := cdc.ExplainFiltered(err); errors.As(filtered, &start) {
		return filtered
	}
	switch pg.Code {
	case "42P01", "3F000": // undefined_table, invalid_schema_name
		return fmt.Errorf("%w; Onceward's %s side is not in this database, or one of its tables is gone: run `outboxctl migrate up --side %s`, which makes it, or says what became of it; "+
			"or connect to another database", err, side, side)
	case "42703", "42883": // undefined_column, undefined_function
		return fmt.Errorf("%w; the schema is of another release: run `outboxctl migrate status --side %s`", err, side)
	case "42501": // insufficient_privilege
		return fmt.Errorf("%w; connect as a role that may read schema onceward", err)
	}
	return err
}
