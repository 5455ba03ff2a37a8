//go:build e2e

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/internal/operator/replay"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// installation is an installed producer's database whose commands are an operator's.
// The pool is the superuser's: it arranges, plays the relay and looks.
type installation struct {
	t        *testing.T
	pool     *pgxpool.Pool
	operator string // the login
}

// onInstallations runs a test as an operator on the oldest and the newest PostgreSQL.
func onInstallations(t *testing.T, test func(d *installation)) {
	for _, version := range []string{"15", "18"} {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			pool := testdb.New(t, version)
			dsn := pool.Config().ConnString()
			t.Setenv(dsnVariable, dsn)
			t.Setenv(insecureVariable, "true")
			prefix := "ctl-" + pool.Config().ConnConfig.Database
			fine(t, "migrate", "up", "--side", "outbox")
			fine(t, "migrate", "roles", "--side", "outbox", "--prefix", prefix, "--apply")
			exec(t, pool, insertState, "onceward_ctl")
			loginAs(t, pool, dsn, prefix+"_"+string(migrations.RoleOperator))
			test(&installation{t: t, pool: pool, operator: "login-" + prefix + "_" + string(migrations.RoleOperator)})
		})
	}
}

// published is the relay's word that everything so far is in Kafka.
func (d *installation) published() {
	d.t.Helper()
	exec(d.t, d.pool, "INSERT INTO onceward.published_snapshots SELECT slot, pg_current_snapshot(), now() FROM onceward.relay_state ON CONFLICT (slot) DO UPDATE SET snapshot = excluded.snapshot, taken_at = excluded.taken_at")
}

// event commits an event of an aggregate and a type.
func (d *installation) event(aggregate, eventType, payload string) outbox.Key {
	d.t.Helper()
	key, err := outbox.NewKey("orders")
	require.NoError(d.t, err)
	require.NoError(d.t, pgx.BeginFunc(d.t.Context(), d.pool, func(tx pgx.Tx) error {
		_, err := outbox.Enqueue(d.t.Context(), tx, outbox.Event{Key: key, AggregateType: "order", AggregateID: aggregate, Type: eventType, Payload: []byte(payload)})
		return err
	}))
	return key
}

// letter makes an event a dead letter, as the relay writes it.
func (d *installation) letter(key outbox.Key, state string) {
	d.t.Helper()
	exec(d.t, d.pool, `INSERT INTO onceward.dead_letters (slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, headers,
		created_at, tx_id, seq, position, error_class, error, state, holds)
		SELECT 'onceward_ctl', id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, headers, created_at, tx_id, seq, '0/10',
		'record', '2 MB is more than 1 MB', $2, true FROM onceward.outbox WHERE id = $1`, key.UUID(), state)
}

// asked lists the events in onceward.replays, in the stream's order.
func (d *installation) asked() []string {
	d.t.Helper()
	return column[string](d, "SELECT namespace || ':' || id FROM onceward.replays ORDER BY seq")
}

func column[T any](d *installation, sql string, args ...any) []T {
	d.t.Helper()
	rows, err := d.pool.Query(d.t.Context(), sql, args...)
	require.NoError(d.t, err)
	out, err := pgx.CollectRows(rows, pgx.RowTo[T])
	require.NoError(d.t, err)
	return out
}

func texts(keys ...outbox.Key) (out []string) {
	for _, k := range keys {
		out = append(out, k.String())
	}
	return out
}

// wrong runs a command that finds something wrong, and returns what it says.
func wrong(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := call(t, args...)
	require.Equal(t, exitWrong, code, "%v\n%s%s", args, stdout, stderr)
	return stdout
}

