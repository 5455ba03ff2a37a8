//go:build e2e

package outbox_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

// row is what a writer puts into the table by a plain INSERT; nil is NULL.
type row struct {
	namespace, aggregateType, aggregateID, eventType, payload, contentType, headers, traceparent any
}

// TestTheTableRefusesWhatTheFunctionRefuses: every rule of the contract, by its
// name, for a writer who uses neither Enqueue nor the SQL function; and what is
// just within it passes.
func TestTheTableRefusesWhatTheFunctionRefuses(t *testing.T) {
	for _, version := range []string{"15", "18"} {
		t.Run(version, func(t *testing.T) {
			pool := testdb.New(t, version)
			m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Outbox})
			require.NoError(t, err)
			_, err = m.Up(t.Context())
			require.NoError(t, err)
			writer := asWriter(t, pool)
			for _, c := range broken {
				r := row{"shop", "order", "o-1", "OrderPaid", []byte("{}"), "application/json", `{"tenant": "acme"}`, nil}
				c.change(&r)
				err := r.insert(t, writer)
				if c.rule == "" {
					require.NoError(t, err, c.name)
					continue
				}
				var pg *pgconn.PgError
				require.ErrorAs(t, err, &pg, c.name)
				require.Equal(t, []string{"23514", c.rule}, []string{pg.Code, pg.ConstraintName}, c.name)
				if c.rule == "outbox_namespace" {
					continue // the function takes it from the key, and says OW002
				}
				key, err := outbox.NewKey("shop")
				require.NoError(t, err)
				if r.contentType == "" {
					continue // which is the default there
				}
				_, err = writer.Exec(t.Context(), `SELECT onceward.enqueue($1, $2, $3, $4, $5, $6, $7::text::jsonb, $8)`,
					key.String(), r.aggregateType, r.aggregateID, r.eventType, r.payload, r.contentType, r.headers, r.traceparent)
				requireState(t, err, "OW003", "")
			}
		})
	}
}

func (r row) insert(t *testing.T, on *pgxpool.Pool) error {
	t.Helper()
	key, err := outbox.NewKey("shop")
	require.NoError(t, err)
	_, err = on.Exec(t.Context(), `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, headers, traceparent)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8::text::jsonb, $9)`, key.UUID(), r.namespace, r.aggregateType, r.aggregateID, r.eventType, r.payload, r.contentType, r.headers, r.traceparent)
	return err
}

