//go:build e2e

package migrations_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// cast makes the roles of both sides under a prefix of the test's own: roles
// belong to the server, which the tests of the package share.
func cast(t *testing.T, pool *pgxpool.Pool) (producer, consumer migrations.Roles) {
	t.Helper()
	prefix := "cast-" + pool.Config().ConnConfig.Database
	var err error
	producer, err = migrations.NewRoles(migrations.Outbox, prefix)
	require.NoError(t, err)
	consumer, err = migrations.NewRoles(migrations.Consumer, prefix)
	require.NoError(t, err)
	require.NoError(t, producer.Apply(t.Context(), pool))
	require.NoError(t, consumer.Apply(t.Context(), pool))
	return producer, consumer
}

// login makes a member of the role and returns a pool over sessions of it.
func login(t *testing.T, pool *pgxpool.Pool, role string) *pgxpool.Pool {
	t.Helper()
	conf := pool.Config()
	conf.ConnConfig.User, conf.ConnConfig.Password = "login-"+role, "secret"
	member := pgx.Identifier{conf.ConnConfig.User}.Sanitize()
	exec(t, pool, "CREATE ROLE "+member+" LOGIN PASSWORD 'secret' IN ROLE "+pgx.Identifier{role}.Sanitize())
	own, err := pgxpool.NewWithConfig(t.Context(), conf)
	require.NoError(t, err)
	t.Cleanup(own.Close)
	return own
}

func up(t *testing.T, pool *pgxpool.Pool, side migrations.Side, relay string) {
	t.Helper()
	m, err := migrations.New(migrations.Config{Pool: pool, Side: side, Relay: relay})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
}

func refused(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg, sql)
	require.Equal(t, "42501", pg.Code, "%s: %s", sql, pg.Message)
}

const forge = `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type`

func TestRolesHaveTheirRightsAndNoMore(t *testing.T) {
	for _, version := range []string{"15", "18"} {
		t.Run(version, func(t *testing.T) {
			pool := testdb.New(t, version)
			producer, consumer := cast(t, pool)
			// The maintainer installs; nobody is a superuser from here on.
			maintainer := login(t, pool, producer.Name(migrations.RoleMaintainer))
			up(t, maintainer, migrations.Outbox, "orders")
			up(t, login(t, pool, consumer.Name(migrations.RoleConsumerMaintainer)), migrations.Consumer, "")
			require.Equal(t, producer.Name(migrations.RoleOwner), scalar[string](t, pool, `SELECT string_agg(DISTINCT pg_get_userbyid(owner), ', ') FROM (
				SELECT relowner FROM pg_class WHERE relnamespace = 'onceward'::regnamespace AND relkind IN ('r', 'p', 'S', 'i', 'I')
				UNION ALL SELECT nspowner FROM pg_namespace WHERE nspname = 'onceward'
				UNION ALL SELECT proowner FROM pg_proc WHERE pronamespace = 'onceward'::regnamespace
				UNION ALL SELECT pubowner FROM pg_publication) AS o(owner)`), "everything belongs to the owner")
			writerMay(t, login(t, pool, producer.Name(migrations.RoleWriter)))
			relayMay(t, login(t, pool, producer.Name(migrations.RoleRelay)))
			operatorMay(t, login(t, pool, producer.Name(migrations.RoleOperator)))
			consumerMay(t, login(t, pool, consumer.Name(migrations.RoleConsumer)))
			require.True(t, scalar[bool](t, pool, "SELECT rolreplication AND NOT rolcanlogin AND NOT rolsuper FROM pg_roles WHERE rolname = $1", producer.Name(migrations.RoleRelay)))
		})
	}
}