func TestReplayByFilter(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		first, second := d.event("A", "OrderPaid", "1"), d.event("B", "OrderPaid", "2")
		other, released := d.event("A", "OrderSent", "3"), d.event("A", "OrderPaid", "4")
		dead, discarded := d.event("A", "OrderPaid", "5"), d.event("A", "OrderPaid", "6")
		d.published()
		d.event("A", "OrderPaid", "7") // pending
		d.letter(dead, "open")
		d.letter(discarded, "discarded")
		d.letter(released, "replayed")
		exec(t, d.pool, "UPDATE onceward.dead_letters SET payload = 'edited' WHERE state = 'replayed'")

		args := []string{"replay", "--type", "OrderPaid", "--unchecked", "--reason", "asked by support", "-o", "json"}
		counted := decode[replay.Result](t, fine(t, append(args, "--dry-run")...))
		require.Equal(t, 3, counted.Selected)
		require.Equal(t, []replay.Kind{{Namespace: "orders", AggregateType: "order", EventType: "OrderPaid", Events: 3}}, counted.Kinds)
		left := map[string]int64{}
		for _, l := range counted.LeftOut {
			left[l.State] = l.Events
		}
		require.Equal(t, map[string]int64{states.Pending: 1, states.Dead: 1, states.Discarded: 1}, left)
		code, _, stderr := call(t, args...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "would replay 3 events; standard input is no terminal to ask at: add --yes")
		require.Empty(t, d.asked(), "nothing without --yes")

		done := decode[replay.Result](t, fine(t, append(args, "--yes")...))
		require.Equal(t, 3, done.Requested)
		require.Equal(t, texts(first, second, released), d.asked())
		require.Equal(t, []string{"1", "2", "edited"}, column[string](d, "SELECT convert_from(payload, 'UTF8') FROM onceward.replays ORDER BY seq"), "an edited letter is what was published")
		require.Equal(t, 3, column[int](d, `SELECT count(*) FROM onceward.replays r JOIN onceward.outbox o USING (id) WHERE r.created_at = o.created_at AND r.headers IS NOT DISTINCT FROM o.headers
			AND mode = 'redeliver' AND replay_group IS NULL AND topic IS NULL AND reason = 'asked by support' AND requested_by = $1 AND requested_at > now() - interval '1 minute'`, d.operator)[0])
		for _, id := range column[uuid.UUID](d, "SELECT replay_id FROM onceward.replays") {
			require.EqualValues(t, 7, id.Version())
		}
		require.Contains(t, fine(t, "show", first.String()), "asked by support")

		require.Contains(t, fine(t, "replay", "--aggregate", "A", "--aggregate-type", "order", "--unchecked", "--yes", "--reason", "r"), "asked for the replay of 3 of 3 events (redeliver)")
		require.Equal(t, texts(first, other, released), d.asked()[3:])
		require.Contains(t, fine(t, "replay", "--namespace", "billing", "--unchecked", "--yes", "--reason", "r"), "no event to replay")
	})
}

func TestReplayByTime(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		var keys []outbox.Key
		for i := range 3 {
			key := d.event("A", "OrderPaid", "x")
			exec(t, d.pool, "UPDATE onceward.outbox SET created_at = $2 WHERE id = $1", key.UUID(), time.Date(2026, 11, 19+i, 12, 0, 0, 0, time.UTC))
			keys = append(keys, key)
		}
		d.published()
		fine(t, "replay", "--from", "2026-11-19T12:00:00.001Z", "--to", "2026-11-21", "--unchecked", "--yes", "--reason", "r")
		require.Equal(t, texts(keys[1]), d.asked())
		fine(t, "replay", "--from", "2026-11-19T12:00:00Z", "--to", "2026-11-20T12:00:00Z", "--unchecked", "--yes", "--reason", "r")
		require.Equal(t, texts(keys[0]), d.asked()[1:], "--from is in, --to is out")
	})
}

