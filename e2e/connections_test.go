//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaproxy"
)

// TestNetworkToPostgres: the way to the server is cut, refuses, goes quiet in
// either direction, and is slow and sliced. The relay comes back by itself.
func TestNetworkToPostgres(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, versions[0])
	w.execute(`ALTER DATABASE ` + w.name + ` SET wal_sender_timeout = '1s'`) // the relay's limit is twice that
	network := kafkaproxy.New()
	t.Cleanup(func() { require.NoError(t, network.Close()) })
	direct := "127.0.0.1:" + portOf(w)
	link, err := network.AddPlain(t.Context(), direct)
	require.NoError(t, err)
	w.install()
	w.createTopic(nil)
	w.execute(oneAggregate + `; GRANT ALL ON counters, business TO PUBLIC`)
	path := w.config(`admin: {listen: "off"}`, "checkpoint_interval: 50ms")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(string(text), direct, link.Addr())), 0o600))
	r := w.newRelay(path, "")
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	caughtUp(t, w, r)
	for _, fault := range []struct {
		name string
		on   func()
	}{
		{"cut", func() { link.Cut() }},
		{"refused", func() { link.Refuse(true); link.Cut() }},
		{"nothing comes from the server", func() { link.Shape(kafkaproxy.Down, kafkaproxy.Traffic{Stalled: true}) }},
		{"nothing reaches the server", func() { link.Shape(kafkaproxy.Up, kafkaproxy.Traffic{Stalled: true}) }},
	} {
		ended, streamed := strings.Count(r.log(), "session ended"), sessions(r)
		writeOne(t, w)
		fault.on()
		writeOne(t, w)
		began := time.Now()
		eventually(t, fault.name+": the relay notices", time.Minute, func() bool { return strings.Count(r.log(), "session ended") > ended })
		noticed := time.Since(began)
		link.Heal()
		began = time.Now()
		eventually(t, fault.name+": and comes back", time.Minute, func() bool { return sessions(r) > streamed })
		caughtUp(t, w, r)
		t.Logf("%s: noticed after %s, back %s after it was healed", fault.name, noticed.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	}
	streamed := sessions(r)
	for _, d := range []kafkaproxy.Direction{kafkaproxy.Up, kafkaproxy.Down} {
		link.Shape(d, kafkaproxy.Traffic{Delay: 20 * time.Millisecond, Slice: 7})
	}
	for range 20 {
		writeOne(t, w)
	}
	caughtUp(t, w, r)
	require.Equal(t, streamed, sessions(r), "slow is not dead")
	link.Heal()
	r.stop()
	verifyAll(t, w, nil)
}

// portOf returns the port of the environment's server.
func portOf(w *environment) string {
	_, port, _ := strings.Cut(w.pool.Config().ConnConfig.ConnString(), "@127.0.0.1:")
	port, _, _ = strings.Cut(port, "/")
	return port
}

// TestThePasswordChanges: the DSN is read from its file at every connect, so a new
// password needs no restart of the relay.
func TestThePasswordChanges(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, versions[0])
	w.install()
	w.createTopic(nil)
	w.execute(oneAggregate + `; GRANT ALL ON counters, business TO PUBLIC`)
	d := newDefectiveStart(t, w)
	defer d.dropRole(t)
	file := filepath.Join(t.TempDir(), "dsn")
	require.NoError(t, os.WriteFile(file, []byte(d.dsn), 0o600))
	path := d.config(t, "")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	text = []byte(strings.ReplaceAll(string(text), `dsn: "`+d.dsn+`"`, `dsn_file: "`+file+`"`))
	require.NoError(t, os.WriteFile(path, text, 0o600))
	r := w.newRelay(path, "")
	r.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	d.sql(t, `ALTER ROLE {role} PASSWORD 'changed'`)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(d.dsn, ":secret@", ":changed@", 1)), 0o600))
	d.sql(t, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()`)
	eventually(t, "the relay streams again", 30*time.Second, func() bool { return sessions(r) == 2 })
	caughtUp(t, w, r)
	d.sql(t, `ALTER ROLE {role} PASSWORD 'changed again'`, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()`)
	require.Contains(t, r.wait(30*time.Second), "LOGIN_REFUSED", "a wrong one is not tried for ever")
}

// TestEncodingIsRefused: a database in another encoding than UTF-8 can hold bytes
// that would stop the stream for ever.
func TestEncodingIsRefused(t *testing.T) {
	t.Parallel()
	w := newEnvironment(t, versions[0])
	other := w.name + "_ascii"
	require.NoError(t, w.superuser(t.Context(), `CREATE DATABASE `+other+` TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'`))
	defer func() { require.NoError(t, w.superuser(t.Context(), `DROP DATABASE `+other)) }()
	path := w.config(`admin: {listen: "off"}`)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(string(text), "/"+w.name+"?", "/"+other+"?")), 0o600))
	r := w.newRelay(path, "")
	r.start()
	require.Contains(t, r.wait(30*time.Second), "ENCODING: ")
}
