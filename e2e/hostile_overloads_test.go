//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/audit"
	"github.com/onceward/onceward/consumer/retention"
	"github.com/onceward/onceward/internal/process"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// TestHostileOverloads: the owner of a database, who is nobody else, makes in
// schema public what looks more fitting than the functions, operators and types
// that our SQL names. Everybody works on: DBA, maintainers, producer, relay,
// operator, superuser, consumer. Nobody runs any of it, neither where public is
// behind pg_catalog in the search_path, nor where the owner has put it before. The
// traps are laid before `migrate up` and stay: what is bound when a table is made
// is looked at as well as what runs later. The short form has each version and each
// path once.
func TestHostileOverloads(t *testing.T) {
	t.Parallel()
	names := namesOfOurs(t)
	short := map[string]string{versions[0]: "before", versions[1]: "behind"}
	onVersions(t, func(t *testing.T, version string) {
		for name, path := range map[string]string{"behind": "", "before": "public, pg_catalog"} {
			if !full() && short[version] != name {
				continue
			}
			t.Run(name, func(t *testing.T) {
				h := newHostile(t, version)
				h.plant(names)
				if path != "" {
					_, err := h.conn.Exec(t.Context(), "ALTER DATABASE "+h.name+" SET search_path = "+path)
					require.NoError(t, err)
				}
				defer func() {
					if t.Failed() {
						t.Log("loot:", h.loot())
					}
				}()
				h.installs()
				h.work()
				h.moves()
				h.migrate()
				require.Empty(t, h.loot())
				h.bites(path)
			})
		}
	})
}

// installs is what is done before the relay runs for the first time.
func (h *hostile) installs() {
	h.roles()
	require.Contains(h.t, h.ctl(h.dsn(maintainerLogin), "migrate", "up", "--side", "outbox", "--relay", h.name, "--dry-run"), "CREATE TABLE")
	h.install()
	require.Contains(h.t, h.ctl(h.dsn(maintainerLogin), "migrate", "down", "--side", "outbox", "--dry-run"), "DROP TABLE")
	h.createTopic(nil)
	h.execute(`CREATE TABLE public.effects (key text)`)
	h.execute(`GRANT ALL ON public.effects TO PUBLIC`)
	out, err := process.Run(h.t.Context(), process.Spec{Path: relayBinary(h.t, ""), Args: []string{"check", "--config", h.config()}})
	require.NoError(h.t, err, out)
	require.NotContains(h.t, out, "(SQLSTATE")
}

// roles is the DBA's part, who is a superuser.
func (h *hostile) roles() {
	shared.roles.Lock()
	defer shared.roles.Unlock()
	for _, side := range []string{"outbox", "consumer"} {
		h.ctl(h.server.DSN(h.name), "migrate", "roles", "--side", side, "--apply")
	}
}

// migrate is an upgrade that finds all there, as the maintainers and as the
// superuser.
func (h *hostile) migrate() {
	h.roles()
	for _, side := range []struct{ name, maintainer string }{{"outbox", maintainerLogin}, {"consumer", consumerMaintainerLogin}} {
		for _, dsn := range []string{h.dsn(side.maintainer), h.server.DSN(h.name)} {
			h.ctl(dsn, "migrate", "status", "--side", side.name)
			require.Contains(h.t, h.ctl(dsn, "migrate", "up", "--side", side.name), "nothing to migrate")
			h.ctl(dsn, "migrate", "up", "--side", side.name, "--dry-run")
		}
	}
}

