//go:build e2e

package main

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

// A dump has no rights on the database itself: the maintainer is told what the owner's role
// lacks, and not to be somebody else.
func TestMigrateSaysWhatTheOwnerLacks(t *testing.T) {
	pool, dsn := newDatabase(t)
	database := pool.Config().ConnConfig.Database
	prefix := "ctl-" + database
	fine(t, "migrate", "roles", "--side", "outbox", "--prefix", prefix, "--apply")
	fine(t, "migrate", "up", "--side", "outbox")
	exec(t, pool, `REVOKE CREATE ON DATABASE `+database+` FROM "`+prefix+`_owner"`)
	loginAs(t, pool, dsn, prefix+"_maintainer")
	code, _, stderr := call(t, "migrate", "up", "--side", "outbox", "--relay", "second")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "role "+prefix+"_owner, the owner, has no CREATE on database "+database)
	require.Contains(t, stderr, "`outboxctl migrate roles --side outbox --apply --prefix "+prefix+"` as superuser gives it")
	require.NotContains(t, stderr, "connect as a member")
	fine(t, "migrate", "roles", "--side", "outbox", "--prefix", prefix, "--apply", "--dsn", dsn)
	fine(t, "migrate", "up", "--side", "outbox", "--relay", "second")
}

// The roles are there, for another database: in this one none of them may make anything.
func TestMigrateWhereTheRolesHaveNoRights(t *testing.T) {
	elsewhere, _ := newDatabase(t)
	prefix := "ctl-" + elsewhere.Config().ConnConfig.Database
	fine(t, "migrate", "roles", "--side", "consumer", "--prefix", prefix, "--apply")
	pool, dsn := newDatabase(t)
	loginAs(t, pool, dsn, prefix+"_consumer_maintainer")
	code, _, stderr := call(t, "migrate", "up", "--side", "consumer")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "no role of Onceward may make anything in database "+pool.Config().ConnConfig.Database+": `outboxctl migrate roles --side consumer --apply --prefix "+prefix+"`, as superuser and in it, lets them")
	require.NotContains(t, stderr, "connect as a member")
	fine(t, "migrate", "roles", "--side", "consumer", "--prefix", prefix, "--apply", "--dsn", dsn)
	fine(t, "migrate", "up", "--side", "consumer")
}

// A login that may not even look into the schema is told whose it has to be; and what is wrong with a connection is
// said, also where the connection string leaves it to the driver whether it speaks TLS.
func TestALoginWithoutRightsIsToldWhatItLacks(t *testing.T) {
	pool, dsn := newDatabase(t)
	fine(t, "migrate", "up", "--side", "outbox")
	role := "nobody-" + pool.Config().ConnConfig.Database
	exec(t, pool, `CREATE ROLE "`+role+`"`)
	loginAs(t, pool, dsn, role)
	for _, command := range [][]string{{"status"}, {"list"}, {"dead", "list"}, {"gap", "list"}} {
		code, _, stderr := call(t, command...)
		require.Equal(t, 1, code, command)
		require.Contains(t, stderr, "connect as a member of the role onceward_operator", command)
		require.NotContains(t, stderr, "connect to PostgreSQL", command)
	}
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	u.Path, u.RawQuery = "/nosuchdb", ""
	code, _, stderr := call(t, "status", "--dsn", u.String(), "--insecure")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "DATABASE_MISSING")
	require.NotContains(t, stderr, "speaks no TLS")
}

// status is of the producer's database.
func TestStatusOfAConsumersDatabaseSaysSo(t *testing.T) {
	newDatabase(t)
	fine(t, "migrate", "up", "--side", "consumer")
	code, _, stderr := call(t, "status")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "this database has Onceward's consumer side: `outboxctl windows list`")
	require.NotContains(t, stderr, "migrate up")
	for _, command := range []string{"status", "maintain"} {
		code, _, stderr = call(t, "partitions", command)
		require.Equal(t, 1, code)
		require.Contains(t, stderr, " has Onceward's consumer side and no outbox: connect to the producer's database")
		require.NotContains(t, stderr, "migrate")
	}
	require.Contains(t, stderr, "`outboxctl partitions maintain --side consumer`")
	fine(t, "partitions", "maintain", "--side", "consumer")
}

// A relay that has run on another system: nothing in this database says what it
// published, so that --kafka has nothing to doubt; a copy knows which retries are out.
func TestAdoptCopySettlesRetries(t *testing.T) {
	pool, dsn := newDatabase(t)
	prefix := "ctl-" + pool.Config().ConnConfig.Database
	fine(t, "migrate", "roles", "--side", "outbox", "--prefix", prefix, "--apply")
	fine(t, "migrate", "up", "--side", "outbox")
	exec(t, pool, `INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication, kafka_cluster, kafka_met)
		VALUES ('s', 'orders', 'd', '1', 1, '0/10', 'p', 'old', 'new')`)
	exec(t, pool, `INSERT INTO onceward.published_snapshots VALUES ('s', pg_current_snapshot(), now())`)
	exec(t, pool, `INSERT INTO onceward.dead_letters (slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, content_type, created_at, tx_id, seq,
		position, error_class, error, state, retry_position, retry_index)
		SELECT 's', gen_random_uuid(), 'n', 't', 'a', 'e', 'c', now(), '3', n, '0/1', 'c', 'too large', s, p::pg_lsn, i
		FROM (VALUES (1, 'retrying', '0/F', 0), (2, 'retrying', '0/10', 0), (3, 'retrying', NULL, NULL), (4, 'open', '0/F', 1)) v (n, s, p, i)`)
	states := func() (all string) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT string_agg(state, ' ' ORDER BY seq) FROM onceward.dead_letters`).Scan(&all))
		return all
	}
	loginAs(t, pool, dsn, prefix+"_maintainer")
	code, _, stderr := call(t, "adopt", "--kafka", "gap", "--reason", "moved", "--yes")
	require.NotZero(t, code)
	require.Contains(t, stderr, "relay orders has run on another system, so that nothing here says what it published: adopt the database first")
	require.Equal(t, "retrying retrying retrying open", states())
	fine(t, "adopt", "--by", "copy", "--reason", "moved", "--yes")
	require.Equal(t, "replayed open open open", states(), "only what the checkpoint has passed is out")
}
