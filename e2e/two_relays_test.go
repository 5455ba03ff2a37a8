//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/process"
)

// TestTwoRelaysOneOutbox: two relays of two names on one outbox, by different
// routes, have an account each. What one of them owes is pending, and retention
// waits for it by name until it is retired. Two processes of one name that are
// configured differently are told so, with what differs.
func TestTwoRelaysOneOutbox(t *testing.T) {
	t.Parallel()
	for i, mode := range []string{"idempotent", "exactly-once"} {
		t.Run(mode, func(t *testing.T) { twoRelays(t, mode, versions[i%len(versions)]) })
	}
	t.Run("one name", otherSettings)
}

// pair is two relays of one outbox.
type pair struct {
	*environment
	t             *testing.T
	first, second *relayProcess
	other         string // the second one's name; its topics begin with it
}

func twoRelays(t *testing.T, mode, version string) {
	w := settled(t, version)
	p := &pair{environment: w, t: t, other: w.name + "b"}
	outboxctl(t, w.dsn(maintainerLogin), "migrate", "up", "--side", "outbox", "--relay", p.other)
	config := w.config("checkpoint_interval: 50ms", `admin: {listen: "off"}`)
	p.first = w.newRelay(config, "").inMode(mode)
	p.second = w.newRelay(rewritten(t, config, "name: "+w.name, "name: "+p.other, `topic: "{`, `topic: "`+p.other+`.{`), "").inMode(mode)
	for _, r := range []*relayProcess{p.first, p.second} {
		r.env = append(r.env, "ONCEWARD_KAFKA_TRANSACTION_TIMEOUT=3s") // a killed relay holds readers back as long
		r.start()
		eventually(t, "the relay streams", 30*time.Second, func() bool { return r.logs("slot taken") })
	}
	load := produce(w, 2)
	load.atLeast(100)
	load.stop()
	p.settle(w.name, p.other)
	all := scalar[int](w, `SELECT count(*) FROM onceward.outbox`)
	for _, topic := range []string{w.topic(), p.other + "." + w.topic()} {
		require.Len(t, w.committed(topic), all, topic)
	}
	require.Empty(t, p.list("pending"))

	p.second.kill()
	old := &oldDays{t: t, w: w, conn: w.connect(maintainerLogin)}
	old.open(9)
	var owed []string
	require.NoError(t, pgx.BeginFunc(t.Context(), w.app, func(tx pgx.Tx) error {
		ids, err := old.plain(t.Context(), tx)
		for _, id := range ids {
			owed = append(owed, w.name+":"+id.String())
		}
		return err
	}))
	p.settle(w.name)
	require.Empty(t, p.list("pending", "--relay", w.name))
	require.ElementsMatch(t, owed, p.list("pending", "--relay", p.other))
	require.ElementsMatch(t, owed, p.list("pending"), "some relay owes them")
	require.Len(t, p.list("published", "--relay", w.name), all+len(owed))
	require.Len(t, p.list("published"), all)
	require.Contains(t, outboxctlAny(t, w.dsn(operatorLogin), "show", owed[0]), p.other)

	p.kept(old.leaf)
	require.Contains(t, p.maintain(), "waits for relay "+p.other)
	p.kept(old.leaf)
	p.retire()
	require.Empty(t, p.list("pending"))
	eventually(t, "retention goes on", 30*time.Second, func() bool {
		p.maintain()
		return !scalar[bool](w, `SELECT to_regclass('onceward.' || $1) IS NOT NULL`, old.leaf)
	})
	writeOne(t, w)
	p.settle(w.name)
	p.first.stop()
	require.Len(t, w.committed(w.topic()), all+len(owed)+1)
	require.Len(t, w.committed(p.other+"."+w.topic()), all)
	t.Logf("PostgreSQL %s: %d events by two relays; %d that one owed were pending until it was retired", version, all, len(owed))
}

// rewritten is a configuration with other words, in a file of its own.
func rewritten(t *testing.T, config string, words ...string) string {
	t.Helper()
	text, err := os.ReadFile(config)
	require.NoError(t, err)
	path := config + "." + uuid.NewString() + ".yaml"
	require.NoError(t, os.WriteFile(path, []byte(strings.NewReplacer(words...).Replace(string(text))), 0o600))
	return path
}