var broken = []struct {
	name, rule string
	change     func(*row)
}{
	{"all set", "", func(*row) {}},
	{"all that may be", "", func(r *row) { r.payload, r.headers = nil, nil }},
	{"longest", "", func(r *row) {
		r.namespace, r.aggregateType, r.aggregateID = "a"+strings.Repeat("9", 62), strings.Repeat("ü", 127), strings.Repeat("a", 4096)
		r.eventType, r.contentType = strings.Repeat("T", 255), strings.Repeat("c", 255)
	}},
	{"all letters of a namespace", "", func(r *row) { r.namespace = "a.b_c-0123456789" }},
	{"empty headers", "", func(r *row) { r.headers = `{}` }},
	{"largest headers", "", func(r *row) { r.headers = `{"a": "` + strings.Repeat(`\u0001`, 64<<10-1) + `"}` }},
	{"traceparent", "", func(r *row) { r.traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" }},

	{"namespace empty", "outbox_namespace", func(r *row) { r.namespace = "" }},
	{"namespace long", "outbox_namespace", func(r *row) { r.namespace = strings.Repeat("a", 64) }},
	{"namespace of 50 MB", "outbox_namespace", func(r *row) { r.namespace = strings.Repeat("a", 50<<20) }},
	{"namespace upper", "outbox_namespace", func(r *row) { r.namespace = "Shop" }},
	{"namespace digit first", "outbox_namespace", func(r *row) { r.namespace = "1shop" }},
	{"namespace colon", "outbox_namespace", func(r *row) { r.namespace = "shop:a" }},
	{"namespace letter behind z", "outbox_namespace", func(r *row) { r.namespace = "shöp" }},
	{"namespace newline", "outbox_namespace", func(r *row) { r.namespace = "shop\n" }},
	{"namespace escape", "outbox_namespace", func(r *row) { r.namespace = "ns\x1b[31mRED\x1b]0;title\x07" }},
	{"aggregate type empty", "outbox_aggregate_type", func(r *row) { r.aggregateType = "" }},
	{"aggregate type long", "outbox_aggregate_type", func(r *row) { r.aggregateType = strings.Repeat("ü", 128) }},
	{"aggregate id empty", "outbox_aggregate_id", func(r *row) { r.aggregateID = "" }},
	{"aggregate id long", "outbox_aggregate_id", func(r *row) { r.aggregateID = strings.Repeat("a", 4097) }},
	{"event type empty", "outbox_event_type", func(r *row) { r.eventType = "" }},
	{"event type long", "outbox_event_type", func(r *row) { r.eventType = strings.Repeat("T", 256) }},
	{"event type of two lines", "outbox_event_type", func(r *row) { r.eventType = "T\r\nX-Admin: true" }},
	{"event type of a terminal", "outbox_event_type", func(r *row) { r.eventType = "\x1b[31m" }},
	{"content type empty", "outbox_content_type", func(r *row) { r.contentType = "" }},
	{"content type long", "outbox_content_type", func(r *row) { r.contentType = strings.Repeat("T", 256) }},
	{"content type of two lines", "outbox_content_type", func(r *row) { r.contentType = "text/plain\nX: y" }},
	{"content type delete", "outbox_content_type", func(r *row) { r.contentType = "text/\x7f" }},
	{"payload", "outbox_payload", func(r *row) { r.payload = make([]byte, outbox.MaxPayload+1) }},
	{"headers null", "outbox_headers", func(r *row) { r.headers = `null` }},
	{"headers array", "outbox_headers", func(r *row) { r.headers = `["a"]` }},
	{"headers array of objects", "outbox_headers", func(r *row) { r.headers = `[{"a": "b"}]` }},
	{"headers text", "outbox_headers", func(r *row) { r.headers = `"a"` }},
	{"header number", "outbox_headers", func(r *row) { r.headers = `{"a": "b", "n": 1}` }},
	{"header null", "outbox_headers", func(r *row) { r.headers = `{"n": null}` }},
	{"header array of text", "outbox_headers", func(r *row) { r.headers = `{"n": ["b"]}` }},
	{"header object", "outbox_headers", func(r *row) { r.headers = `{"n": {"a": "b"}}` }},
	{"headers of 2 MB", "outbox_headers", func(r *row) { r.headers = `{"n": "` + strings.Repeat("v", 2<<20) + `"}` }},
	{"traceparent long", "outbox_traceparent", func(r *row) { r.traceparent = strings.Repeat("0", 256) }},
	{"traceparent of two lines", "outbox_traceparent", func(r *row) { r.traceparent = "00\r\n" }},
}

// TestAForeignCheckIsAnInvalidEvent: a CHECK that was added, which nothing of ours
// knows, is an invalid event on every way in, of today and of days ago; a day
// without a partition is none.
func TestAForeignCheckIsAnInvalidEvent(t *testing.T) {
	pool := installed(t)
	_, err := pool.Exec(t.Context(), `ALTER TABLE onceward.outbox ADD CONSTRAINT no_seven CHECK (aggregate_id <> 'o-7')`)
	require.NoError(t, err)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { require.NoError(t, db.Close()) }()
	for _, days := range []int{0, 3, 40} {
		ev, want := newEvent(t), outbox.ErrEvent
		ev.AggregateID = "o-7"
		if days > 0 {
			ev.Key, err = outbox.ExternalKey("shop", fmt.Sprint("evt_", days), time.Now().AddDate(0, 0, -days))
			require.NoError(t, err)
		}
		if days == 40 {
			want = outbox.ErrOutOfWindow
		}
		for name, write := range waysIn(t, pool, db) {
			err := write(ev)
			require.ErrorIs(t, err, want, "%s, %d days ago", name, days)
			require.ErrorContains(t, err, ev.Key.String(), name)
			if want == outbox.ErrEvent {
				require.ErrorContains(t, err, "no_seven", name)
			}
		}
		_, err := call(t.Context(), pool, ev)
		if days == 40 {
			requireState(t, err, "OW004", ev.Key.String())
			continue
		}
		requireState(t, err, "OW003", "no_seven")
		require.NotContains(t, err.Error(), `{"n":1}`, "the payload is nobody's to read in a log")
	}
	_, err = enqueue(t, pool, newEvent(t))
	require.NoError(t, err, "others pass")
	_, err = call(t.Context(), pool, newEvent(t))
	require.NoError(t, err, "others pass")
}

func waysIn(t *testing.T, pool *pgxpool.Pool, db *sql.DB) map[string]func(outbox.Event) error {
	return map[string]func(outbox.Event) error{
		"Enqueue": func(ev outbox.Event) error { _, err := enqueue(t, pool, ev); return err },
		"EnqueueMany": func(ev outbox.Event) error {
			_, err := enqueueMany(t, pool, []outbox.Event{newEvent(t), ev})
			return err
		},
		"EnqueueSQL": func(ev outbox.Event) error {
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			defer tx.Rollback()
			_, err = outbox.EnqueueSQL(t.Context(), tx, ev)
			return err
		},
		"QueueEnqueue": func(ev outbox.Event) error {
			batch := &pgx.Batch{}
			require.NoError(t, outbox.QueueEnqueue(batch, ev, nil))
			return pool.SendBatch(t.Context(), batch).Close()
		},
	}
}

// TestTheFunctionTakesNoSubtransaction, as long as nothing was added to the table:
// the number of its CHECKs stands in the function. A row that was written in a
// subtransaction bears the number of that.
func TestTheFunctionTakesNoSubtransaction(t *testing.T) {
	pool := installed(t)
	inside := func() (own bool) {
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			ev := newEvent(t)
			_, err := call(t.Context(), tx, ev)
			require.NoError(t, err)
			return tx.QueryRow(t.Context(), `SELECT xmin = pg_current_xact_id()::xid FROM onceward.outbox WHERE id = $1`, ev.Key.UUID()).Scan(&own)
		}))
		return own
	}
	require.True(t, inside())
	_, err := pool.Exec(t.Context(), `ALTER TABLE onceward.outbox ADD CONSTRAINT no_seven CHECK (aggregate_id <> 'o-7')`)
	require.NoError(t, err)
	require.False(t, inside(), "this test sees them")
}

// A partition that was detached by hand is a day without one, whatever its name.
func TestTheFunctionWithADetachedPartition(t *testing.T) {
	pool := installed(t)
	ev := newEvent(t)
	_, err := pool.Exec(t.Context(), `ALTER TABLE onceward.outbox DETACH PARTITION onceward.outbox_`+ev.Key.Time().UTC().Format("20060102"))
	require.NoError(t, err)
	_, err = call(t.Context(), pool, ev)
	requireState(t, err, "OW004", ev.Key.String())
}

// The names of reserved headers do not depend on how a session reads backslashes.
func TestTheFunctionUnderOldStrings(t *testing.T) {
	pool := installed(t)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `SET standard_conforming_strings = off; SET escape_string_warning = on`)
	require.NoError(t, err)
	ev := newEvent(t)
	ev.Headers = map[string]string{"center": "x"}
	_, err = call(t.Context(), conn, ev)
	require.NoError(t, err, "it begins with ce and not with ce_")
	ev = newEvent(t)
	ev.Type = "T\n"
	_, err = call(t.Context(), conn, ev)
	requireState(t, err, "OW003", "control character")
	_, err = conn.Exec(t.Context(), `RESET ALL`)
	require.NoError(t, err)
}
