//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/internal/kafkaproxy"
)

// Moves of TestAccount after which somebody is not where, or who, the relays take him for:
// each has an end at which they have said so.

// endsAfter ends a move of which nothing is left in the database.
func (a *accounting) endsAfter(lasting time.Duration, do func() bool) {
	a.nemesis.undos = append(a.nemesis.undos, undo{time.Now().Add(lasting), do})
}

// violated notes that what a program says is not so.
func (a *accounting) violated(format string, args ...any) {
	a.found = append(a.found, violation{accountTrue, fmt.Sprintf(format, args...)})
}

const pprof = "ONCEWARD_ADMIN_PPROF="

// toggleProfiles has a relay end gracefully and begin with admin.pprof on, or off.
func (a *accounting) toggleProfiles(s step) bool {
	r := a.nemesis.running(s)
	if r == nil {
		return false
	}
	r.env = append(slices.DeleteFunc(r.env, func(s string) bool { return strings.HasPrefix(s, pprof) }), fmt.Sprint(pprof, s.up))
	return a.nemesis.terminateRelay(s)
}

// profiled compares at a quiet moment what the relays serve with what they were told.
func (a *accounting) profiled() {
	for _, r := range a.relays {
		want, got := http.StatusNotFound, 0
		if slices.Contains(r.env, pprof+"true") {
			want = http.StatusOK
		}
		eventually(a.t, "a relay serves its pages", 30*time.Second, func() bool {
			answer, err := http.Get("http://" + adminAddress(a.t, r) + "/debug/pprof/heap")
			if err != nil {
				return false // it has just begun
			}
			got = answer.StatusCode
			return answer.Body.Close() == nil
		})
		if got != want {
			a.violated("/debug/pprof/ answers %d, with %v", got, r.env)
		}
	}
}

const maintenanceFile = "ONCEWARD_POSTGRES_MAINTENANCE_DSN_FILE="

// leadMaintenanceElsewhere gives a relay a login of maintenance that leads to another
// database, until it has said so, and nothing was made there; or its server is gone.
func (a *accounting) leadMaintenanceElsewhere(s step) bool {
	r := a.nemesis.running(s)
	if r == nil || slices.ContainsFunc(r.env, func(s string) bool { return strings.HasPrefix(s, maintenanceFile) }) {
		return false
	}
	dsn, err := url.Parse(a.dsn(maintainerLogin))
	require.NoError(a.t, err)
	dsn.Path = "/postgres"
	path := filepath.Join(a.t.TempDir(), "maintenance.dsn")
	require.NoError(a.t, os.WriteFile(path, []byte(dsn.String()), 0o600))
	r.env = append(r.env, maintenanceFile+path)
	server, said := a.server, strings.Count(r.log(), "partitions would be made and dropped there")
	if !a.nemesis.terminateRelay(s) {
		return false
	}
	a.endsAfter(s.lasting+time.Second, func() bool {
		if a.server == server && strings.Count(r.log(), "partitions would be made and dropped there") == said || r.process == nil {
			return false
		}
		r.env = slices.DeleteFunc(r.env, func(s string) bool { return s == maintenanceFile+path })
		p := r.process
		require.NoError(a.t, p.Signal(syscall.SIGTERM))
		r.process = nil
		a.endsAfter(0, a.nemesis.restartWhenEnded(r, p))
		return true
	})
	return true
}

// copyBeside makes a copy of the database on its server, and lets a relay of the same name
// run there until it has halted: the slot is the original's, or there is none, unless
// something of the copy itself is missing before that. It publishes nothing.
func (a *accounting) copyBeside(s step) bool {
	database := a.name + "_copy"
	if !a.answers() || !a.copyTo(database) {
		return false
	}
	r := a.staying(database, a.name, `routes: [{topic: "{namespace}.{aggregate_type}"}]`)
	r.env = append(r.env, "ONCEWARD_POSTGRES_SLOT_CREATE=never", "ONCEWARD_KAFKA_MODE="+a.mode)
	r.start()
	beside := r.process
	a.endsAfter(s.lasting+time.Second, func() bool {
		if !r.logs("halted: an operator is needed") && !r.logs("slot taken") {
			return false
		}
		_ = beside.Signal(syscall.SIGTERM)
		select {
		case <-beside.Done():
			r.process = nil
		default:
			return false
		}
		if r.logs("slot taken") {
			a.violated("a relay of a copy of the database took the slot: %s", r.log())
		}
		return true
	})
	a.undoes(s.lasting+time.Second, func() bool {
		return r.process == nil && a.nemesis.sql("DROP DATABASE IF EXISTS "+database+" WITH (FORCE)")
	})
	return true
}