func TestReplayByKey(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		first, second := d.event("A", "OrderPaid", "1"), d.event("A", "OrderPaid", "2")
		dead, discarded := d.event("B", "OrderPaid", "3"), d.event("B", "OrderPaid", "4")
		d.published()
		d.letter(dead, "open")
		d.letter(discarded, "discarded")
		pending := d.event("A", "OrderPaid", "5")
		refused := func(want string, args ...string) {
			t.Helper()
			require.Contains(t, wrong(t, append([]string{"replay", "--unchecked", "--yes", "--reason", "r"}, args...)...), want)
			require.Empty(t, d.asked(), "one KEY that cannot be replayed refuses all")
		}
		refused(pending.String()+" is pending: not published yet", first.String(), pending.String())
		refused(dead.String()+" is dead: `outboxctl dead retry KEY", dead.String(), first.String())
		refused(discarded.String()+" is discarded: an operator discarded it; --dead", discarded.String())
		refused(someKey+" has no row", someKey)
		refused("its UUID belongs to namespace orders", "billing:"+first.UUID().String())
		refused(dead.String()+" waits as a dead letter: `outboxctl dead retry", "--dead", dead.String())
		refused(first.String()+" has no dead letter", "--dead", first.String())

		fine(t, "replay", second.String(), first.String(), second.String(), "--unchecked", "--yes", "--reason", "r", "--reprocess", "billing", "--topic", "repair")
		require.Equal(t, texts(first, second), d.asked(), "in the order of the rows, each once")
		require.Equal(t, []string{"reprocess billing repair", "reprocess billing repair"}, column[string](d, "SELECT concat_ws(' ', mode, replay_group, topic) FROM onceward.replays"))

		got := decode[replay.Result](t, fine(t, "replay", "--dead", "--unchecked", "--yes", "--reason", "r", "-o", "json"))
		require.Equal(t, []replay.Left{{State: states.Dead, Events: 1, Why: "`outboxctl dead retry KEY --reason \"…\"` publishes it in its place"}}, got.LeftOut)
		require.Equal(t, texts(discarded), d.asked()[2:])
		fine(t, "replay", "--dead", "--aggregate", "B", "--topic", "elsewhere", "--unchecked", "--yes", "--reason", "r")
		require.Equal(t, texts(dead, discarded), d.asked()[3:])
		exec(t, d.pool, "DELETE FROM onceward.outbox WHERE id = $1", discarded.UUID()) // dropped with its day
		fine(t, "replay", "--dead", discarded.String(), "--unchecked", "--yes", "--reason", "r")
		require.Equal(t, texts(discarded), d.asked()[5:], "the letter has the content")
	})
}

func TestReplayAsksAtATerminal(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		key := d.event("A", "OrderPaid", "1")
		d.published()
		ask := func(answer string) (int, string) {
			var out, errs bytes.Buffer
			code := run(t.Context(), []string{"outboxctl", "replay", key.String(), "--unchecked", "--reason", "r"}, &keyboard{*strings.NewReader(answer)}, &out, &errs)
			return code, out.String() + errs.String()
		}
		code, text := ask("n\n")
		require.Equal(t, exitFailed, code)
		require.Regexp(t, `OrderPaid +1\n(.|\n)*Replay 1 event\? \[y/N\] `, text)
		require.Contains(t, text, "not confirmed; nothing was done")
		code, _ = ask("")
		require.Equal(t, exitFailed, code)
		require.Empty(t, d.asked())
		code, _ = ask("y\n")
		require.Equal(t, exitFine, code)
		require.Equal(t, texts(key), d.asked())
	})
}

// The rate holds, an interruption says how far it came, and --after goes on.
func TestReplayIsPacedAndResumed(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		for range 10 {
			d.event("A", "OrderPaid", "x")
		}
		for i := range 20 { // as a table that was copied may hold them
			exec(t, d.pool, `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload, seq) OVERRIDING SYSTEM VALUE
				VALUES ($1, 'orders', 'order', 'A', 'OrderPaid', '{}', $2)`, newKey(t, "orders").UUID(), i/10*10-10)
		}
		d.published()
		args := []string{"outboxctl", "replay", "--type", "OrderPaid", "--unchecked", "--yes", "--reason", "r", "--rate", "20", "-o", "json"}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		interrupted := make(chan struct{})
		go func() {
			defer close(interrupted)
			defer cancel()
			for n := 0; n < 6 && ctx.Err() == nil; {
				_ = d.pool.QueryRow(ctx, "SELECT count(*) FROM onceward.replays").Scan(&n)
			}
		}()
		var out, errs bytes.Buffer
		require.Equal(t, exitFailed, run(ctx, args, strings.NewReader(""), &out, &errs))
		<-interrupted
		require.Contains(t, errs.String(), "interrupted")
		report := decode[replay.Result](t, out.String())
		require.Len(t, d.asked(), report.Requested)
		require.Less(t, report.Requested, 30)
		require.GreaterOrEqual(t, report.Requested, 6)

		fine(t, "replay", "--type", "OrderPaid", "--unchecked", "--yes", "--reason", "r", "--rate", "20", "--after", report.After)
		require.Equal(t, column[string](d, "SELECT namespace || ':' || id FROM onceward.outbox ORDER BY seq, id"), d.asked(), "all, each once, in order")
		took := column[float64](d, "SELECT extract(epoch FROM max(requested_at) - min(requested_at))::float8 FROM onceward.replays")[0]
		require.Greater(t, took, 1.0, "30 events at 20 a second")
	})
}

