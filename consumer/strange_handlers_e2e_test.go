//go:build e2e

package consumer_test

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/migrations"
)

// TestAHandlerSetsAnotherRole: a program whose handlers write as one tenant or another by SET LOCAL
// ROLE, which has no rights in onceward, ends its events, and redrives them, as any other.
func TestAHandlerSetsAnotherRole(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	name := db.Config().ConnConfig.Database
	roles, err := migrations.NewRoles(migrations.Consumer, "r-"+name)
	require.NoError(t, err)
	require.NoError(t, roles.Apply(t.Context(), db))
	exec(t, db, `CREATE ROLE "t-`+name+`"`)
	exec(t, db, `GRANT INSERT ON effects TO "t-`+name+`"`)
	exec(t, db, `CREATE ROLE "l-`+name+`" LOGIN PASSWORD 'secret' IN ROLE "r-`+name+`_consumer", "t-`+name+`"`)
	exec(t, db, `CREATE TABLE commits (role text NOT NULL)`)
	exec(t, db, `GRANT INSERT ON commits TO PUBLIC`)
	exec(t, db, `CREATE FUNCTION committed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO commits VALUES (current_user); RETURN NULL; END $$`)
	exec(t, db, `CREATE CONSTRAINT TRIGGER committed AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION committed()`)
	dsn, err := url.Parse(db.Config().ConnString())
	require.NoError(t, err)
	dsn.User = url.UserPassword("l-"+name, "secret")
	pool := must(pgxpool.New(t.Context(), dsn.String()))
	t.Cleanup(pool.Close)
	p := must(consumer.New(t.Context(), consumer.Config{Group: "billing", DB: pool, Retry: consumer.Retry{OnLetter: consumer.LetterPark}, Classes: []consumer.Class{
		{Pattern: "*", Window: 24 * time.Hour}, {Pattern: "push", Window: 24 * time.Hour, Keyed: consumer.ByArrival}}}))
	r, broken := consumer.NewRouter(p), true
	handler := func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if broken {
			return consumer.DeadLetter(errors.New("broken"))
		}
		if _, err := tx.Exec(ctx, `SET LOCAL ROLE "t-`+name+`"`); err != nil {
			return err
		}
		return effect("billing")(ctx, tx, ev)
	}
	r.Tx("*", handler)
	require.NoError(t, deliver(t.Context(), r, at(newEvent(t), 1), consumer.DeadLettered))
	require.NoError(t, deliver(t.Context(), r, at(newEvent(t), 2), consumer.DeadLettered), "parked behind it")
	broken = false
	other := at(newEvent(t), 3)
	other.AggregateID = "o-2"
	require.NoError(t, deliver(t.Context(), r, other, consumer.Processed))
	exec(t, db, `UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1, decided_at = clock_timestamp() WHERE state = 'open'`)
	_, err = r.Redrive(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, count(t, db, `SELECT count(*) FROM onceward.consumer_dead_letters WHERE state <> 'redriven'`))
	hook := newWebhook(t)
	hook.Source = consumer.Source{Topic: "hooks", Offset: 1}
	require.NoError(t, deliver(t.Context(), r, hook, consumer.Processed), "by arrival")
	require.Equal(t, 4, count(t, db, "SELECT count(*) FROM effects"))
	require.Equal(t, `"t-`+name+`" 4`, rolesOf(t, db), "what is deferred to the commit is the handler's")
}

func rolesOf(t *testing.T, db *pgxpool.Pool) (roles string) {
	t.Helper()
	require.NoError(t, db.QueryRow(t.Context(), `SELECT string_agg(DISTINCT quote_ident(role), ',') || ' ' || count(*) FROM commits`).Scan(&roles))
	return roles
}

// TestAnEffectWithAnotherContext: an effect would be taken for the event itself, and end it, when a
// handler makes it with a context that is not its own. It is refused, and those with its own are made.
func TestAnEffectWithAnotherContext(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	p := must(consumer.New(t.Context(), consumer.Config{Group: "billing", DB: e.db}))
	r, made, wrong := consumer.NewRouter(p), map[string]int{}, true
	r.Func("Paid", func(ctx context.Context, ev consumer.Event) error { //nolint:contextcheck // that is the test
		for _, name := range []string{"charge", "mail"} {
			if wrong {
				ctx = t.Context()
			}
			_, err := consumer.Fence(context.WithoutCancel(ctx), p, ev, consumer.Effect[int]{Name: name, Do: func(context.Context, consumer.Call) (int, error) {
				made[name]++
				return 1, nil
			}})
			if err != nil && !wrong {
				return err
			}
		}
		return nil // it hides what it was told
	})
	ev := at(newEvent(t), 1)
	_, err := r.Handle(t.Context(), ev)
	require.ErrorIs(t, err, consumer.ErrContext)
	require.Empty(t, made)
	wrong = false
	require.NoError(t, deliver(t.Context(), r, ev, consumer.Processed))
	require.NoError(t, deliver(t.Context(), r, ev, consumer.Duplicate))
	require.Equal(t, map[string]int{"charge": 1, "mail": 1}, made)
	_, err = consumer.Fence(t.Context(), p, newEvent(t), consumer.Effect[int]{Name: "charge", Do: func(context.Context, consumer.Call) (int, error) { return 1, nil }})
	require.NoError(t, err, "an effect that is the event")
}

