//go:build e2e

package e2e

import (
	"net/url"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/migrations"
)

// The logins of every server. Two are roles of Onceward themselves, as the relay
// must be (REPLICATION is not inherited); the others are members of one.
const (
	relayLogin              = migrations.DefaultPrefix + "_relay"
	maintainerLogin         = migrations.DefaultPrefix + "_maintainer"
	consumerMaintainerLogin = migrations.DefaultPrefix + "_consumer_maintainer"
	appLogin                = "shop"    // a writer
	billingLogin            = "billing" // a consumer
	operatorLogin           = "support" // an operator
	loginPassword           = "least privilege"
)

// makeRoles makes the roles of both sides, which belong to the server, and gives
// them their rights in the environment's database.
func (w *environment) makeRoles() {
	w.t.Helper()
	shared.roles.Lock()
	defer shared.roles.Unlock()
	for _, side := range []migrations.Side{migrations.Outbox, migrations.Consumer} {
		roles, err := migrations.NewRoles(side, migrations.DefaultPrefix)
		require.NoError(w.t, err)
		require.NoError(w.t, roles.Apply(w.t.Context(), w.pool))
	}
	for _, sql := range []string{
		"ALTER ROLE " + relayLogin + " LOGIN PASSWORD '" + loginPassword + "'",
		"ALTER ROLE " + maintainerLogin + " LOGIN PASSWORD '" + loginPassword + "'",
		"ALTER ROLE " + consumerMaintainerLogin + " LOGIN PASSWORD '" + loginPassword + "'",
		member(appLogin, migrations.RoleWriter), member(billingLogin, migrations.RoleConsumer), member(operatorLogin, migrations.RoleOperator),
		// Where a service's own tables are, and who may write them, is its own affair.
		"GRANT CREATE, USAGE ON SCHEMA public TO " + appLogin + ", " + billingLogin,
	} {
		_, err := w.pool.Exec(w.t.Context(), sql)
		require.NoError(w.t, err, sql)
	}
}

func member(login string, of migrations.Role) string {
	return "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '" + login + "') THEN CREATE ROLE " + login +
		" LOGIN PASSWORD '" + loginPassword + "' IN ROLE " + pgx.Identifier{migrations.DefaultPrefix + "_" + string(of)}.Sanitize() + "; END IF; END $$"
}

// dsn leads to the environment's database with the rights of a login.
func (w *environment) dsn(login string) string {
	w.t.Helper()
	u, err := url.Parse(w.server.DSN(w.name))
	require.NoError(w.t, err)
	u.User = url.UserPassword(login, loginPassword)
	return u.String()
}

// as returns a pool with the rights of a login. It is closed before the environment.
func (w *environment) as(login string) *pgxpool.Pool {
	w.t.Helper()
	conf, err := pgxpool.ParseConfig(w.dsn(login))
	require.NoError(w.t, err)
	conf.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" // whatever a test sets for the database
	conf.MaxConns = 24                                        // a writer may hold one and want another
	pool, err := pgxpool.NewWithConfig(w.t.Context(), conf)
	require.NoError(w.t, err)
	w.t.Cleanup(pool.Close)
	return pool
}