// A lost answer leads neither to a loss nor to a second order.
func TestReplayOutlivesItsConnection(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		key := d.event("A", "OrderPaid", "x")
		d.published()
		exec(t, d.pool, `CREATE SEQUENCE tries; GRANT ALL ON SEQUENCE tries TO PUBLIC;
			CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				IF nextval('public.tries') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); END IF; RETURN NEW; END $$;
			CREATE TRIGGER die BEFORE INSERT ON onceward.replays FOR EACH ROW EXECUTE FUNCTION die()`)
		require.Contains(t, fine(t, "replay", key.String(), "--unchecked", "--yes", "--reason", "r"), "asked for the replay of 1 of 1 event")
		require.Equal(t, texts(key), d.asked())
		exec(t, d.pool, "DROP TRIGGER die ON onceward.replays")

		id, err := uuid.NewV7()
		require.NoError(t, err)
		p := outboxdb.InsertReplaysParams{Mode: states.ModeRedeliver, Reason: "r", States: []string{states.LetterReplayed}, ReplayIds: []uuid.UUID{id}, Ids: []uuid.UUID{key.UUID()}}
		q := outboxdb.New(d.pool)
		for _, inserted := range []int{1, 0} {
			done, err := q.InsertReplays(t.Context(), p)
			require.NoError(t, err)
			require.Len(t, done, inserted, "the same order is inserted once")
		}
		count, err := q.CountReplays(t.Context(), p.ReplayIds)
		require.NoError(t, err)
		require.EqualValues(t, 1, count)
	})
}

func TestReplayOnACompactedTopic(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "plain"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	createCompacted(t, cluster, "orders.order")
	onInstallations(t, func(d *installation) {
		t := d.t
		old, newest := d.event("A", "OrderPaid", "1"), d.event("A", "OrderPaid", "2")
		sent := d.event("B", "OrderSent", "3")
		d.event("B", "OrderSent", "4")
		d.published()
		brokers := strings.Join(cluster.ListenAddrs(), ",")
		conf := filepath.Join(t.TempDir(), "relay.yaml")
		require.NoError(t, os.WriteFile(conf, []byte(`name: orders
postgres: {dsn: "postgres://relay@nowhere/db", insecure: true}
kafka: {brokers: ["`+brokers+`"], insecure: true}
routes: [{match: {event_type: OrderSent}, topic: plain}, {topic: "{namespace}.{aggregate_type}"}]
`), 0o600))
		replay := []string{"replay", "--yes", "--reason", "r"}
		out := wrong(t, append(replay, old.String(), "--config", conf)...)
		require.Contains(t, out, "topic orders.order is compacted, and 1 event is not the newest of its aggregate, e.g. "+old.String())
		wrong(t, append(replay, old.String(), newest.String(), "--config", conf)...)
		wrong(t, append(replay, old.String(), "--topic", "orders.order", "--brokers", brokers)...)
		require.Empty(t, d.asked())
		fine(t, append(replay, newest.String(), sent.String(), "--config", conf)...)
		fine(t, append(replay, old.String(), "--topic", "plain", "--brokers", brokers)...)
		require.Equal(t, texts(newest, sent, old), d.asked())
		code, _, stderr := call(t, append(replay, old.String(), "--topic", "missing", "--brokers", brokers)...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "look up topic missing")
		require.Contains(t, stderr, "`kafka-topics.sh --bootstrap-server "+brokers+" --create --topic missing`")
	})
}

func createCompacted(t *testing.T, cluster *kfake.Cluster, name string) {
	t.Helper()
	policy := "compact"
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = []kmsg.CreateTopicsRequestTopic{{Topic: name, NumPartitions: 1, ReplicationFactor: 1, Configs: []kmsg.CreateTopicsRequestTopicConfig{{Name: "cleanup.policy", Value: &policy}}}}
	resp, err := req.RequestWith(t.Context(), client(t, cluster))
	require.NoError(t, err)
	require.Zero(t, resp.Topics[0].ErrorCode)
}

func TestReplayIsTheOperators(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		key := d.event("A", "OrderPaid", "1")
		d.published()
		writer := "ctl-" + d.pool.Config().ConnConfig.Database + "_relay"
		loginAs(t, d.pool, d.pool.Config().ConnString(), writer)
		code, stdout, stderr := call(t, "replay", key.String(), "--unchecked", "--yes", "--reason", "r")
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "connect as a member of the role onceward_operator")
		require.Contains(t, stdout, "asked for the replay of 0 of 1 event")
	})
}
