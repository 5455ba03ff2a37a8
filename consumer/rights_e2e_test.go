//go:build e2e

package consumer_test

import (
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/migrations"
)

// TestALoginWithoutTheConsumersRole: the first start of a program is told which
// role its login is to be a member of, and starts once it is.
func TestALoginWithoutTheConsumersRole(t *testing.T) {
	db := newDatabase(t)
	prefix := "rights-" + db.Config().ConnConfig.Database
	roles, err := migrations.NewRoles(migrations.Consumer, prefix)
	require.NoError(t, err)
	require.NoError(t, roles.Apply(t.Context(), db))
	dsn, err := url.Parse(db.Config().ConnString())
	require.NoError(t, err)
	for _, role := range []string{"", " IN ROLE " + `"` + prefix + `_operator"`} { // who sees nothing, and who may only look
		login := "app" + strings.Repeat("-operator", min(len(role), 1)) + "-" + prefix
		exec(t, db, `CREATE ROLE "`+login+`" LOGIN PASSWORD 'secret'`+role)
		dsn.User = url.UserPassword(login, "secret")
		pool, err := pgxpool.New(t.Context(), dsn.String())
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		_, err = consumer.New(t.Context(), consumer.Config{Group: "billing", DB: pool})
		require.ErrorIs(t, err, consumer.ErrInstallation)
		require.ErrorContains(t, err, "permission denied")
		grant := regexp.MustCompile("`(GRANT .*?)`").FindStringSubmatch(err.Error())
		require.NotNil(t, grant, err)
		exec(t, db, strings.Replace(grant[1], "onceward_consumer", `"`+prefix+`_consumer"`, 1))
		_, err = consumer.New(t.Context(), consumer.Config{Group: "billing", DB: pool})
		require.NoError(t, err)
	}
}