// work is the main job, with a letter and its retry, and what everybody does
// about it.
func (h *hostile) work() {
	t := h.t
	h.app = h.as(appLogin) // with the settings of the database
	config := h.config(`admin: {listen: "off"}`, "checkpoint_interval: 50ms")
	relay := h.newRelay(config, "")
	relay.start()
	eventually(t, "the relay streams", time.Minute, func() bool { return relay.logs("slot taken") })
	events := h.produce()
	bad := h.bad()
	h.ends(relay, events)
	h.operate(config, h.dsn(operatorLogin), events[0].Key, bad, true)
	h.operate(config, h.server.DSN(h.name), events[0].Key, bad, false)
	h.ctl(h.dsn(maintainerLogin), "partitions", "maintain", "--keep", "3")
	h.ctl(h.dsn(maintainerLogin), "partitions", "maintain", "--keep", "3")
	h.consume(events[:4])
	relay.stop()
	relay.inMode("exactly-once").start()
	eventually(t, "the relay streams", time.Minute, func() bool { return relay.logs("exactly-once") })
	h.ends(relay, h.produce())
	relay.stop()
}

// produce writes events in each way that Go has and by the SQL function, and
// again, as one that tries a second time does.
func (h *hostile) produce() []outbox.Event {
	t := h.t
	var events []outbox.Event
	for i := range 6 {
		key, err := outbox.NewKey(h.name)
		require.NoError(t, err)
		events = append(events, outbox.Event{
			Key: key, AggregateType: "order", AggregateID: fmt.Sprint("a-", i), Type: "OrderChanged", Payload: []byte(`{}`), Headers: map[string]string{"a": "b"},
		})
	}
	for _, want := range []outbox.Result{outbox.Enqueued, outbox.Duplicate} {
		tx, err := h.app.Begin(t.Context())
		require.NoError(t, err)
		for _, ev := range events[:2] {
			got, err := outbox.Enqueue(t.Context(), tx, ev)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		many, err := outbox.EnqueueMany(t.Context(), tx, events[2:4])
		require.NoError(t, err)
		require.Equal(t, []outbox.Result{want, want}, many)
		batch := &pgx.Batch{}
		require.NoError(t, outbox.QueueEnqueue(batch, events[4], func(got outbox.Result, err error) {
			require.NoError(t, err)
			require.Equal(t, want, got)
		}))
		require.NoError(t, tx.SendBatch(t.Context(), batch).Close())
		var word string
		last := events[5]
		require.NoError(t, tx.QueryRow(t.Context(), `SELECT onceward.enqueue($1, $2, $3, $4, $5, headers => $6)`,
			last.Key.String(), last.AggregateType, last.AggregateID, last.Type, last.Payload, last.Headers).Scan(&word))
		require.Equal(t, want.String(), word)
		require.NoError(t, tx.Commit(t.Context()))
	}
	return events
}

// bad writes an event that cannot be published: the name of its header is the
// contract's own.
func (h *hostile) bad() outbox.Key {
	h.t.Helper()
	key, err := outbox.NewKey(h.name)
	require.NoError(h.t, err)
	_, err = h.app.Exec(h.t.Context(), `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload, headers)
		VALUES ($1, $2, 'order', 'bad', 'OrderChanged', '{}', '{"position": "forged"}')`, key.UUID(), h.name)
	require.NoError(h.t, err)
	return key
}

// ends waits until a published snapshot covers the events.
func (h *hostile) ends(relay *relayProcess, events []outbox.Event) {
	h.t.Helper()
	var ids []uuid.UUID
	for _, ev := range events {
		ids = append(ids, ev.Key.UUID())
	}
	eventually(h.t, "the events are published", time.Minute, func() bool {
		select {
		case <-relay.process.Done():
			h.t.Fatal("the relay ended by itself")
		default:
		}
		return scalar[bool](h.environment, `SELECT COALESCE(bool_and(pg_visible_in_snapshot(o.tx_id, s.snapshot)), false)
			FROM onceward.outbox o, onceward.published_snapshots s WHERE o.id = ANY($1)`, ids)
	})
}

// ctl runs outboxctl, which may find something wrong, but no error of the
// database.
func (h *hostile) ctl(dsn string, args ...string) string {
	h.t.Helper()
	out, err := process.Run(h.t.Context(), process.Spec{
		Path: outboxctlBinary(h.t), Args: args, Env: []string{"OUTBOXCTL_DSN=" + dsn, "OUTBOXCTL_INSECURE=true"},
	})
	if err != nil {
		require.ErrorContains(h.t, err, "exit status 3", "outboxctl %v: %s", args, out)
	}
	require.NotContains(h.t, out, "(SQLSTATE", "outboxctl %v", args)
	return out
}

// operate gives every command that reads, and those that order something.
func (h *hostile) operate(config, dsn string, key, bad outbox.Key, first bool) {
	t := h.t
	eventually(t, "the letter is there", time.Minute, func() bool {
		return scalar[int](h.environment, `SELECT count(*) FROM onceward.dead_letters WHERE letter_id = $1 AND state = 'open'`, bad.UUID()) == 1
	})
	for _, args := range [][]string{
		{"status"},
		{"migrate", "status", "--side", "outbox"},
		{"list", "--state", "pending"},
		{"list", "--state", "published", "--type", "OrderChanged"},
		{"list", "--state", "dead"},
		{"show", key.String()},
		{"show", bad.String(), "--consumer-dsn", dsn},
		{"dead", "list"},
		{"dead", "show", bad.String()},
		{"partitions", "status"},
		{"replay", key.String(), "--config", config, "--yes", "--reason", "r"},
		{"replay", "--aggregate", "a-1", "--config", config, "--yes", "--reason", "r", "--dry-run"},
		{"pause", "--route", h.topic()},
		{"resume", "--route", h.topic()},
		{"dead", "retry", bad.String(), "--yes", "--reason", "r"},
		{"doctor", "--config", config},
	} {
		h.ctl(dsn, args...)
	}
	if !first {
		headers := filepath.Join(t.TempDir(), "headers.json")
		require.NoError(t, os.WriteFile(headers, []byte(`{"a": "b"}`), 0o600))
		h.ctl(dsn, "dead", "edit", bad.String(), "--headers-file", headers, "--yes", "--reason", "r")
		h.ctl(dsn, "dead", "retry", "--all", "--yes", "--reason", "r")
		require.Equal(t, "replayed", scalar[string](h.environment, `SELECT state FROM onceward.dead_letters WHERE letter_id = $1`, bad.UUID()))
	}
}

// consume applies the events, and what can happen to one.
func (h *hostile) consume(events []outbox.Event) {
	t := h.t
	ctx := t.Context()
	db := h.as(billingLogin)
	p, err := consumer.New(ctx, consumer.Config{Group: "g", DB: db, Retry: consumer.Retry{MaxAttempts: 2}})
	require.NoError(t, err)
	router := consumer.NewRouter(p)
	broken := true
	router.Tx("OrderChanged", func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if broken && ev.AggregateID == "a-1" {
			return errors.New("not yet")
		}
		_, err := tx.Exec(ctx, `INSERT INTO public.effects VALUES ($1)`, ev.Key.String())
		return err
	})
	router.Func("Charge", func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Fence(ctx, p, ev, consumer.Effect[int]{Name: "charge", Do: func(context.Context, consumer.Call) (int, error) { return 1, nil }})
		return err
	})
	router.Batch("Batched", consumer.BatchOptions{}, func(context.Context, pgx.Tx, consumer.Event) error { return nil })
	var all []consumer.Event
	for i, ev := range events {
		rec := consumer.Record{Source: consumer.Source{Topic: h.topic(), Offset: int64(i)}, Key: []byte(ev.AggregateID), Value: ev.Payload, Headers: []consumer.Header{
			{Name: outbox.HeaderKey, Value: []byte(ev.Key.String())}, {Name: record.HeaderAggregateType, Value: []byte("order")},
			{Name: record.HeaderEventType, Value: []byte([]string{"OrderChanged", "OrderChanged", "Charge", "Batched"}[i])},
		}}
		read, err := record.Decode(rec)
		require.NoError(t, err)
		all = append(all, consumer.Event{Event: read, Source: rec.Source, RecordHeaders: rec.Headers})
	}
	for range 3 { // the second is a duplicate, or a letter
		for _, ev := range all {
			_, _ = router.Handle(ctx, ev) // the handler fails; what the server says is looked at below
		}
		router.HandleBatch(ctx, all[3:])
	}
	require.Equal(t, 3, scalar[int](h.environment, `SELECT count(*) FROM onceward.processed_events WHERE outcome = 'p'`))
	require.Equal(t, 1, scalar[int](h.environment, `SELECT count(*) FROM onceward.consumer_dead_letters`))
	h.lookAtConsumers(events[0].Key)
	broken = false
	h.settle(p, router)
}

