package testoutbox

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/relay/internal/state"
)

// Outbox is a database with the outbox's tables and the roles of its side, on a real
// server, and one relay of it.
type Outbox struct {
	T     *testing.T
	DSN   string
	Owner *pgx.Conn // the superuser: what the test arranges
	Conn  *pgx.Conn // the relay's role
	Slot  string
	Epoch int64
}

// Slot is that of its relay.
const Slot = "onceward_orders"

var boxes atomic.Int64

// OnServers runs tests on the oldest and the newest server.
func OnServers(t *testing.T, test func(*testing.T, *pgserver.Server)) {
	for _, version := range []string{"15", "18"} {
		t.Run("PostgreSQL"+version, func(t *testing.T) { test(t, testdb.Server(t, pgserver.Options{Version: version})) })
	}
}

// New makes one on a server.
func New(t *testing.T, server *pgserver.Server) *Outbox {
	name := fmt.Sprintf("box_%d", boxes.Add(1))
	_, err := Connected(t, server.DSN("postgres")).Exec(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, err)
	b := &Outbox{T: t, DSN: server.DSN(name), Owner: Connected(t, server.DSN(name)), Slot: Slot}
	roles, err := migrations.NewRoles(migrations.Outbox, migrations.DefaultPrefix)
	require.NoError(t, err)
	require.NoError(t, roles.Apply(t.Context(), b.Owner))
	for _, role := range []migrations.Role{migrations.RoleMaintainer, migrations.RoleRelay, migrations.RoleOperator} {
		b.Exec("ALTER ROLE " + roles.Name(role) + " LOGIN PASSWORD 'secret'")
	}
	_, err = b.migrator().Up(t.Context())
	require.NoError(t, err)
	b.Conn = Connected(t, b.As("onceward_relay"))
	b.AddRelay(Slot)
	return b
}

// migrator is that of the maintainer.
func (b *Outbox) migrator() *migrations.Migrator {
	b.T.Helper()
	pool, err := pgxpool.New(b.T.Context(), b.As("onceward_maintainer"))
	require.NoError(b.T, err)
	b.T.Cleanup(pool.Close)
	m, err := migrations.New(migrations.Config{Pool: pool, Side: migrations.Outbox})
	require.NoError(b.T, err)
	return m
}

// As is the DSN of a role.
func (b *Outbox) As(role string) string {
	u, err := url.Parse(b.DSN)
	require.NoError(b.T, err)
	u.User = url.UserPassword(role, "secret")
	return u.String()
}

// Exec is what the test arranges.
func (b *Outbox) Exec(sql string, args ...any) {
	b.T.Helper()
	_, err := b.Owner.Exec(b.T.Context(), sql, args...)
	require.NoError(b.T, err, sql)
}

// Text returns one value, or the rows of a text column, one a line.
func (b *Outbox) Text(sql string, args ...any) string {
	b.T.Helper()
	rows, err := b.Owner.Query(b.T.Context(), sql, args...)
	require.NoError(b.T, err, sql)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(b.T, err, sql)
	return strings.Join(lines, "\n")
}

// AddRelay lets a slot be known.
func (b *Outbox) AddRelay(slot string) {
	b.T.Helper()
	_, err := outboxdb.New(b.Conn).InsertRelayState(b.T.Context(), outboxdb.InsertRelayStateParams{
		Slot: slot, Relay: slot, Database: "d", SystemIdentifier: "1", Timeline: 1, ConfirmedLsn: "0/0", Mode: "idempotent", Publication: "p",
	})
	require.NoError(b.T, err)
}

// Take is the next session: it owns the slot.
func (b *Outbox) Take() *state.State {
	b.T.Helper()
	row, err := outboxdb.New(b.Conn).BumpEpoch(b.T.Context(), outboxdb.BumpEpochParams{Slot: b.Slot, Relay: b.Slot})
	require.NoError(b.T, err)
	b.Epoch = row.Epoch
	return b.Session()
}

// Session is the state of the owner, over its present connection.
func (b *Outbox) Session() *state.State {
	st := state.New(b.Conn, b.Slot)
	st.Epoch = b.Epoch
	return st
}

// ID makes ids that tests can read: the number is at the end.
func ID(n int) (id uuid.UUID) {
	id = uuid.UUID{0x01, 0x99, 0xf3, 0xc4, 0, 0, 0x70, 0, 0x80}
	binary.BigEndian.PutUint32(id[12:], uint32(n))
	return id
}

// LSN is a position, the nth.
func LSN(n int) pglogrepl.LSN { return pglogrepl.LSN(16 * n) }

// Connected is a connection that ends with the test.
func Connected(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// LargeReads returns how many blocks of values that are stored aside were read in a table and its partitions, as far as
// what Conn has done says.
func (b *Outbox) LargeReads(table string) (blocks int64) {
	b.T.Helper()
	_, err := b.Conn.Exec(b.T.Context(), "SELECT pg_catalog.pg_stat_force_next_flush()")
	require.NoError(b.T, err)
	require.NoError(b.T, b.Owner.QueryRow(b.T.Context(), `SELECT pg_catalog.sum(pg_catalog.pg_stat_get_blocks_fetched(c.reltoastrelid))::bigint
		FROM pg_catalog.pg_class c WHERE (c.oid = $1::regclass OR c.oid IN (SELECT relid FROM pg_catalog.pg_partition_tree($1))) AND c.reltoastrelid <> 0`, table).Scan(&blocks))
	return blocks
}
