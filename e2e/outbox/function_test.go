//go:build e2e

package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

const callFunction = `SELECT onceward.enqueue($1, $2, $3, $4, $5, $6, $7, $8)`

// call gives the event to the SQL function; empty fields are NULL.
func call(ctx context.Context, db interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, ev outbox.Event) (result string, err error) {
	null := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	var headers any
	if ev.Headers != nil {
		headers = ev.Headers
	}
	err = db.QueryRow(ctx, callFunction, ev.Key.String(), null(ev.AggregateType), null(ev.AggregateID), null(ev.Type), ev.Payload,
		null(ev.ContentType), headers, null(ev.Traceparent)).Scan(&result)
	return result, err
}

func requireState(t *testing.T, err error, state, message string) {
	t.Helper()
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg)
	require.Equal(t, state, pg.Code, pg.Message)
	require.Contains(t, pg.Message, message)
}

// What Go writes is a duplicate for the function, and the other way round: they
// agree on every column. With the writer's rights, in the caller's transaction.
func TestTheFunctionIsEnqueue(t *testing.T) {
	pool := installed(t)
	writer := asWriter(t, pool)
	for name, change := range map[string]func(*outbox.Event){
		"full":           func(e *outbox.Event) { e.Traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" },
		"tombstone":      func(e *outbox.Event) { e.Payload = nil },
		"empty":          func(e *outbox.Event) { e.Payload = []byte{} },
		"no headers":     func(e *outbox.Event) { e.Headers = nil },
		"empty headers":  func(e *outbox.Event) { e.Headers = map[string]string{} },
		"content type":   func(e *outbox.Event) { e.ContentType = "application/avro" },
		"future version": func(e *outbox.Event) { e.Traceparent = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x" },
		"derived": func(e *outbox.Event) {
			k, err := outbox.DeriveKey("shop", time.Now().Truncate(time.Hour), t.Name())
			require.NoError(t, err)
			e.Key = k
		},
		"days ago": func(e *outbox.Event) {
			k, err := outbox.ExternalKey("shop", "evt_1", time.Now().AddDate(0, 0, -3))
			require.NoError(t, err)
			e.Key = k
		},
	} {
		for _, goFirst := range []bool{true, false} {
			ev := newEvent(t)
			change(&ev)
			if ev.Key.UUID().Version() == 8 { // the same key for both orders
				_, err := pool.Exec(t.Context(), `DELETE FROM onceward.outbox`)
				require.NoError(t, err)
			}
			require.NoError(t, pgx.BeginFunc(t.Context(), writer, func(tx pgx.Tx) error {
				if goFirst {
					r, err := outbox.Enqueue(t.Context(), tx, ev)
					require.NoError(t, err, name)
					require.Equal(t, outbox.Enqueued, r)
				} else {
					r, err := call(t.Context(), tx, ev)
					require.NoError(t, err, name)
					require.Equal(t, "enqueued", r)
				}
				r, err := call(t.Context(), tx, ev)
				require.NoError(t, err, name)
				require.Equal(t, "duplicate", r, name)
				d, err := outbox.Enqueue(t.Context(), tx, ev)
				require.NoError(t, err, name)
				require.Equal(t, outbox.Duplicate, d, name)
				return nil
			}))
			var trace string
			require.NoError(t, pool.QueryRow(t.Context(), `SELECT coalesce(traceparent, '') FROM onceward.outbox WHERE id = $1`, ev.Key.UUID()).Scan(&trace))
			require.Equal(t, ev.Traceparent, trace, name)
		}
	}
}

func TestTheFunctionRefusesReuse(t *testing.T) {
	pool := installed(t)
	ev := newEvent(t)
	_, err := enqueue(t, pool, ev)
	require.NoError(t, err)
	for name, change := range map[string]func(*outbox.Event){
		"payload":   func(e *outbox.Event) { e.Payload = nil },
		"type":      func(e *outbox.Event) { e.Type = "Other" },
		"aggregate": func(e *outbox.Event) { e.AggregateID = "other" },
		"headers":   func(e *outbox.Event) { e.Headers = nil },
	} {
		other := ev
		change(&other)
		_, err := call(t.Context(), pool, other)
		requireState(t, err, "OW001", ev.Key.String())
		require.Contains(t, err.Error(), "reused", name)
	}
}

// The function refuses the same keys as the parser, by the same rule.
func TestTheFunctionReadsTheBadVectors(t *testing.T) {
	pool := installed(t)
	text, err := os.ReadFile("../../outbox/testdata/keys.json")
	require.NoError(t, err)
	var vectors struct {
		Parse struct {
			Bad []struct{ Input, Rule string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &vectors))
	for _, v := range vectors.Parse.Bad {
		if v.Rule == string(outbox.RuleFuture) && !strings.Contains(v.Input, "ffffffff") {
			continue // by the clock of the vectors; below by the server's
		}
		_, err := pool.Exec(t.Context(), `SELECT onceward.enqueue($1, 'order', '1', 'OrderPaid', NULL)`, v.Input)
		requireState(t, err, "OW002", ": "+v.Rule+": ")
	}
	_, err = pool.Exec(t.Context(), `SELECT onceward.enqueue(NULL, 'order', '1', 'OrderPaid', NULL)`)
	requireState(t, err, "OW002", "separator")
	for ahead, ok := range map[time.Duration]bool{outbox.DefaultKeySkew - 20*time.Second: true, outbox.DefaultKeySkew + 20*time.Second: false} {
		k, err := outbox.ExternalKey("shop", ahead.String(), time.Now().Add(ahead))
		require.NoError(t, err)
		_, err = pool.Exec(t.Context(), `SELECT onceward.enqueue($1, 'order', '1', 'OrderPaid', NULL)`, k.String())
		if ok {
			require.NoError(t, err)
			continue
		}
		requireState(t, err, "OW002", ": future: ")
	}
}

func TestTheFunctionNamesTheField(t *testing.T) {
	pool := installed(t)
	for want, change := range map[string]func(*outbox.Event){
		"aggregate_type: empty":                            func(e *outbox.Event) { e.AggregateType = "" },
		"aggregate_type: longer":                           func(e *outbox.Event) { e.AggregateType = strings.Repeat("a", 256) },
		"aggregate_id: empty":                              func(e *outbox.Event) { e.AggregateID = "" },
		"aggregate_id: longer":                             func(e *outbox.Event) { e.AggregateID = strings.Repeat("a", 4097) },
		"event_type: empty":                                func(e *outbox.Event) { e.Type = "" },
		"event_type: longer":                               func(e *outbox.Event) { e.Type = strings.Repeat("a", 256) },
		"content_type: longer":                             func(e *outbox.Event) { e.ContentType = strings.Repeat("a", 256) },
		"event_type, content_type or traceparent: holds a": func(e *outbox.Event) { e.Type = "T\r\nX-Admin: true" },
		"content_type or traceparent: holds a control":     func(e *outbox.Event) { e.ContentType = "text/\x7f" },
		"traceparent: holds a control":                     func(e *outbox.Event) { e.Traceparent = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-\n" },
		"traceparent: not a W3C":                           func(e *outbox.Event) { e.Traceparent = "00-zz" },
		"traceparent: not":                                 func(e *outbox.Event) { e.Traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x" },
		"traceparent":                                      func(e *outbox.Event) { e.Traceparent = "00-00000000000000000000000000000000-00f067aa0ba902b7-01" },
		`headers["id"]: reserved`:                          func(e *outbox.Event) { e.Headers = map[string]string{"id": "x"} },
		`headers["position"]: reserved`:                    func(e *outbox.Event) { e.Headers = map[string]string{"a": "x", "position": "x"} },
		`headers["ce_id"]: reserved`:                       func(e *outbox.Event) { e.Headers = map[string]string{"ce_id": "x"} },
		`headers[""]: a name`:                              func(e *outbox.Event) { e.Headers = map[string]string{"": "x"} },
		"headers: more than 64 KiB":                        func(e *outbox.Event) { e.Headers = map[string]string{"a": strings.Repeat("v", 64<<10)} },
	} {
		ev := newEvent(t)
		change(&ev)
		_, err := call(t.Context(), pool, ev)
		requireState(t, err, "OW003", want)
		require.Error(t, ev.Validate(time.Now()), "Go refuses it too")
	}
	for headers, want := range map[string]string{`["a"]`: "want an object", `null`: "want an object", `{"n": 1}`: `headers["n"]: the value is no string`, `{"n": null}`: `headers["n"]: the value`} {
		_, err := pool.Exec(t.Context(), `SELECT onceward.enqueue($1, 'order', '1', 'OrderPaid', NULL, headers => $2::text::jsonb)`, newEvent(t).Key.String(), headers)
		requireState(t, err, "OW003", want)
	}
	_, err := pool.Exec(t.Context(), `SELECT onceward.enqueue($1, 'order', '1', 'OrderPaid', $2)`, newEvent(t).Key.String(), make([]byte, outbox.MaxPayload+1))
	requireState(t, err, "OW003", "payload: longer than 63 MiB")
}

// Reserved names are one list, in Go and in SQL.
func TestTheFunctionReservesTheSameHeaders(t *testing.T) {
	pool := installed(t)
	for _, name := range []string{
		outbox.HeaderKey, record.HeaderEventType, record.HeaderAggregateType, record.HeaderContentType, record.HeaderOccurredAt,
		record.HeaderTraceparent, record.HeaderPosition, record.HeaderReplayID, record.HeaderReplayMode, record.HeaderReplayGroup,
		record.HeaderRepairID, "id", "eventType", "ce_", "ce_x", "ce", "cex", "ID", "tenant", "Content-Type",
	} {
		ev := newEvent(t)
		ev.Headers = map[string]string{name: "x"}
		_, err := call(t.Context(), pool, ev)
		if outbox.ReservedHeader(name) {
			requireState(t, err, "OW003", "reserved")
			continue
		}
		require.NoError(t, err, name)
	}
}

// Without a partition by its name the function still tries: names are no proof.
func TestTheFunctionOutsideTheWindow(t *testing.T) {
	pool := installed(t)
	old, err := outbox.ExternalKey("shop", "evt_1", time.Now().AddDate(0, 0, -40))
	require.NoError(t, err)
	ev := newEvent(t)
	ev.Key = old
	_, err = call(t.Context(), pool, ev)
	requireState(t, err, "OW004", old.String())
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg)
	require.Contains(t, pg.Hint, "a table of your own for its id and a new key", "no command makes its day")
	low, high := outbox.FirstID(old.Time().Truncate(24*time.Hour)), outbox.FirstID(old.Time().Truncate(24*time.Hour).AddDate(0, 0, 1))
	_, err = pool.Exec(t.Context(), fmt.Sprintf(`CREATE TABLE onceward.another_name PARTITION OF onceward.outbox FOR VALUES FROM ('%s') TO ('%s')`, low, high))
	require.NoError(t, err)
	r, err := call(t.Context(), pool, ev)
	require.NoError(t, err)
	require.Equal(t, "enqueued", r)
}

// A partition that retention has closed refuses as one that is not there: by the
// same error in Go and in SQL.
func TestAClosedPartitionIsOutsideTheWindow(t *testing.T) {
	pool := installed(t)
	ev := newEvent(t)
	old, err := outbox.ExternalKey("shop", "evt_1", time.Now().AddDate(0, 0, -3))
	require.NoError(t, err)
	ev.Key = old
	leaf := "onceward.outbox_" + old.Time().Format("20060102")
	_, err = pool.Exec(t.Context(), `CREATE TRIGGER onceward_closed BEFORE INSERT ON `+leaf+` FOR EACH ROW EXECUTE FUNCTION onceward.refuse_insert()`)
	require.NoError(t, err)
	_, err = enqueue(t, pool, ev)
	require.ErrorIs(t, err, outbox.ErrOutOfWindow)
	_, err = enqueueMany(t, pool, []outbox.Event{newEvent(t), ev})
	require.ErrorIs(t, err, outbox.ErrOutOfWindow)
	_, err = call(t.Context(), pool, ev)
	requireState(t, err, "OW004", old.String())
}

func TestTheFunctionTellsTheTruthAboutARace(t *testing.T) {
	pool := installed(t)
	ev := newEvent(t)
	first, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer first.Rollback(context.Background())
	_, err = outbox.Enqueue(t.Context(), first, ev)
	require.NoError(t, err)
	answer := make(chan string, 1)
	go func() {
		r, err := call(t.Context(), pool, ev)
		answer <- fmt.Sprint(r, err)
	}()
	waitsForALock(t, pool)
	require.NoError(t, first.Commit(t.Context()))
	require.Equal(t, "duplicate<nil>", <-answer)
}

// The words of docs/producing.md for psql, run by psql.
func TestTheFunctionFromPsql(t *testing.T) {
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Skipf("psql is not installed: %v", err)
	}
	pool := installed(t)
	key := "shop:" + uuid.Must(uuid.NewV7()).String()
	script := documented(t, "psql")
	run := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), psql, "-X", "-v", "ON_ERROR_STOP=1", "-v", "key="+key, "-At", "-d", pool.Config().ConnString())
		cmd.Stdin = strings.NewReader(script)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	_, err = pool.Exec(t.Context(), `CREATE TABLE invoices (id text PRIMARY KEY, paid boolean NOT NULL); INSERT INTO invoices VALUES ('inv-7', false)`)
	require.NoError(t, err)
	for _, want := range []string{"enqueued", "duplicate"} {
		out, err := run()
		require.NoError(t, err, out)
		require.Contains(t, out, want)
		require.Equal(t, want == "enqueued", strings.Contains(out, "UPDATE 1"), "the business statements run once")
	}
	requireOneEvent(t, pool, key)
}

// The statement of docs/producing.md for JDBC; pgx has another name for each question mark.
func TestTheStatementOfJDBC(t *testing.T) {
	found := regexp.MustCompile(`"(SELECT onceward\.enqueue.*)"`).FindStringSubmatch(documented(t, "jdbc"))
	require.NotNil(t, found)
	statement := found[1]
	for i := 1; strings.Contains(statement, "?"); i++ {
		statement = strings.Replace(statement, "?", fmt.Sprintf("$%d", i), 1)
	}
	pool := installed(t)
	key := "billing:" + uuid.Must(uuid.NewV7()).String()
	for _, want := range []string{"enqueued", "duplicate"} {
		var got string
		require.NoError(t, pool.QueryRow(t.Context(), statement, key, "invoice", "inv-7", "InvoicePaid",
			[]byte(`{"invoice": "inv-7"}`), `{"tenant": "acme"}`).Scan(&got))
		require.Equal(t, want, got)
	}
	requireOneEvent(t, pool, key)
}

func requireOneEvent(t *testing.T, pool *pgxpool.Pool, key string) {
	t.Helper()
	var got, payload, tenant string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT namespace || ':' || id, convert_from(payload, 'UTF8'), headers->>'tenant' FROM onceward.outbox`).Scan(&got, &payload, &tenant))
	require.Equal(t, []string{key, `{"invoice": "inv-7"}`, "acme"}, []string{got, payload, tenant})
}

// documented returns the code block of docs/producing.md behind the line
// `<!-- test: name -->`, so that what is shown is what runs.
func documented(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/producing.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), "<!-- test: "+name+" -->\n```")
	require.True(t, ok, "docs/producing.md has no block %q", name)
	_, rest, _ = strings.Cut(rest, "\n")
	code, _, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	return code
}