// settle is what a member of the group does beside its messages, and the group's
// maintainer.
func (h *hostile) settle(p *consumer.Processor, router *consumer.Router) {
	t := h.t
	ctx := t.Context()
	_, err := router.Redrive(ctx, 10)
	require.NoError(t, err)
	require.Equal(t, "redriven", scalar[string](h.environment, `SELECT state FROM onceward.consumer_dead_letters`))
	_, err = router.RecoverFences(ctx, 10)
	require.NoError(t, err)
	progress, err := p.Progress(ctx)
	require.NoError(t, err)
	require.NoError(t, p.SaveProgress(ctx, progress.History, []consumer.Mark{{Topic: h.topic(), High: 3, FinishedTime: time.Now(), AtEnd: true}}))
	_, err = router.SendLetters(ctx, func(_ context.Context, letters []consumer.Letter) ([]consumer.Letter, error) { return letters, nil })
	require.NoError(t, err)
	_, err = audit.Check(ctx, h.as(billingLogin), audit.Config{Group: p.Group()})
	require.NoError(t, err)
	h.ctl(h.dsn(consumerMaintainerLogin), "partitions", "maintain", "--side", "consumer")
	conn, err := h.as(consumerMaintainerLogin).Acquire(ctx) // without outboxctl, as a service may
	require.NoError(t, err)
	defer conn.Release()
	_, err = retention.Maintain(ctx, conn.Conn(), retention.Config{})
	require.NoError(t, err)
}