// settle waits until relays have published everything.
func (p *pair) settle(relays ...string) {
	p.t.Helper()
	for _, name := range relays {
		eventually(p.t, name+" owes nothing", time.Minute, func() bool {
			return scalar[int](p.environment, `SELECT count(*) FROM onceward.outbox o, onceward.account(o.id, o.tx_id, o.seq) a WHERE a.relay = $1 AND a.state <> 'published'`, name) == 0
		})
	}
}

func (p *pair) list(state string, more ...string) []string {
	p.t.Helper()
	var l listed
	out := outboxctl(p.t, p.dsn(operatorLogin), append([]string{"list", "--state", state, "--output", "json", "--limit", strconv.Itoa(mostListed)}, more...)...)
	require.NoError(p.t, json.Unmarshal([]byte(out), &l), out)
	return keysOf(l)
}

func (p *pair) maintain() string {
	p.t.Helper()
	return outboxctlAny(p.t, p.dsn(maintainerLogin), "partitions", "maintain", "--keep", "1")
}

func (p *pair) kept(leaf string) {
	p.t.Helper()
	p.maintain()
	require.True(p.t, scalar[bool](p.environment, `SELECT to_regclass('onceward.' || $1) IS NOT NULL`, leaf), "retention waits")
}

// retire forgets the second relay, which a slot that exists prevents.
func (p *pair) retire() {
	p.t.Helper()
	out, err := process.Run(p.t.Context(), process.Spec{
		Path: outboxctlBinary(p.t), Args: []string{"retire", "--relay", p.other, "--reason", "gone", "--yes"},
		Env: []string{"OUTBOXCTL_DSN=" + p.dsn(operatorLogin), "OUTBOXCTL_INSECURE=true"},
	})
	var exit *exec.ExitError
	require.ErrorAs(p.t, err, &exit, out)
	require.Contains(p.t, out, "exists: stop the relay for good")
	eventually(p.t, "the slot is free and dropped", 10*time.Second, func() bool {
		_, err := p.pool.Exec(p.t.Context(), `SELECT pg_drop_replication_slot($1)`, "onceward_"+p.other)
		return err == nil
	})
	outboxctl(p.t, p.dsn(operatorLogin), "retire", "--relay", p.other, "--reason", "gone", "--yes")
	require.Zero(p.t, scalar[int](p.environment, `SELECT count(*) FROM onceward.kafka_topics WHERE slot = $1`, "onceward_"+p.other))
}

// otherSettings: a standby of the same name with another mode and other routes.
func otherSettings(t *testing.T) {
	w := settled(t, versions[0])
	config := w.config(`admin: {listen: "127.0.0.1:0"}`)
	owner := w.newRelay(config, "")
	owner.start()
	eventually(t, "the relay streams", 30*time.Second, func() bool { return owner.logs("slot taken") })
	same := w.newRelay(config, "")
	same.start()
	other := w.newRelay(rewritten(t, config, `topic: "{`, `topic: "other.{`), "").inMode("exactly-once")
	other.start()
	eventually(t, "the standby says what differs", 30*time.Second, func() bool { return waitsFor(t, other, "settings") != nil })
	wait := waitsFor(t, other, "settings")
	require.Contains(t, wait.Detail, "kafka.mode is idempotent there and exactly-once here")
	require.Contains(t, wait.Detail, "the routes have hash "+scalar[string](w, `SELECT routes FROM onceward.relay_state`)+" there")
	eventually(t, "its log warns", 30*time.Second, func() bool { return other.logs("configured differently") })
	require.Nil(t, waitsFor(t, same, "settings"))
	eventually(t, "status says it", 30*time.Second, func() bool {
		code, out := statusOf(t, w)
		return code == 3 && strings.Contains(out, "not configured as the process that holds the slot") && strings.Contains(out, "kafka.mode is idempotent there")
	})
	_, out := checked(t, other)
	require.Regexp(t, `warning +mode and routes +SETTINGS_CHANGED: not those of the last session`, out)
	// Which of the standbys leads then is left to chance: the wrong one alone is left.
	same.stop()
	owner.stop()
	eventually(t, "the standby takes over", 30*time.Second, func() bool { return other.logs("slot taken") })
	require.Contains(t, other.log(), "the routes are not those of the session before")
	require.Nil(t, waitsFor(t, other, "settings"))
	other.stop()
}