// copyTo copies the database while nobody is in it; false: somebody was.
func (a *accounting) copyTo(database string) bool {
	a.load.pause()
	defer a.load.resume()
	a.postgres.Refuse(true)
	defer a.postgres.Refuse(false)
	a.postgres.Cut()
	a.pool.Reset()
	a.app.Reset()
	ctx, cancel := context.WithTimeout(a.t.Context(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, a.server.DSN("postgres"))
	if err != nil {
		return false
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for range 20 { // an open transaction of a move ends with its session
		if _, err = conn.Exec(ctx, `SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE datname = $1`, a.name); err == nil {
			_, err = conn.Exec(ctx, "CREATE DATABASE "+database+" TEMPLATE "+a.name)
		}
		if err == nil {
			return true
		}
	}
	return false
}

// takeSlot lets a session that is no relay's hold the slot, until a relay has named it, or is halted:
// what the relay waits for then may wait for the slot.
func (a *accounting) takeSlot(s step) bool {
	conf, err := pgconn.ParseConfig(a.server.DSN(a.name))
	require.NoError(a.t, err)
	conf.RuntimeParams["replication"], conf.RuntimeParams["application_name"], conf.RuntimeParams["wal_sender_timeout"] = "database", "pg_recvlogical", "0"
	a.nemesis.killRelays(s)
	ctx, cancel := context.WithTimeout(a.t.Context(), 5*time.Second)
	defer cancel()
	stranger, err := pgconn.ConnectConfig(ctx, conf)
	if err != nil {
		return false
	}
	args := []string{"proto_version '1'", "publication_names '" + a.publication() + "'"}
	for range 20 { // the walsender of a relay that was killed holds the slot for a moment
		if err = pglogrepl.StartReplication(ctx, stranger, a.slot(), 0, pglogrepl.StartReplicationOptions{PluginArgs: args}); err == nil {
			break
		}
	}
	if err != nil {
		_ = stranger.Close(context.WithoutCancel(ctx))
		return false
	}
	a.endsAfter(s.lasting, func() bool {
		holds := a.holds(`SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND active_pid = $2)`, a.slot(), stranger.PID())
		if holds && !a.holds(`SELECT EXISTS (SELECT FROM onceward.relay_health WHERE slot = $1 AND (state = 'halted' OR strpos(waits::text, 'which is no process of this relay') > 0))`, a.slot()) {
			return false // whoever lives says it in a moment
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.t.Context()), time.Second)
		defer cancel()
		_ = stranger.Close(ctx)
		return true
	})
	return true
}

// stripRole takes from the relay's role what it needs to be there at all, for a while.
// Meanwhile nobody is told that all is well.
func (a *accounting) stripRole(s step) bool {
	strip := [][2]string{
		{"ALTER ROLE " + relayLogin + " NOLOGIN", "ALTER ROLE " + relayLogin + " LOGIN"},
		{"ALTER ROLE " + relayLogin + " NOREPLICATION", "ALTER ROLE " + relayLogin + " REPLICATION"},
		{"REVOKE USAGE ON SCHEMA onceward FROM " + relayLogin, "GRANT USAGE ON SCHEMA onceward TO " + relayLogin},
	}[s.target%3]
	if !a.nemesis.sql(strip[0]) {
		return false
	}
	_ = a.nemesis.sql(`SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE usename = '` + relayLogin + `'`) // or they notice later
	a.endsAfter(s.lasting, func() bool {
		before := a.streams()
		out, code := a.ctl("status")
		if !before && !a.streams() && code == 0 {
			a.violated("nobody reads from the slot, and status says that all is well: %s", out)
		}
		return true
	})
	a.undoes(s.lasting, func() bool { return a.nemesis.sql(strip[1]) })
	return true
}

// hangForOne lets Kafka answer nothing to one of the relays, and everything to the other.
func (a *accounting) hangForOne(s step) bool {
	client := a.client(fmt.Sprintf("relay-%d", s.target%uint64(len(a.relays))))
	lasting := s.lasting
	if s.up {
		lasting *= 4 // beyond what a relay waits before it says so
	}
	for _, key := range append([]kafkaproxy.Key{kafkaproxy.Metadata, kafkaproxy.FindCoordinator, kafkaproxy.ApiVersions}, keys...) {
		a.nemesis.later(lasting, a.ground.network.Inject(kafkaproxy.Fault{Key: key, Action: kafkaproxy.Hold, Client: client}).Release)
	}
	return true
}

// changeSetting gives the relay's role, or all in the database, another setting of what text is or of what is
// read, for a while: the relay has its own, and so has outboxctl.
func (a *accounting) changeSetting(s step) bool {
	setting := [][2]string{
		{"client_encoding", "latin1"}, {"standard_conforming_strings", "off"}, {"bytea_output", "escape"},
		{"default_transaction_isolation", "serializable"}, {"statement_timeout", "1"}, {"lock_timeout", "1"},
	}[s.target%6]
	whose := "ROLE " + relayLogin + " IN DATABASE " + a.name
	if s.up && s.target%6 < 3 { // an outboxctl that is serializable, or has no time, may be refused beside a relay
		whose = "DATABASE " + a.name
	}
	if !a.nemesis.sql("ALTER " + whose + " SET " + setting[0] + " = " + setting[1]) {
		return false
	}
	a.undoes(s.lasting, func() bool { return a.nemesis.sql("ALTER " + whose + " RESET " + setting[0]) })
	return a.nemesis.sql(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '` + relayLogin + `'`)
}

// limitProducer has Kafka take from a relay no more than a part of what is written, for a while.
func (a *accounting) limitProducer(s step) bool {
	client := a.client(fmt.Sprintf("relay-%d", s.target%uint64(len(a.relays))))
	limit := func(remove bool) bool {
		entry := kmsg.NewAlterClientQuotasRequestEntry()
		entry.Entity = []kmsg.AlterClientQuotasRequestEntryEntity{{Type: "client-id", Name: &client}}
		entry.Ops = []kmsg.AlterClientQuotasRequestEntryOp{{Key: "producer_byte_rate", Value: 100_000, Remove: remove}}
		request := kmsg.NewAlterClientQuotasRequest()
		request.Entries = append(request.Entries, entry)
		ctx, cancel := context.WithTimeout(a.t.Context(), 5*time.Second)
		defer cancel()
		answer, err := request.RequestWith(ctx, a.kafka)
		return err == nil && len(answer.Entries) == 1 && answer.Entries[0].ErrorCode == 0
	}
	a.endsAfter(s.lasting, func() bool { return limit(true) }) // also where no answer came
	return limit(false)
}