// TestWhatIsCommittedIsNotHeldBack: the commit fails for one event of a batch, and a later one of an
// aggregate fails, too: what was applied before it says so.
func TestWhatIsCommittedIsNotHeldBack(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	exec(t, e.db, "CREATE TABLE parent (id int PRIMARY KEY)")
	exec(t, e.db, "CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
	r := consumer.NewRouter(must(consumer.New(t.Context(), consumer.Config{Group: "billing", DB: e.db})))
	r.Batch("Paid", consumer.BatchOptions{}, func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		switch string(ev.Payload) {
		case "refused":
			if _, err := tx.Exec(ctx, "INSERT INTO child VALUES (1)"); err != nil {
				return err
			}
		case "fails":
			return errors.New("fails")
		}
		return effect("billing")(ctx, tx, ev)
	})
	var evs []consumer.Event
	for i, what := range []string{"good", "refused", "fails"} {
		ev := at(newEvent(t), int64(i))
		ev.AggregateID, ev.Payload = []string{"a", "b", "a"}[i], []byte(what)
		evs = append(evs, ev)
	}
	got := r.HandleBatch(t.Context(), evs)
	require.Equal(t, consumer.Delivery{Outcome: consumer.Processed}, got[0])
	require.Error(t, got[1].Err)
	require.Error(t, got[2].Err)
	require.NoError(t, e.expect(1, 1))
}

// TestNoTimeToWaitForAClaim: where a role's statement_timeout is shorter than Config.LockTimeout, an
// event that another delivery holds keeps no other of its batch.
func TestNoTimeToWaitForAClaim(t *testing.T) {
	t.Parallel()
	e := newEnv(t, nil)
	cfg := e.db.Config().Copy()
	cfg.ConnConfig.RuntimeParams["statement_timeout"] = "500"
	pool := must(pgxpool.NewWithConfig(t.Context(), cfg))
	t.Cleanup(pool.Close)
	p := must(consumer.New(t.Context(), consumer.Config{Group: "billing", DB: pool}))
	r := consumer.NewRouter(p)
	r.Batch("Paid", consumer.BatchOptions{}, effect("billing"))
	evs := []consumer.Event{at(newEvent(t), 1), at(newEvent(t), 2), at(newEvent(t), 3)}
	for i := range evs {
		evs[i].AggregateID = string(rune('a' + i))
	}
	err := pgx.BeginFunc(t.Context(), e.db, func(tx pgx.Tx) error {
		if _, err := p.Claim(t.Context(), tx, evs[1]); err != nil {
			return err
		}
		got := r.HandleBatch(t.Context(), evs)
		require.True(t, got[0].Finished(), "%v", got[0].Err)
		require.False(t, got[1].Finished())
		require.True(t, got[2].Finished(), "%v", got[2].Err)
		return errors.New("the other delivery fails")
	})
	require.ErrorContains(t, err, "the other delivery fails")
	require.NoError(t, deliver(t.Context(), r, evs[1], consumer.Processed))
	require.NoError(t, e.expect(3, 3))
}

// TestADatabaseOfAnotherEncoding: one that lacks characters of events is refused before there is
// anything in it, and by a program.
func TestADatabaseOfAnotherEncoding(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	name := "latin_" + db.Config().ConnConfig.Database
	exec(t, db, "CREATE DATABASE "+name+" ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
	cfg := db.Config().Copy()
	cfg.ConnConfig.Database = name
	cfg.ConnConfig.RuntimeParams["client_encoding"] = "UTF8"
	pool := must(pgxpool.NewWithConfig(t.Context(), cfg))
	t.Cleanup(func() {
		pool.Close()
		_, err := db.Exec(context.Background(), "DROP DATABASE "+name)
		require.NoError(t, err)
	})
	m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Consumer})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.ErrorIs(t, err, migrations.ErrEncoding)
	require.Zero(t, count(t, pool, "SELECT count(*) FROM pg_namespace WHERE nspname = 'onceward'"))
	exec(t, pool, `CREATE SCHEMA onceward; CREATE TABLE onceward.processed_events (); CREATE TABLE onceward.consumer_dead_letters (topic_id uuid)`) // as an earlier release made them
	_, err = consumer.New(t.Context(), consumer.Config{Group: "billing", DB: pool})
	require.ErrorContains(t, err, "encoded in LATIN1")
}
