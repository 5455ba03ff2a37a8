//go:build e2e

package relay

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/relay/internal/state"
)

// letterbox is a database with letters, written by the relay's role, which is no
// superuser. Rows and controls are made here: what reads them from the log is
// tested elsewhere.
type letterbox struct {
	t     *testing.T
	dsn   string
	owner *pgx.Conn // the superuser: what the test arranges
	conn  *pgx.Conn // the relay's role
	slot  string
	epoch int64
	first func(ctx context.Context, q *outboxdb.Queries) error // of the next session
	*letters
}

const boxSlot = "onceward_orders"

var letterboxes atomic.Int64

// onEachServer runs the tests on the oldest and the newest server.
func onEachServer(t *testing.T, tests map[string]func(*letterbox)) {
	for _, version := range []string{"15", "18"} {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			server := testdb.Server(t, pgserver.Options{Version: version})
			for name, test := range tests {
				t.Run(name, func(t *testing.T) { test(newLetterbox(t, server)) })
			}
		})
	}
}

func newLetterbox(t *testing.T, server *pgserver.Server) *letterbox {
	name := fmt.Sprintf("letters_%d", letterboxes.Add(1))
	_, err := connected(t, server.DSN("postgres")).Exec(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, err)
	b := &letterbox{t: t, dsn: server.DSN(name), owner: connected(t, server.DSN(name)), slot: boxSlot}
	roles, err := migrations.NewRoles(migrations.Outbox, migrations.DefaultPrefix)
	require.NoError(t, err)
	require.NoError(t, roles.Apply(t.Context(), b.owner))
	for _, role := range []migrations.Role{migrations.RoleMaintainer, migrations.RoleRelay, migrations.RoleOperator} {
		b.exec("ALTER ROLE " + roles.Name(role) + " LOGIN PASSWORD 'secret'")
	}
	_, err = b.migrator().Up(t.Context())
	require.NoError(t, err)
	b.conn = connected(t, b.as("onceward_relay"))
	b.addRelay(boxSlot)
	b.reopen(0)
	return b
}

func (b *letterbox) migrator() *migrations.Migrator {
	b.t.Helper()
	pool, err := pgxpool.New(b.t.Context(), b.as("onceward_maintainer"))
	require.NoError(b.t, err)
	b.t.Cleanup(pool.Close)
	m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Outbox})
	require.NoError(b.t, err)
	return m
}

func (b *letterbox) as(role string) string {
	u, err := url.Parse(b.dsn)
	require.NoError(b.t, err)
	u.User = url.UserPassword(role, "secret")
	return u.String()
}

func (b *letterbox) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.owner.Exec(b.t.Context(), sql, args...)
	require.NoError(b.t, err, sql)
}

// text returns one value, or the rows of a text column, one a line.
func (b *letterbox) text(sql string, args ...any) string {
	b.t.Helper()
	rows, err := b.owner.Query(b.t.Context(), sql, args...)
	require.NoError(b.t, err, sql)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(b.t, err, sql)
	return strings.Join(lines, "\n")
}

func (b *letterbox) addRelay(slot string) {
	b.t.Helper()
	_, err := outboxdb.New(b.conn).InsertRelayState(b.t.Context(), outboxdb.InsertRelayStateParams{
		Slot: slot, Relay: slot, Database: "d", SystemIdentifier: "1", Timeline: 1, ConfirmedLsn: "0/0", Mode: "idempotent", Publication: "p",
	})
	require.NoError(b.t, err)
}

// reopen is the next session: it owns the slot and starts at a position.
func (b *letterbox) reopen(checkpoint pglogrepl.LSN) {
	b.t.Helper()
	state, err := outboxdb.New(b.conn).BumpEpoch(b.t.Context(), outboxdb.BumpEpochParams{Slot: b.slot, Relay: b.slot})
	require.NoError(b.t, err)
	b.epoch = state.Epoch
	b.letters, err = openLetters(b.t.Context(), b.session(), b.config(checkpoint))
	require.NoError(b.t, err)
}

// session is the state of the owner, over its present connection.
func (b *letterbox) session() *state.State {
	st := state.New(b.conn, b.slot)
	st.Epoch = b.epoch
	return st
}

func (b *letterbox) config(checkpoint pglogrepl.LSN) lettersConfig {
	return lettersConfig{checkpoint: checkpoint, maxParked: 1000, first: b.first}
}

// idOf makes ids that tests can read: the number is at the end.
func idOf(n int) (id uuid.UUID) {
	id = uuid.UUID{0x01, 0x99, 0xf3, 0xc4, 0, 0, 0x70, 0, 0x80}
	binary.BigEndian.PutUint32(id[12:], uint32(n))
	return id
}