func writerMay(t *testing.T, pool *pgxpool.Pool) {
	key, err := outbox.NewKey("orders")
	require.NoError(t, err)
	ev := outbox.Event{Key: key, AggregateType: "order", AggregateID: "A", Type: "Paid", Payload: []byte("{}")}
	enqueue := func() (result outbox.Result, err error) {
		return result, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
			result, err = outbox.Enqueue(t.Context(), tx, ev)
			return err
		})
	}
	result, err := enqueue()
	require.NoError(t, err)
	require.Equal(t, outbox.Enqueued, result)
	result, err = enqueue()
	require.NoError(t, err)
	require.Equal(t, outbox.Duplicate, result)
	ev.Payload = []byte("[]")
	_, err = enqueue()
	require.ErrorIs(t, err, outbox.ErrKeyReused)

	require.Equal(t, "enqueued", scalar[string](t, pool, "SELECT onceward.enqueue($1, 'order', 'A', 'Paid', '{}')", "orders:"+uuid.Must(uuid.NewV7()).String()))
	id := uuid.Must(uuid.NewV7())
	refused(t, pool, forge+", tx_id) VALUES ($1, 'n', 't', 'a', 'e', '5')", id)
	refused(t, pool, forge+", created_at) VALUES ($1, 'n', 't', 'a', 'e', now())", id)
	refused(t, pool, forge+", seq) OVERRIDING SYSTEM VALUE VALUES ($1, 'n', 't', 'a', 'e', 5)", id)
	refused(t, pool, "UPDATE onceward.outbox SET payload = NULL")
	refused(t, pool, "DELETE FROM onceward.outbox")
	refused(t, pool, "TRUNCATE onceward.outbox")
	refused(t, pool, "SELECT tx_id FROM onceward.outbox")
	refused(t, pool, "SELECT FROM onceward.relay_state")
	refused(t, pool, "CREATE TABLE onceward.mine (id int)")
	leaf := "onceward.outbox_" + time.Now().UTC().Format("20060102")
	refused(t, pool, "INSERT INTO "+leaf+" (id) VALUES ($1)", id)
	refused(t, pool, "ALTER TABLE onceward.outbox DETACH PARTITION "+leaf)
}

func relayMay(t *testing.T, pool *pgxpool.Pool) {
	for _, sql := range []string{
		"SELECT * FROM onceward.outbox", "SELECT * FROM onceward.replays", "SELECT * FROM onceward.controls", "SELECT * FROM onceward.outbox_migrations",
		"INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, publication) VALUES ('s', 'r', 'd', '1', 1, '0/1', 'p')",
		"UPDATE onceward.relay_state SET tick = 1", "UPDATE onceward.dead_letters SET state = 'open'",
		"INSERT INTO onceward.control_results (slot, control_id, position, action, letters, note) VALUES ('s', gen_random_uuid(), '0/1', 'retry', 1, '')",
		"INSERT INTO onceward.relay_health (slot, process, relay, state, since, code, detail, waits) VALUES ('s', 'p', 'r', 'x', now(), '', '', '[]')",
		"UPDATE onceward.relay_health SET state = 'y'", "DELETE FROM onceward.relay_health",
		"SELECT pg_logical_emit_message(false, 'onceward', 'x')", "SELECT * FROM pg_stat_replication",
	} {
		exec(t, pool, sql)
	}
	refused(t, pool, forge+") VALUES ($1, 'n', 't', 'a', 'e')", uuid.Must(uuid.NewV7()))
	refused(t, pool, "DELETE FROM onceward.relay_state")
	refused(t, pool, "DELETE FROM onceward.dead_letters")
	refused(t, pool, "INSERT INTO onceward.controls (control_id, action, letter_id, reason) VALUES ($1, 'retry', $1, 'r')", uuid.New())
	_, err := pool.Exec(t.Context(), "SELECT pg_create_logical_replication_slot('x', 'pgoutput')")
	require.Error(t, err, "REPLICATION is not inherited: this login is only a member")
}

