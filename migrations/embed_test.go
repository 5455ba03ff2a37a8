package migrations

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/partition"
)

func TestParseSide(t *testing.T) {
	for _, side := range []Side{Outbox, Consumer} {
		got, err := ParseSide(string(side))
		require.NoError(t, err)
		require.Equal(t, side, got)
	}
	_, err := ParseSide("producer")
	require.ErrorContains(t, err, `side "producer": want outbox`)
}

func TestEmbeddedMigrationsAreWhole(t *testing.T) {
	for _, side := range []Side{Outbox, Consumer} {
		all, err := side.steps()
		require.NoError(t, err)
		require.NotEmpty(t, all)
		for i, s := range all {
			require.EqualValues(t, i+1, s.version, "versions have no holes: %s", s.name)
			require.Contains(t, s.up, "onceward.")
			require.NotEmpty(t, s.down)
			require.NotContains(t, s.down, "CASCADE", "down drops only what it made: %s", s.name)
			require.NotContains(t, strings.ToUpper(s.up), "PARTITION OF", "partitions are not made by versioned migrations: %s", s.name)
		}
		latest, err := side.Latest()
		require.NoError(t, err)
		require.EqualValues(t, len(all), latest)
	}
}

func TestSplitSections(t *testing.T) {
	up, down, ok := splitSections("-- +goose Up\nCREATE;\n\n-- +goose Down\nDROP;\n")
	require.True(t, ok)
	require.Equal(t, "CREATE;", up)
	require.Equal(t, "DROP;", down)
	for _, bad := range []string{"", "CREATE;", "-- +goose Up\nCREATE;", "-- +goose Down\nDROP;\n"} {
		_, _, ok := splitSections(bad)
		require.False(t, ok, "%q", bad)
	}
}

func TestNewRefuses(t *testing.T) {
	pool := new(pgxpool.Pool)
	for name, tc := range map[string]struct {
		cfg  Config
		want string
	}{
		"no pool":              {Config{Side: Outbox}, "Pool is not set"},
		"no side":              {Config{Pool: pool}, `side ""`},
		"relay of a consumer":  {Config{Pool: pool, Side: Consumer, Relay: "orders"}, `Relay "orders": only the outbox side`},
		"upper case":           {Config{Pool: pool, Side: Outbox, Relay: "Orders"}, `relay name "Orders"`},
		"quote":                {Config{Pool: pool, Side: Outbox, Relay: `o"; DROP`}, "want 1 to 54"},
		"too long for a slot":  {Config{Pool: pool, Side: Outbox, Relay: strings.Repeat("a", 55)}, "want 1 to 54"},
		"negative LockTimeout": {Config{Pool: pool, Side: Outbox, LockTimeout: -1}, "LockTimeout -1ns"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(tc.cfg)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestNewDefaults(t *testing.T) {
	m, err := New(Config{Pool: new(pgxpool.Pool), Side: Outbox, Relay: strings.Repeat("a", 54)})
	require.NoError(t, err)
	require.Equal(t, time.Minute, m.cfg.LockTimeout)
	require.NotNil(t, m.cfg.Now)
	require.Len(t, PublicationName(m.cfg.Relay), 63, "the longest name fits exactly")
}

func TestSpan(t *testing.T) {
	now := time.Date(2026, 11, 21, 23, 59, 0, 0, time.UTC)
	today := partition.Day(now)
	m := &Migrator{cfg: Config{Side: Outbox, Now: func() time.Time { return now }}}
	require.Equal(t, partition.Span{First: today.AddDate(0, 0, -daysBack), Last: today.AddDate(0, 0, daysAhead), Today: today}, m.span())
	m.cfg.Side = Consumer
	require.Equal(t, partition.Span{First: today.AddDate(0, 0, -daysBack), Last: today.AddDate(0, 0, claimsDaysAhead)}, m.span())
}

func TestPublicationFaults(t *testing.T) {
	good := publication{Name: "onceward_orders", Publish: []string{"insert"}, ViaRoot: true, Tables: publishedTables}
	require.NoError(t, good.check())

	for name, tc := range map[string]struct {
		change func(*publication)
		want   string
		cure   string
	}{
		"updates":    {func(p *publication) { p.Publish = []string{"insert", "update"} }, "it publishes [insert, update]", "SET (publish = 'insert'"},
		"leaf":       {func(p *publication) { p.ViaRoot = false }, "publish_via_partition_root is off", "publish_via_partition_root = true"},
		"one table":  {func(p *publication) { p.Tables = p.Tables[:1] }, "it holds the tables [onceward.controls]", "SET TABLE onceward.outbox"},
		"row filter": {func(p *publication) { p.Tables = []string{"onceward.outbox WHERE …"} }, "onceward.outbox WHERE …", "SET TABLE onceward.outbox"},
		"schema":     {func(p *publication) { p.Schemas = []string{"public"} }, "it holds the schemas public", "SET TABLE onceward.outbox"},
		"all tables": {func(p *publication) { p.AllTables, p.Tables = true, nil }, "it is FOR ALL TABLES", `DROP PUBLICATION "onceward_orders"`},
	} {
		t.Run(name, func(t *testing.T) {
			p := good
			tc.change(&p)
			err := p.check()
			require.ErrorIs(t, err, ErrPublication)
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, tc.cure)
			drop, keep := droppable([]publication{p, good})
			require.Equal(t, []string{"onceward_orders"}, drop)
			require.Len(t, keep, 1)
		})
	}
}