// lookAtConsumers gives the commands of the consumer's side.
func (h *hostile) lookAtConsumers(key outbox.Key) {
	for _, dsn := range []string{h.dsn(operatorLogin), h.server.DSN(h.name)} {
		for _, args := range [][]string{
			{"dead", "list", "--side", "consumer"},
			{"processed", "show", key.String()},
			{"fences", "list"},
			{"windows", "list"},
			{"windows", "advise", "--group", "g"},
			{"windows", "set", "g", "*", "--window", "200h", "--yes", "--reason", "r"},
			{"partitions", "status", "--side", "consumer"},
			{"audit"},
		} {
			h.ctl(dsn, args...)
		}
	}
	h.ctl(h.dsn(operatorLogin), "processed", "forget", key.String(), "--group", "g", "--yes", "--reason", "r")
	h.ctl(h.dsn(operatorLogin), "dead", "redrive", "--all", "--yes", "--reason", "r", "--wait", "0")
}

// bites is the control: who calls without a schema steps into the traps.
func (h *hostile) bites(path string) {
	t := h.t
	conn, err := pgx.Connect(t.Context(), h.dsn(appLogin))
	require.NoError(t, err)
	defer conn.Close(t.Context())
	bait := map[string]string{
		"SELECT hashtextextended('x', 0)":                            "hashtextextended(text, integer) as shop",
		"SELECT FROM onceward.outbox WHERE namespace = 'x'::varchar": "text = character varying as shop",
	}
	if path != "" {
		bait["SELECT clock_timestamp()"] = "clock_timestamp() as shop"
		bait["SELECT FROM onceward.outbox WHERE namespace = 'x'"] = "text = text as shop"
		bait["SELECT 'x'::text"] = "type text as shop"
	}
	for statement, trap := range bait {
		_, err := conn.Exec(t.Context(), statement)
		require.NoError(t, err)
		require.Contains(t, h.loot(), trap, statement)
	}
}
