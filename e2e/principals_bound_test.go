//go:build e2e

package e2e

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

// foreignKey: the key of an event that the role may not see is in use. It is never
// "try again", which would be for ever.
func (c *cluster) foreignKey(t *testing.T) {
	conn := c.as(t, bound)
	ev := eventOf(t, "shop", c.words["{billing}"])
	inTx := func(work func(tx pgx.Tx) error) error { return pgx.BeginFunc(t.Context(), conn, work) }
	for name, err := range map[string]error{
		"Enqueue": inTx(func(tx pgx.Tx) error { _, err := outbox.Enqueue(t.Context(), tx, ev); return err }),
		"EnqueueMany": inTx(func(tx pgx.Tx) error {
			_, err := outbox.EnqueueMany(t.Context(), tx, []outbox.Event{eventOf(t, "shop", newID(t)), ev})
			return err
		}),
		"QueueEnqueue": inTx(func(tx pgx.Tx) error {
			batch := &pgx.Batch{}
			require.NoError(t, outbox.QueueEnqueue(batch, ev, nil))
			return tx.SendBatch(t.Context(), batch).Close()
		}),
	} {
		require.ErrorIs(t, err, outbox.ErrKeyReused, name)
		require.ErrorContains(t, err, "another namespace", name)
		require.NotContains(t, err.Error(), "try the whole transaction again", name)
	}
	db := stdlib.OpenDB(*conn.Config())
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = outbox.EnqueueSQL(t.Context(), tx, ev)
	require.ErrorIs(t, err, outbox.ErrKeyReused)
	require.NoError(t, tx.Rollback())
}

// clients: everything that package outbox has works for a bound producer, and says
// which namespace when it does not.
func (c *cluster) clients(t *testing.T) {
	conn := c.as(t, bound)
	ev := eventOf(t, "shop", newID(t))
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context())
	result, err := outbox.Enqueue(t.Context(), tx, ev)
	require.NoError(t, err)
	require.Equal(t, outbox.Enqueued, result)
	results, err := outbox.EnqueueMany(t.Context(), tx, []outbox.Event{ev, eventOf(t, "shop", newID(t))})
	require.NoError(t, err)
	require.Equal(t, []outbox.Result{outbox.Duplicate, outbox.Enqueued}, results)
	batch := &pgx.Batch{}
	var queued []outbox.Result
	for _, e := range []outbox.Event{ev, eventOf(t, "shop", newID(t))} {
		require.NoError(t, outbox.QueueEnqueue(batch, e, func(r outbox.Result, err error) { queued = append(queued, r); require.NoError(t, err) }))
	}
	require.NoError(t, tx.SendBatch(t.Context(), batch).Close())
	require.Equal(t, results, queued)
	_, err = outbox.Enqueue(t.Context(), tx, eventOf(t, "billing", newID(t)))
	require.ErrorContains(t, err, "bound to another namespace than billing")
}

// filled: a replay that an operator ordered by id holds what the row or the letter
// holds, and nothing else.
func (c *cluster) filled(t *testing.T) {
	conn := c.as(t, operator)
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context())
	const content = "SELECT namespace || ' ' || aggregate_id || ' ' || convert_from(payload, 'UTF8') || ' ' || content_type || ' ' || requested_by FROM onceward.replays WHERE id = $1"
	for _, tc := range []struct {
		word, want string
		dead       bool
	}{
		{"{billing}", "billing a secret application/json operator", false},
		{"{discarded}", "billing a dead c operator", true},
	} {
		_, err = tx.Exec(t.Context(), "INSERT INTO onceward.replays (replay_id, id, dead, reason) VALUES ($1, $2, $3, 'r')", newID(t), c.words[tc.word], tc.dead)
		require.NoError(t, err)
		var got string
		require.NoError(t, tx.QueryRow(t.Context(), content, c.words[tc.word]).Scan(&got))
		require.Equal(t, tc.want, got)
	}
	// The owner writes them whole, as releases before this one did.
	_, err = c.super.Exec(t.Context(), `INSERT INTO onceward.replays (replay_id, id, namespace, aggregate_type, aggregate_id, event_type, payload, created_at, reason)
		VALUES ($1, $1, 'old', 't', 'a', 'e', 'whole', now(), 'r')`, newID(t))
	require.NoError(t, err)
	require.Equal(t, "whole", value[string](t, c.super, "DELETE FROM onceward.replays WHERE namespace = 'old' RETURNING convert_from(payload, 'UTF8')"))
}

// later: who gets rights by hand while row-level security is on sees nothing until
// the roles are applied again.
func (c *cluster) later(t *testing.T) {
	run(t, c.super, "CREATE ROLE late LOGIN PASSWORD '"+loginPassword+"'")
	run(t, c.super, "GRANT USAGE ON SCHEMA onceward TO late; GRANT SELECT, INSERT ON onceward.outbox TO late")
	conn := c.as(t, "late")
	require.Zero(t, value[int](t, conn, "SELECT count(*) FROM onceward.outbox"))
	c.ctl(t, "--side", "outbox", "--apply")
	require.Equal(t, 2, value[int](t, conn, "SELECT count(*) FROM onceward.outbox"))
	// A rebound producer is bound to the new namespace, and only to that.
	c.ctl(t, "--producer", bound, "--namespace", "billing", "--apply")
	require.Equal(t, "secret", value[string](t, c.as(t, bound), "SELECT convert_from(payload, 'UTF8') FROM onceward.outbox"))
	c.ctl(t, "--producer", bound, "--namespace", "shop", "--apply")
	require.Equal(t, "own", value[string](t, c.as(t, bound), "SELECT convert_from(payload, 'UTF8') FROM onceward.outbox"))
	// What the operator's tool shows is whole: a filtered answer would be an error.
	var l listed
	out := outboxctl(t, c.dsn(t, operator), "list", "--state", "pending", "--output", "json")
	require.NoError(t, json.Unmarshal([]byte(out), &l), out)
	require.Len(t, l.Events, 2)
}

