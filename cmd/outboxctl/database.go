package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/settings"
	"github.com/onceward/onceward/internal/pgconf"
	"github.com/onceward/onceward/internal/secret"
)

const (
	// dsnVariable holds the connection string of whoever calls when no flag does.
	dsnVariable = "OUTBOXCTL_DSN"
	// insecureVariable is --insecure.
	insecureVariable = "OUTBOXCTL_INSECURE"
	// relaysVariable is the relay's, as every name that begins with ONCEWARD_.
	relaysVariable = "ONCEWARD_POSTGRES_DSN"
)

func dsnFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "dsn", Usage: "connect to PostgreSQL with `DSN` (other users of this machine see it; prefer --dsn-file); wins over " + dsnVariable},
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

// callersDSN returns the connection string of --dsn, --dsn-file or the environment, and
// which of them it is from; empty when none is given.
func callersDSN(c *cli.Context) (text, from string, err error) {
	if text, err = dsn(c, ""); err != nil || text != "" {
		return text, map[bool]string{true: "--dsn", false: "--dsn-file"}[c.String("dsn") != ""], err
	}
	return os.Getenv(dsnVariable), dsnVariable, nil
}

// connect opens a pool to the database of --dsn, --dsn-file or the
// environment. The caller closes it.
func connect(c *cli.Context) (*operator.Database, error) {
	text, from, err := callersDSN(c)
	if err != nil {
		return nil, err
	}
	if text == "" {
		return nil, noDatabase(c)
	}
	if err := verified(c, text); err != nil {
		return nil, err
	}
	fmt.Fprint(c.App.ErrWriter, settings.Asked(text, from, c.String("config"), os.Environ())) //nolint:errcheck // a terminal that is gone
	return operator.Open(c.Context, text)
}

// noDatabase says how to name one. That of a relay.yaml is not taken: it has the
// relay's login, who may not do what an operator may.
func noDatabase(c *cli.Context) error {
	why := ""
	switch {
	case c.String("config") != "":
		why = ", with your own login: the one in --config is the relay's, who may not do this"
	case os.Getenv(relaysVariable) != "":
		why = ", with your own login: " + relaysVariable + " is the relay's"
	}
	return usage("%s: no database; give --dsn, --dsn-file or the environment variable %s%s", c.Command.HelpName, dsnVariable, why)
}

// verified refuses a connection that somebody else could read or answer, by the
// rule of the relay.
func verified(c *cli.Context, text string) error {
	ok, err := pgconf.VerifiesServer("connection string", text)
	switch {
	case err != nil:
		return usage("%v", err)
	case ok || c.Bool("insecure"):
		return nil
	}
	return usage("the connection is not sslmode=verify-full, so somebody else could read or answer it; add sslmode=verify-full "+
		"(with sslrootcert) to the connection string or, on a network that you trust, give --insecure (or set %s=true)", insecureVariable)
}
