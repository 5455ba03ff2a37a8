//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

// hostileMoves is what is done among the traps when something has gone wrong.
type hostileMoves struct {
	*hostile
	relay *relayProcess
	begun bool // it has a log
}

// moves are a held route and its release, gaps and their decisions, a partition that
// was filled before, a bound producer, another cluster at either end, and a relay
// that is given up. The relay that it leaves is forgotten.
func (h *hostile) moves() {
	config := h.config(`admin: {listen: "off"}`, "checkpoint_interval: 50ms", "gap: ask")
	m := &hostileMoves{hostile: h, relay: h.newRelay(config, "").inMode("exactly-once")}
	m.relay.env = append(m.relay.env, "ONCEWARD_TOPICS_CREATE=false")
	m.streams()
	m.held()
	m.gap("repair")
	m.gap("accept")
	m.filled()
	m.bound()
	m.adopted()
	m.otherKafka()
	m.relay.stop()
	loseSlot(h.t, h.environment)
	h.ctl(h.dsn(operatorLogin), "retire", "--relay", h.name, "--reason", "r", "--yes")
	require.Zero(h.t, scalar[int](h.environment, `SELECT count(*) FROM onceward.relay_state`))
}

// streams starts the relay and waits until it has the slot.
func (m *hostileMoves) streams() {
	m.t.Helper()
	before := 0
	if m.begun {
		before = sessions(m.relay)
	}
	m.begun = true
	m.relay.start()
	eventually(m.t, "the relay streams", time.Minute, func() bool { return sessions(m.relay) > before })
}

// stops starts the relay, which ends by itself and says why.
func (m *hostileMoves) stops(code string) {
	m.t.Helper()
	m.relay.start()
	require.Contains(m.t, m.relay.wait(time.Minute), code+": ")
}

// event commits one as the producer does.
func (m *hostileMoves) event(kind string) outbox.Event {
	m.t.Helper()
	key, err := outbox.NewKey(m.name)
	require.NoError(m.t, err)
	ev := outbox.Event{Key: key, AggregateType: kind, AggregateID: "a", Type: "OrderChanged", Payload: []byte(`{}`)}
	require.NoError(m.t, pgx.BeginFunc(m.t.Context(), m.app, func(tx pgx.Tx) error {
		_, err := outbox.Enqueue(m.t.Context(), tx, ev)
		return err
	}))
	return ev
}

// look gives commands that read, as the operator and as the superuser.
func (m *hostileMoves) look(commands ...[]string) {
	m.t.Helper()
	for _, dsn := range []string{m.dsn(operatorLogin), m.server.DSN(m.name)} {
		for _, args := range commands {
			m.ctl(dsn, args...)
		}
	}
}

func (m *hostileMoves) nothingOwed() {
	m.t.Helper()
	eventually(m.t, "nothing is pending", time.Minute, func() bool { return owed(m.environment) == 0 })
}

// held lets two routes be held, gives one event up, and releases the other.
func (m *hostileMoves) held() {
	typo, late := m.event("typo"), m.event("late")
	waits := func(n int) {
		m.t.Helper()
		eventually(m.t, fmt.Sprint(n, " wait"), time.Minute, func() bool { return scalar[int](m.environment, `SELECT count(*) FROM onceward.waiting`) == n })
	}
	waits(2)
	m.look([]string{"status"}, []string{"list", "--state", "waiting"}, []string{"show", late.Key.String()})
	m.ctl(m.dsn(operatorLogin), "skip", typo.Key.String(), "--reason", "r", "--yes")
	waits(1)
	m.look([]string{"dead", "show", typo.Key.String()})
	(&replays{environment: m.environment}).makeTopic(m.name+".late", nil)
	waits(0)
	m.nothingOwed()
}

// gap has an event pass the relay by, and decides about it; one that was given up is
// repaired after all.
func (m *hostileMoves) gap(decision string) {
	m.relay.stop()
	ev := m.event("order")
	loseSlot(m.t, m.environment)
	m.stops("SLOT_MISSING")
	gap := m.openGap()
	m.look([]string{"gap", "list"}, []string{"gap", "list", "--all"}, []string{"gap", "show", gap}, []string{"list", "--state", "gap"}, []string{"show", ev.Key.String()}, []string{"status"})
	decide := func(decision string) { m.ctl(m.dsn(operatorLogin), "gap", decision, gap, "--reason", "r", "--yes") }
	decide(decision)
	m.streams()
	if decision == "accept" {
		m.look([]string{"list", "--state", "given-up"})
		decide("repair")
	}
	eventually(m.t, "it is repaired", time.Minute, func() bool {
		return scalar[string](m.environment, `SELECT state FROM onceward.gaps WHERE gap_id = $1::uuid`, gap) == "repaired"
	})
	m.nothingOwed()
	require.Equal(m.t, "published", account(m.t, m.environment)[ev.Key.String()])
}