func operatorMay(t *testing.T, pool *pgxpool.Pool) {
	for _, sql := range []string{
		"SELECT * FROM onceward.outbox", "SELECT * FROM onceward.dead_letters", "SELECT * FROM onceward.outbox_migrations", "SELECT * FROM onceward.processed_events",
		"UPDATE onceward.relay_state SET paused = true, paused_routes = '{a}', skip = '{}'",
		"INSERT INTO onceward.controls (control_id, action, letter_id, reason) VALUES (gen_random_uuid(), 'retry', gen_random_uuid(), 'r')",
		"INSERT INTO onceward.controls (control_id, action, letter_id, payload_null, reason) VALUES (gen_random_uuid(), 'edit', gen_random_uuid(), true, 'r')",
		"SELECT * FROM onceward.control_results", "SELECT * FROM onceward.relay_health",
		"INSERT INTO onceward.replays (replay_id, id, reason) SELECT gen_random_uuid(), id, 'r' FROM onceward.outbox LIMIT 1",
	} {
		exec(t, pool, sql)
	}
	refused(t, pool, "UPDATE onceward.control_results SET note = 'x'")
	refused(t, pool, "UPDATE onceward.relay_health SET state = 'x'")
	refused(t, pool, "DELETE FROM onceward.relay_health")
	refused(t, pool, "UPDATE onceward.relay_state SET confirmed_lsn = '0/2'")
	refused(t, pool, "INSERT INTO onceward.controls (control_id, action, letter_id, reason, requested_by) VALUES (gen_random_uuid(), 'retry', gen_random_uuid(), 'r', 'somebody else')")
	refused(t, pool, "INSERT INTO onceward.replays (replay_id, id, reason, tx_id) VALUES (gen_random_uuid(), gen_random_uuid(), 'r', '5')")
	refused(t, pool, "INSERT INTO onceward.replays (replay_id, id, reason, payload) VALUES (gen_random_uuid(), gen_random_uuid(), 'r', 'x')")
	refused(t, pool, "UPDATE onceward.dead_letters SET state = 'open'")
	refused(t, pool, "SELECT onceward.enqueue('orders:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a', 'order', 'A', 'Paid', '{}')")
	refused(t, pool, forge+") VALUES ($1, 'n', 't', 'a', 'e')", uuid.Must(uuid.NewV7()))
}

func consumerMay(t *testing.T, pool *pgxpool.Pool) {
	exec(t, pool, `INSERT INTO onceward.processed_events (event_id, consumer_group, event_type, namespace, fingerprint, outcome) VALUES ($1, 'g', 'e', 'n', '\x00', 'p')`, uuid.Must(uuid.NewV7()))
	for _, sql := range []string{
		"UPDATE onceward.processed_events SET outcome = 'd'", "DELETE FROM onceward.processed_events", "SELECT * FROM onceward.fences", "DELETE FROM onceward.attempts",
		"DELETE FROM onceward.consumer_dead_letters", "SELECT * FROM onceward.consumer_migrations",
	} {
		exec(t, pool, sql)
	}
	refused(t, pool, "TRUNCATE onceward.processed_events")
	refused(t, pool, "SELECT FROM onceward.outbox")
}

// Roles that come after the tables take them over, and a right that was given
// beyond the list is taken away.
func TestRolesAdoptWhatIsInstalled(t *testing.T) {
	pool := testdb.New(t, "15")
	up(t, pool, migrations.Outbox, "orders")
	known := func() string {
		now, err := outboxdb.New(pool).TakeSnapshot(t.Context(), outboxdb.TakeSnapshotParams{Publication: "onceward_orders", Slot: "onceward_orders"})
		require.NoError(t, err)
		return now.PublicationCatalog
	}
	before := known()
	exec(t, pool, `INSERT INTO onceward.relay_state (slot, relay, database, system_identifier, timeline, confirmed_lsn, mode, publication, publication_catalog)
		VALUES ('same', 'orders', 'd', '1', 1, '0/1', 'idempotent', 'onceward_orders', $1), ('changed', 'o', 'd', '1', 1, '0/1', 'idempotent', 'onceward_orders', $1 || '0')`, before)
	producer, _ := cast(t, pool)
	require.NotEqual(t, before, known())
	require.Equal(t, known(), scalar[string](t, pool, "SELECT publication_catalog FROM onceward.relay_state WHERE slot = 'same'"), "a relay sees no change")
	require.Equal(t, before+"0", scalar[string](t, pool, "SELECT publication_catalog FROM onceward.relay_state WHERE slot = 'changed'"))
	exec(t, pool, "DELETE FROM onceward.relay_state")
	require.Equal(t, producer.Name(migrations.RoleOwner), scalar[string](t, pool, `SELECT string_agg(DISTINCT pg_get_userbyid(owner), ', ') FROM (
		SELECT relowner FROM pg_class WHERE relnamespace = 'onceward'::regnamespace
		UNION ALL SELECT proowner FROM pg_proc WHERE pronamespace = 'onceward'::regnamespace
		UNION ALL SELECT pubowner FROM pg_publication) AS o(owner)`))
	writer := login(t, pool, producer.Name(migrations.RoleWriter))
	exec(t, pool, `GRANT ALL ON onceward.outbox TO `+pgx.Identifier{producer.Name(migrations.RoleWriter)}.Sanitize())
	exec(t, writer, "DELETE FROM onceward.outbox")
	require.NoError(t, producer.Apply(t.Context(), pool), "once more")
	writerMay(t, writer)
	others, err := migrations.NewRoles(migrations.Outbox, "other-"+pool.Config().ConnConfig.Database)
	require.NoError(t, err)
	require.ErrorContains(t, others.Apply(t.Context(), pool), "this database has roles of its own, and they would lose it: --prefix "+strings.TrimSuffix(producer.Name(migrations.RoleOwner), "_owner"))

	maintainer := login(t, pool, producer.Name(migrations.RoleMaintainer))
	m, err := migrations.New(migrations.Config{Pool: maintainer, Side: migrations.Outbox})
	require.NoError(t, err)
	plan, err := m.DownSQL(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"SET search_path = pg_catalog, pg_temp", "SET ROLE " + pgx.Identifier{producer.Name(migrations.RoleOwner)}.Sanitize()}, plan[:2])
	plan, err = m.UpSQL(t.Context())
	require.NoError(t, err)
	require.Empty(t, plan, "nothing to do is nothing, not a SET ROLE")
	_, err = m.Down(t.Context())
	require.NoError(t, err)
}