// deadEvent is event n of an aggregate, in a transaction of its own at 16 × n.
func deadEvent(n int, aggregate string, change ...func(*casualty)) casualty {
	c := casualty{
		row: &outbox.Row{
			ID: idOf(n), Namespace: "orders", AggregateType: "order", AggregateID: []byte(aggregate), Type: "Paid", Payload: []byte(fmt.Sprint("payload ", n)),
			ContentType: "text/plain", Headers: []byte(`{"a": "b"}`), Traceparent: []byte("00-trace"),
			CreatedAt: time.Date(2026, 11, 21, 5, 0, n%60, 123456000, time.UTC), TxID: uint64(700 + n), Seq: int64(n),
		},
		commit: lsnOf(n), class: classRecord, cause: "record too large", holds: true,
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func lsnOf(n int) pglogrepl.LSN { return pglogrepl.LSN(16 * n) }

func holdsNothing(c *casualty) { c.holds = false }

// replayed makes a replay of the event; the replay's id is that of event n.
func replayOf(n int) func(*casualty) {
	return func(c *casualty) {
		c.replay = &cdc.Replay{ID: c.row.ID, Mode: cdc.ModeReprocess, Group: "billing", Topic: "elsewhere", Reason: "r", RequestedBy: "w"}
		c.row.ID = idOf(n)
	}
}

// park admits the letters as the pump does, and writes them.
func (b *letterbox) park(ctx context.Context, cs ...casualty) error {
	for i := range cs {
		if full := b.admit(&cs[i]); full != nil {
			return full
		}
	}
	return b.letters.park(ctx, cs...)
}

func (b *letterbox) parks(cs ...casualty) {
	b.t.Helper()
	require.NoError(b.t, b.park(b.t.Context(), cs...))
}

// wordOf is the word n about an aggregate or, if it is a number, one letter.
func wordOf(n int, action string, of any) *cdc.Control {
	c := &cdc.Control{ID: idOf(1_000_000 + n), Action: action, Reason: fmt.Sprint("reason ", n), RequestedBy: "alice"}
	if letter, ok := of.(int); ok {
		c.LetterID = idOf(letter)
		return c
	}
	c.Namespace, c.AggregateType, c.AggregateID = "orders", "order", []byte(of.(string))
	return c
}

// say lets the relay read word n at 16 × n, and returns the numbers of the
// letters that it released.
func (b *letterbox) say(n int, action string, of any) (*release, []int) {
	b.t.Helper()
	r, err := b.act(b.t.Context(), wordOf(n, action, of), nil, lsnOf(n), false)
	require.NoError(b.t, err)
	return r, numbers(b.pages(r))
}

func (b *letterbox) pages(r *release) (all []*letter) {
	b.t.Helper()
	for r != nil {
		page, err := r.next(b.t.Context())
		require.NoError(b.t, err)
		if len(page) == 0 {
			break
		}
		all = append(all, page...)
	}
	return all
}

func numbers(all []*letter) (out []int) {
	for _, l := range all {
		out = append(out, int(binary.BigEndian.Uint32(l.id[12:])))
	}
	return out
}

// states returns number=state of all letters in order.
func (b *letterbox) states() string {
	b.t.Helper()
	return strings.ReplaceAll(b.text(`SELECT ('x' || right(letter_id::text, 8))::bit(32)::int || '=' || state FROM onceward.dead_letters
		WHERE slot = $1 ORDER BY position, seq, letter_id`, b.slot), "\n", " ")
}

// note returns what was recorded of word n.
func (b *letterbox) note(n int) string {
	b.t.Helper()
	return b.text(`SELECT letters || ' ' || note FROM onceward.control_results WHERE slot = $1 AND control_id = $2`, b.slot, idOf(1_000_000+n))
}

func (b *letterbox) has(n int) bool {
	b.t.Helper()
	found, err := b.ended(b.t.Context(), idOf(n), lsnOf(n))
	require.NoError(b.t, err)
	return found
}

func (b *letterbox) follows(n int, aggregate string) bool {
	c := deadEvent(n, aggregate)
	return b.parked(c.row, c.commit)
}

// everything is what a fenced writer must leave as it is.
func (b *letterbox) everything() string {
	b.t.Helper()
	return b.text(`SELECT d::text FROM onceward.dead_letters d UNION ALL SELECT c::text FROM onceward.control_results c
		UNION ALL SELECT s::text FROM onceward.relay_state s ORDER BY 1`)
}

func connected(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}
