//go:build e2e

package cdc_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

func onVersions(t *testing.T, test func(t *testing.T, d *database)) {
	for _, version := range []string{"15", "18"} {
		t.Run("PostgreSQL"+version, func(t *testing.T) { test(t, newDatabase(t, version)) })
	}
}

// database holds an installed outbox, a publication and a slot.
type database struct {
	t            *testing.T
	pool         *pgxpool.Pool // the superuser
	writer       *pgxpool.Pool
	operator     *pgxpool.Pool
	operatorRole string
	user         string // who logged in, whatever the role
	cfg          cdc.Config
}

// row is one of any of the tables.
type row struct {
	kind cdc.Kind
	id   uuid.UUID // of the row itself
}

func newDatabase(t *testing.T, version string) *database {
	t.Helper()
	d := &database{t: t, pool: testdb.New(t, version)}
	name := d.pool.Config().ConnConfig.Database
	roles, err := migrations.NewRoles(migrations.Outbox, name)
	require.NoError(t, err)
	require.NoError(t, roles.Apply(t.Context(), d.pool))
	m, err := migrations.New(migrations.Config{Pool: d.pool, Side: migrations.Outbox, Relay: name})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	require.NoError(t, roles.Apply(t.Context(), d.pool))
	// Whole rows of replays are the owner's alone to write: with one, a test decides what is in the stream.
	_, err = d.pool.Exec(t.Context(), `GRANT INSERT ON onceward.replays TO `+pgx.Identifier{roles.Name(migrations.RoleOperator)}.Sanitize())
	require.NoError(t, err)
	d.operatorRole, d.user = roles.Name(migrations.RoleOperator), d.pool.Config().ConnConfig.User
	d.writer, d.operator = d.as(roles.Name(migrations.RoleWriter)), d.as(d.operatorRole)
	d.cfg = cdc.Config{DSN: d.pool.Config().ConnString(), Slot: "onceward_" + name, Publication: migrations.PublicationName(name), CreateSlot: true}
	require.NoError(t, d.check())
	conn, err := d.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	require.NoError(t, cdc.EnsureSlot(t.Context(), conn.Conn(), d.cfg, false))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := d.pool.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, d.cfg.Slot)
		require.NoError(t, err)
	})
	return d
}

// as returns a pool with the rights of a role.
func (d *database) as(role string) *pgxpool.Pool {
	d.t.Helper()
	conf := d.pool.Config()
	conf.ConnConfig.RuntimeParams["role"] = role
	pool, err := pgxpool.NewWithConfig(d.t.Context(), conf)
	require.NoError(d.t, err)
	d.t.Cleanup(pool.Close)
	return pool
}

func (d *database) check() error {
	d.t.Helper()
	conn, err := d.pool.Acquire(d.t.Context())
	require.NoError(d.t, err)
	defer conn.Release()
	return cdc.Check(d.t.Context(), conn.Conn(), d.cfg)
}

// querier is a pool or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func (d *database) execute(sql string) { d.on(d.pool, sql) }

func (d *database) on(q querier, sql string, args ...any) {
	d.t.Helper()
	_, err := q.Exec(d.t.Context(), sql, args...)
	require.NoError(d.t, err, sql)
}

// insert runs an INSERT, whose only argument is a fresh id.
func (d *database) insert(on querier, kind cdc.Kind, sql string) row {
	d.t.Helper()
	r := row{kind, uuid.Must(uuid.NewV7())}
	d.on(on, sql, r.id)
	return r
}

// read reads until as many rows as wanted have come and their transaction has
// ended, and lets the server forget them.
func (d *database) read(rows int) []cdc.Item {
	d.t.Helper()
	items, err := d.readUntil(func(items []cdc.Item) bool { return len(items) == rows })
	require.NoError(d.t, err, "%d rows came", len(items))
	return items
}

// readUntil reads from the slot's own position to the end of a transaction with
// which enough has come, or to the end of the stream.
func (d *database) readUntil(enough func([]cdc.Item) bool) ([]cdc.Item, error) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 30*time.Second)
	defer cancel()
	r, err := cdc.Open(ctx, d.cfg)
	require.NoError(d.t, err)
	r.Resume(d.position(), d.position())
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(running) }()
	items, err := collect(ctx, r, enough)
	stop()
	<-ended
	require.NoError(d.t, r.Close(ctx))
	require.Eventually(d.t, func() bool { // the server learns of the end a moment later
		var active bool
		require.NoError(d.t, d.pool.QueryRow(ctx, `SELECT active FROM pg_replication_slots WHERE slot_name = $1`, d.cfg.Slot).Scan(&active))
		return !active
	}, 10*time.Second, 10*time.Millisecond)
	return items, err
}

func collect(ctx context.Context, r *cdc.Reader, enough func([]cdc.Item) bool) (items []cdc.Item, err error) {
	var batch []cdc.Item
	for {
		if batch, err = r.Next(ctx, batch); err != nil {
			return items, err
		}
		for _, it := range batch {
			switch it.Kind {
			case cdc.KindEvent, cdc.KindReplay, cdc.KindControl:
				items = append(items, it)
			case cdc.KindCommit:
				if enough(items) {
					r.Confirm(it.End)
					return items, nil
				}
			default:
			}
		}
	}
}

// position is where the slot stands.
func (d *database) position() pglogrepl.LSN {
	d.t.Helper()
	var at string
	require.NoError(d.t, d.pool.QueryRow(d.t.Context(), `SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1`, d.cfg.Slot).Scan(&at))
	position, err := pglogrepl.ParseLSN(at)
	require.NoError(d.t, err)
	return position
}

// rowsOf says which rows came.
func rowsOf(items []cdc.Item) []row {
	var out []row
	for _, it := range items {
		switch it.Kind {
		case cdc.KindReplay:
			out = append(out, row{it.Kind, it.Replay.ID})
		case cdc.KindControl:
			out = append(out, row{it.Kind, it.Control.ID})
		default:
			out = append(out, row{it.Kind, it.Row.ID})
		}
	}
	return out
}