// A relay's role that came after the first bound producer is not filtered either.
func TestRolesGiveALaterRelayBypass(t *testing.T) {
	pool := testdb.New(t, "15")
	producer, _ := cast(t, pool)
	up(t, pool, migrations.Outbox, "orders")
	login := "late-" + pool.Config().ConnConfig.Database
	late := func() bool {
		return scalar[bool](t, pool, "SELECT rolbypassrls FROM pg_roles WHERE rolname = $1", login)
	}
	exec(t, pool, "CREATE ROLE "+pgx.Identifier{login}.Sanitize()+" LOGIN REPLICATION IN ROLE "+pgx.Identifier{producer.Name(migrations.RoleRelay)}.Sanitize())
	require.NoError(t, producer.Apply(t.Context(), pool))
	require.False(t, late(), "nothing is filtered")
	exec(t, pool, "ALTER ROLE "+pgx.Identifier{login}.Sanitize()+" NOREPLICATION")
	shop, err := producer.Producer("shop-"+pool.Config().ConnConfig.Database, "shop")
	require.NoError(t, err)
	require.NoError(t, shop.Apply(t.Context(), pool))
	exec(t, pool, "ALTER ROLE "+pgx.Identifier{login}.Sanitize()+" REPLICATION")
	require.NoError(t, producer.Apply(t.Context(), pool))
	require.True(t, late())
}

// An Up that was interrupted after the migrations gave no rights: the next gives them.
func TestUpGivesRightsWithoutAMigration(t *testing.T) {
	pool := testdb.New(t, "15")
	producer, _ := cast(t, pool)
	maintainer := login(t, pool, producer.Name(migrations.RoleMaintainer))
	up(t, maintainer, migrations.Outbox, "orders")
	operator := producer.Name(migrations.RoleOperator)
	exec(t, pool, "REVOKE SELECT ON onceward.gaps FROM "+pgx.Identifier{operator}.Sanitize())
	up(t, maintainer, migrations.Outbox, "orders")
	require.True(t, scalar[bool](t, pool, "SELECT has_table_privilege($1, 'onceward.gaps', 'SELECT')", operator))
}

// A plan is the script that a DBA runs by hand, in a transaction.
func TestThePlanMakesThingsTheOwners(t *testing.T) {
	pool := testdb.New(t, "15")
	producer, _ := cast(t, pool)
	maintainer := login(t, pool, producer.Name(migrations.RoleMaintainer))
	m, err := migrations.New(migrations.Config{Pool: maintainer, Side: migrations.Outbox, Relay: "orders"})
	require.NoError(t, err)
	plan, err := m.UpSQL(t.Context())
	require.NoError(t, err)
	require.Contains(t, strings.Join(plan, "\n"), "GRANT INSERT (id, namespace")
	require.NoError(t, pgx.BeginFunc(t.Context(), maintainer, func(tx pgx.Tx) error {
		for _, sql := range plan {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				return err
			}
		}
		_, err := tx.Exec(t.Context(), "RESET ROLE")
		return err
	}))
	require.Equal(t, producer.Name(migrations.RoleOwner), scalar[string](t, pool, "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class WHERE relnamespace = 'onceward'::regnamespace"))
}
