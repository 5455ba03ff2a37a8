//go:build e2e

package e2e

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/houserules"
	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/internal/process"
)

// cluster is a server with two databases that have the outbox, and the logins.
type cluster struct {
	server *pgserver.Server
	super  *pgx.Conn // in the database of the test
	words  map[string]string
}

func newCluster(t *testing.T, version string) *cluster {
	s, err := pgserver.Start(t.Context(), pgserver.Options{Version: version})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	c := &cluster{server: s, super: connectTo(t, s.DSN("postgres"))}
	run(t, c.super, "CREATE DATABASE here")
	run(t, c.super, "CREATE DATABASE there")
	c.super = connectTo(t, s.DSN("here"))
	c.ctl(t, "--side", "outbox", "--apply")
	outboxctl(t, s.DSN("here"), "migrate", "up", "--side", "outbox", "--relay", "orders")
	outboxctl(t, s.DSN("there"), "migrate", "roles", "--side", "outbox", "--prefix", "other", "--apply")
	outboxctl(t, s.DSN("there"), "migrate", "up", "--side", "outbox")
	for login, of := range map[string]string{
		writer: "onceward_writer", operator: "onceward_operator", maintainer: "onceward_maintainer", otherWriter: "other_writer", otherOperator: "other_operator",
	} {
		if login != of {
			run(t, c.super, "CREATE ROLE "+login+" LOGIN PASSWORD '"+loginPassword+"' IN ROLE "+of)
		}
	}
	run(t, c.super, "CREATE ROLE nobody LOGIN PASSWORD '"+loginPassword+"'")
	for _, role := range []string{relayRole, otherRelay, otherWriter, otherOperator} {
		run(t, c.super, "ALTER ROLE "+role+" LOGIN PASSWORD '"+loginPassword+"'")
	}
	run(t, c.super, "CREATE TABLE business (secret text)")
	c.words = map[string]string{"{leaf}": "onceward.outbox_" + time.Now().UTC().Format("20060102"), "{billing}": newID(t), "{shop}": newID(t)}
	run(t, c.super, "INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, 'billing', 't', 'a', 'e', 'secret'), ($2, 'shop', 't', 'a', 'e', 'own')",
		c.words["{billing}"], c.words["{shop}"])
	run(t, c.super, strings.Replace(stateOf, "'mine'", "'s'", 1))
	c.words["{gap}"] = newID(t)
	run(t, c.super, strings.ReplaceAll(aGap, "{id}", c.words["{gap}"]))
	for word, state := range map[string]string{"{waiting}": "open", "{discarded}": "discarded", "{ofreplay}": "discarded"} {
		c.words[word] = newID(t)
		run(t, c.super, `INSERT INTO onceward.dead_letters (slot, letter_id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, created_at, tx_id, seq, position,
			error_class, error, state, replay_of) VALUES ('s', $1, 'billing', 't', 'a', 'e', 'dead', 'c', now(), '5', 1, '0/1', 'c', 'e', $2, $3)`,
			c.words[word], state, map[string]*string{"{ofreplay}": new(c.words["{billing}"])}[word])
	}
	return c
}

// ctl runs outboxctl migrate roles as the superuser.
func (c *cluster) ctl(t *testing.T, args ...string) string {
	t.Helper()
	return outboxctl(t, c.server.DSN("here"), append([]string{"migrate", "roles"}, args...)...)
}

// bind binds the producer, which is there already and has rights by hand.
func (c *cluster) bind(t *testing.T) {
	t.Helper()
	run(t, c.super, "CREATE ROLE "+bound+" LOGIN PASSWORD '"+loginPassword+"'")
	run(t, c.super, "GRANT USAGE ON SCHEMA onceward TO "+bound+"; GRANT SELECT, INSERT ON onceward.outbox TO "+bound)
	require.Contains(t, c.ctl(t, "--producer", bound, "--namespace", "shop", "--apply"), "role shop writes and reads events of namespace shop only")
	c.ctl(t, "--producer", bound, "--namespace", "shop", "--apply") // once more
	c.ctl(t, "--side", "outbox", "--apply")
}