// unbindable: where a policy would bind nobody, none is made, and nothing changes.
func (c *cluster) unbindable(t *testing.T) {
	run(t, c.super, "CREATE ROLE strong SUPERUSER; CREATE ROLE passing BYPASSRLS; CREATE ROLE plain")
	before := value[string](t, c.super, "SELECT string_agg(polname || polroles::text, ' ' ORDER BY polname) FROM pg_policy")
	for name, want := range map[string]string{
		"strong": "is a superuser or has BYPASSRLS", "passing": "is a superuser or has BYPASSRLS", writer: "is a member of onceward_writer",
		operator: "is a member of onceward_operator", maintainer: "is a member of onceward_owner",
	} {
		require.Contains(t, c.refused(t, "--producer", name, "--namespace", "shop", "--apply"), want, name)
	}
	run(t, c.super, "GRANT SELECT (id) ON onceward.outbox TO PUBLIC")
	require.Contains(t, c.refused(t, "--producer", "plain", "--namespace", "shop", "--apply"), "REVOKE ALL ON onceward.outbox FROM PUBLIC")
	run(t, c.super, "REVOKE ALL ON onceward.outbox FROM PUBLIC")
	require.Equal(t, before, value[string](t, c.super, "SELECT string_agg(polname || polroles::text, ' ' ORDER BY polname) FROM pg_policy"))

	// An open writer: the command gives way, and the writers behind it go on.
	conn := c.as(t, writer)
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = outbox.Enqueue(t.Context(), tx, eventOf(t, "orders", newID(t)))
	require.NoError(t, err)
	began := time.Now()
	require.Contains(t, c.refused(t, "--producer", "plain", "--namespace", "shop", "--apply"), "run it again when it has ended")
	require.Less(t, time.Since(began), 20*time.Second)
	require.NoError(t, tx.Rollback(t.Context()))
	c.ctl(t, "--producer", "plain", "--namespace", "shop", "--apply")
	c.ctl(t, "--producer", "plain", "--remove", "--apply")
	require.True(t, value[bool](t, c.super, "SELECT relrowsecurity FROM pg_class WHERE oid = 'onceward.outbox'::regclass"), "shop is bound still")
}

// shared: roles of one prefix in two databases of a cluster are one principal, and
// who makes them is told so.
func (c *cluster) shared(t *testing.T) {
	require.NotContains(t, c.ctl(t, "--side", "outbox", "--apply"), "WARN")
	there := connectTo(t, c.server.DSN("there"))
	run(t, there, "ALTER SCHEMA onceward OWNER TO CURRENT_USER") // it has roles of its own, and is moved to these
	out := outboxctl(t, c.server.DSN("there"), "migrate", "roles", "--side", "outbox", "--apply")
	require.Contains(t, out, "WARN roles onceward_* have rights in other databases of this cluster too (here)")
	var heard string
	conf := there.Config()
	conf.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { heard += n.Severity + " " + n.Message }
	conn, err := pgx.ConnectConfig(t.Context(), conf)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.PgConn().Exec(t.Context(), outboxctl(t, "", "migrate", "roles", "--side", "outbox", "--print")).ReadAll()
	require.NoError(t, err)
	require.Contains(t, heard, "WARNING roles onceward_* have rights in other databases of this cluster too (here)")
}

func eventOf(t *testing.T, namespace, id string) outbox.Event {
	t.Helper()
	key, err := outbox.ParseKey(namespace + ":" + id)
	require.NoError(t, err)
	return outbox.Event{Key: key, AggregateType: "t", AggregateID: "a", Type: "e", Payload: []byte("x")}
}

// TestBoundProducersArePublished: row-level security is switched on under a relay
// that runs. It goes on, begins again under it, and publishes what bound and general
// producers write; the operator's tool sees all of it.
func TestBoundProducersArePublished(t *testing.T) {
	t.Parallel()
	onAVersion(t, func(t *testing.T, version string) {
		w := ownEnvironment(t, version, nil)
		r := streaming(t, w, "checkpoint_interval: 100ms")
		caughtUp(t, w, r)
		outboxctl(t, w.server.DSN(w.name), "migrate", "roles", "--producer", "bound", "--namespace", w.name, "--apply")
		w.execute("ALTER ROLE bound LOGIN PASSWORD '" + loginPassword + "'")
		pool := w.as("bound")
		for range 2 {
			require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := (&writers{namespace: w.name}).row(t.Context(), tx, 0, "a-0")
				return err
			}))
			caughtUp(t, w, r)
			r.stop()
			r.start()
		}
		caughtUp(t, w, r)
		eventually(t, "nothing is pending", 30*time.Second, func() bool { return len(list(t, w, "pending").Events) == 0 })
		published := len(list(t, w, "published").Events)
		records, copies, committed := verifyAll(t, w, nil)
		require.Equal(t, committed, published)
		t.Logf("PostgreSQL %s: %d events of two producers, %d records, %d copies", version, committed, records, copies)
		pool.Close()
	})
}