func (m *hostileMoves) openGap() string {
	m.t.Helper()
	return scalar[string](m.environment, `SELECT gap_id::text FROM onceward.gaps WHERE state = 'open'`)
}

// decided repairs the gap that is open, if there is one, and lets the relay go on.
func (m *hostileMoves) decided(code string) {
	m.t.Helper()
	m.stops(code)
	m.ctl(m.dsn(operatorLogin), "gap", "repair", m.openGap(), "--reason", "r", "--yes")
	m.streams()
	m.nothingOwed()
}

// filled attaches a partition that held a row.
func (m *hostileMoves) filled() {
	f := newFilledLeaf(m.t, m.environment, 20)
	fill, key := f.fill()
	m.execute(f.create() + "; " + fill + "; " + f.attach())
	require.Contains(m.t, m.relay.wait(time.Minute), "PARTITION_FILLED: ")
	m.ctl(m.dsn(maintainerLogin), "partitions", "adopt", f.name, "--reason", "r", "--yes")
	m.decided("PARTITION_FILLED")
	require.Equal(m.t, "published", account(m.t, m.environment)[key])
}

// bound has a producer that is bound to the namespace write, and be refused another.
func (m *hostileMoves) bound() {
	t, role, dba := m.t, fmt.Sprintf("hostile_bound_%d", os.Getpid()), m.server.DSN(m.name)
	roles := func(args ...string) {
		t.Helper()
		shared.roles.Lock()
		defer shared.roles.Unlock()
		m.ctl(dba, append([]string{"migrate", "roles", "--producer", role, "--apply"}, args...)...)
	}
	roles("--namespace", m.name)
	m.execute("ALTER ROLE " + role + " LOGIN PASSWORD '" + loginPassword + "'")
	general := m.app
	m.app = m.as(role)
	ev := m.event("order")
	var word string
	require.NoError(t, m.app.QueryRow(t.Context(), `SELECT onceward.enqueue($1, 'order', 'a', 'OrderChanged', '{}')`, ev.Key.String()).Scan(&word))
	require.Equal(t, "duplicate", word)
	other, err := outbox.NewKey("elsewhere")
	require.NoError(t, err)
	require.ErrorContains(t, m.app.QueryRow(t.Context(), `SELECT onceward.enqueue($1, 'order', 'a', 'OrderChanged', '{}')`, other.String()).Scan(&word), "row-level security")
	m.app.Close()
	m.app = general
	m.nothingOwed()
	m.event("order")
	m.nothingOwed()
	m.look([]string{"list", "--state", "pending"}, []string{"status"})
	roles("--remove")
	m.execute("DROP OWNED BY " + role + "; DROP ROLE " + role)
}

// adopted takes the database for another one, by a copy and by a dump.
func (m *hostileMoves) adopted() {
	for _, by := range []string{"copy", "dump"} {
		m.relay.stop()
		m.execute(`UPDATE onceward.relay_state SET system_identifier = '1'`)
		if by == "dump" {
			loseSlot(m.t, m.environment)
		}
		m.stops("OTHER_SYSTEM")
		m.ctl(m.dsn(maintainerLogin), "adopt", "--by", by, "--reason", "r", "--yes")
		if by == "copy" {
			m.streams()
			continue
		}
		m.decided("SLOT_MISSING")
	}
}

// otherKafka takes the relay's Kafka for another one.
func (m *hostileMoves) otherKafka() {
	adopt := func(word, cluster string) {
		m.t.Helper()
		m.relay.stop()
		m.ctl(m.dsn(operatorLogin), "adopt", "--kafka", word, "--cluster", cluster, "--reason", "r", "--yes")
	}
	id := clusterID(m.t, m.brokers)
	adopt("from-position", "another")
	m.stops("OTHER_KAFKA")
	m.ctl(m.dsn(operatorLogin), "adopt", "--kafka", "continue", "--cluster", id, "--reason", "r", "--yes")
	m.streams()
	m.event("order")
	m.nothingOwed()
	m.execute(`UPDATE onceward.relay_state SET kafka_met = 'another'`)
	adopt("gap", "another")
	m.ctl(m.dsn(operatorLogin), "adopt", "--kafka", "gap", "--cluster", id, "--config", m.relay.config, "--reason", "r", "--yes")
	m.decided("OTHER_KAFKA")
}