// untrusted takes the right to write messages into the log from everybody but the two that
// need it, as docs/operations.md says.
func (c *cluster) untrusted(t *testing.T, version string) {
	t.Helper()
	sql := documented(t, "messages")
	if version < "17" { // a last argument fewer, as the page says
		sql = strings.NewReplacer("bytea, boolean)", "bytea)", "text, text, boolean)", "text, text)").Replace(sql)
	}
	run(t, c.super, sql)
}

// documented returns the block of a page behind `<!-- test: name -->`.
func documented(t *testing.T, name string) string {
	t.Helper()
	blocks, err := houserules.Blocks("..")
	require.NoError(t, err)
	i := slices.IndexFunc(blocks, func(b houserules.Block) bool { return b.Test == name })
	require.GreaterOrEqual(t, i, 0, "no page has a block %q", name)
	return blocks[i].Text
}

// refused runs outboxctl migrate roles as the superuser, and returns why it failed.
func (c *cluster) refused(t *testing.T, args ...string) string {
	t.Helper()
	out, err := process.Run(t.Context(), process.Spec{
		Path: outboxctlBinary(t), Args: append([]string{"migrate", "roles"}, args...),
		Env: []string{"OUTBOXCTL_DSN=" + c.server.DSN("here"), "OUTBOXCTL_INSECURE=true"},
	})
	require.Error(t, err, out)
	return out
}

// as connects a principal.
func (c *cluster) as(t *testing.T, login string) *pgx.Conn {
	t.Helper()
	return connectTo(t, c.dsn(t, login))
}

func (c *cluster) dsn(t *testing.T, login string) string {
	t.Helper()
	u, err := url.Parse(c.server.DSN("here"))
	require.NoError(t, err)
	u.User = url.UserPassword(login, loginPassword)
	return u.String()
}

// everybody lets each principal try; other overrides what one may.
func (c *cluster) everybody(t *testing.T, when string, other map[string][]try) (tries int) {
	for who, list := range attempts {
		if o, ok := other[who]; ok {
			list = o
		}
		tries += len(list)
		t.Run(when+who, func(t *testing.T) {
			conn := c.as(t, who)
			for _, a := range list {
				c.tryOne(t, conn, who, a)
			}
		})
	}
	return tries
}

func (c *cluster) tryOne(t *testing.T, conn *pgx.Conn, who string, a try) {
	t.Helper()
	sql := strings.NewReplacer("{id}", newID(t), "{self}", who).Replace(a.sql)
	for word, value := range c.words {
		sql = strings.ReplaceAll(sql, word, value)
	}
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context())
	tag, err := last(conn.PgConn().Exec(t.Context(), sql).ReadAll())
	if a.want == "" {
		require.NoError(t, err, "%s: %s", who, sql)
		if a.rows != "" {
			require.Equal(t, a.rows, tag, "%s: %s", who, sql)
		}
		return
	}
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg, "%s may: %s", who, sql)
	require.Equal(t, a.want, pg.Code, "%s: %s: %s", who, sql, pg.Message)
}

func last(results []*pgconn.Result, err error) (string, error) {
	for _, r := range results {
		err = errors.Join(err, r.Err)
	}
	if err != nil || len(results) == 0 {
		return "", err
	}
	return results[len(results)-1].CommandTag.String(), nil
}

func newID(t *testing.T) string {
	t.Helper()
	id, err := uuid.NewV7()
	require.NoError(t, err)
	return id.String()
}

func connectTo(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
	return conn
}

func run(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	_, err := conn.Exec(t.Context(), sql, args...)
	require.NoError(t, err, sql)
}

func value[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, conn.QueryRow(t.Context(), sql, args...).Scan(&v), sql)
	return v
}
