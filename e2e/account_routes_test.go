//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/process"
)

// Replays of TestAccount, other routes, and another name.

// replayed asks about compacted topics by the relay's configuration, or not at all: where a
// fault is under way Kafka may not answer before it ends, and it ends behind this move.
func (a *accounting) replayed(s step, args ...string) bool {
	args = append(args, "--yes", "--reason", "move")
	if s.up && len(a.nemesis.undos) == 0 {
		args = append(args, "--config", a.relays[0].config)
	} else {
		args = append(args, "--unchecked")
	}
	_, code := a.ctl(append([]string{"replay"}, args...)...)
	return code == 0
}

func (a *accounting) replayEvent(s step) bool {
	row, ok := a.row(s)
	return ok && a.replayed(s, row.Key)
}

func (a *accounting) replayAggregate(s step) bool {
	row, ok := a.row(s)
	return ok && a.replayed(s, "--namespace", a.name, "--aggregate-type", row.Kind, "--aggregate", row.Aggregate)
}

// replayDead replays the events of discarded letters, and half of the times, to a
// topic, those of letters that wait too.
func (a *accounting) replayDead(s step) bool {
	if s.shape%2 == 0 {
		return a.replayed(s, "--dead")
	}
	return a.replayed(s, "--dead", "--topic", a.topicOf(a.kind(s)))
}

// replayTime replays what was written in a few seconds.
func (a *accounting) replayTime(s step) bool {
	from := time.Now().UTC().Add(-time.Duration(s.shape+1) * 5 * time.Second)
	return a.replayed(s, "--namespace", a.name, "--from", from.Format(time.RFC3339), "--to", from.Add(3*time.Second).Format(time.RFC3339))
}

func (a *accounting) replayToTopic(s step) bool {
	row, ok := a.row(s)
	return ok && a.replayed(s, row.Key, "--topic", a.topicOf(a.kind(s)))
}

func (a *accounting) reprocess(s step) bool {
	row, ok := a.row(s)
	return ok && a.replayed(s, row.Key, "--reprocess", "some-group")
}

// routesOf are what the relays' routes are changed to and back: the usual, one that
// halts, and one that leads a kind which may have no topic to a topic that is there.
var routesOf = []string{
	`routes: [{topic: "{namespace}.{aggregate_type}"}]`,
	`routes: [{match: {aggregate_type: "order"}, topic: "{namespace}.{aggregate_type}", poison: halt}, {topic: "{namespace}.{aggregate_type}"}]`,
	`routes: [{match: {aggregate_type: "late1"}, topic: "{namespace}.wide"}, {topic: "{namespace}.{aggregate_type}", poison: halt}]`,
}

// Of routesOf the one that leads kindLed to a topic that is there.
const (
	leads   = 2
	kindLed = "late1"
)

// changeRoutes has all relays end gracefully and begin with other routes.
func (a *accounting) changeRoutes(s step) bool {
	if slices.ContainsFunc(a.relays, func(r *relayProcess) bool { return r.process == nil }) {
		return false
	}
	next := (a.routes + 1 + int(s.target%uint64(len(routesOf)-1))) % len(routesOf)
	for _, r := range a.relays {
		text, err := os.ReadFile(r.config)
		require.NoError(a.t, err)
		require.Contains(a.t, string(text), routesOf[a.routes])
		require.NoError(a.t, os.WriteFile(r.config, []byte(strings.Replace(string(text), routesOf[a.routes], routesOf[next], 1)), 0o600))
	}
	a.routes = next
	a.restartAll(s)
	return true
}

// renameRelay has all relays end gracefully and begin with another name, and their slot
// and publication as they were, until they have their own again.
func (a *accounting) renameRelay(s step) bool {
	began := func(name string) bool {
		if slices.ContainsFunc(a.relays, func(r *relayProcess) bool { return r.process == nil }) {
			return false
		}
		for _, r := range a.relays {
			r.env = append(r.env, "ONCEWARD_NAME="+name, "ONCEWARD_POSTGRES_SLOT_NAME="+a.slot(), "ONCEWARD_POSTGRES_PUBLICATION="+a.publication())
		}
		a.restartAll(s)
		return true
	}
	if !began(a.name + "_renamed") {
		return false
	}
	a.nemesis.undos = append(a.nemesis.undos, undo{time.Now().Add(s.lasting + 2*time.Second), func() bool { return began(a.name) }})
	return true
}

// interruptCommand ends outboxctl by SIGINT: what it has said is so.
func (a *accounting) interruptCommand(s step) bool {
	rests := func(paused bool) bool {
		return a.holds(`SELECT paused = $2 FROM onceward.relay_state WHERE slot = $1`, a.slot(), paused)
	}
	if !rests(false) {
		return false
	}
	log := filepath.Join(a.t.TempDir(), "log")
	p, err := process.Start(process.Spec{
		Path: outboxctlBinary(a.t), Args: []string{"pause", "--slot", a.slot()}, LogFile: log,
		Env: []string{"OUTBOXCTL_DSN=" + a.dsn(operatorLogin), "OUTBOXCTL_INSECURE=true"},
	})
	require.NoError(a.t, err)
	select {
	case <-p.Done():
	case <-time.After(time.Duration(s.target % uint64(150*time.Millisecond))):
		_ = p.Signal(os.Interrupt)
	}
	<-p.Done() // its commit has a limit of its own
	said, err := os.ReadFile(log)
	require.NoError(a.t, err)
	switch nothing := strings.Contains(string(said), "interrupted") && strings.Contains(string(said), "context canceled"); {
	case p.Err() == nil && rests(false), nothing && rests(true):
		a.found = append(a.found, violation{accountTrue, fmt.Sprintf("pause was interrupted (%v), and it is not as it says: %s", p.Err(), said)})
	}
	a.undoes(s.lasting, func() bool {
		_, code := a.ctl("resume", "--slot", a.slot())
		return code == 0
	})
	return true
}

// restartAll has all relays end gracefully and begin again.
func (a *accounting) restartAll(s step) {
	for _, r := range a.relays {
		p := r.process
		require.NoError(a.t, p.Signal(syscall.SIGTERM))
		r.process = nil
		a.nemesis.undos = append(a.nemesis.undos, undo{time.Now().Add(s.lasting), a.nemesis.restartWhenEnded(r, p)})
	}
}

// wayOut is what a relay that halts at an event prints for it.
var wayOut = regexp.MustCompile(`outboxctl skip (\S+) --relay`)

// skipHalts gives up the events at which relays halt, as they print it; false: at none.
func (a *accounting) skipHalts() (done bool) {
	rows, err := a.pool.Query(a.t.Context(), `SELECT detail FROM onceward.relay_health WHERE slot = $1 AND state = 'halted'`, a.slot())
	if err != nil {
		return false
	}
	details, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return false
	}
	for _, detail := range details {
		// A relay that was killed has left its last word there.
		m := wayOut.FindStringSubmatch(detail)
		if len(m) < 2 || !a.holds(`SELECT EXISTS (SELECT FROM onceward.outbox o CROSS JOIN LATERAL onceward.account(o.id, o.tx_id, o.seq) c JOIN onceward.relay_state r ON r.slot = c.slot
			WHERE c.slot = $1 AND o.id::text = right($2, 36) AND c.state IN ('pending', 'gap', 'waiting') AND NOT o.id = ANY(r.skip))`, a.slot(), m[1]) {
			continue
		}
		_, code := a.ctl("skip", m[1], "--relay", a.name, "--yes", "--reason", "move")
		done = done || code == 0
	}
	if done {
		a.nemesis.note(step{at: time.Since(a.nemesis.began), pack: haltSkipped})
	}
	return done
}

// sayHalts logs what relays halt at.
func (a *accounting) sayHalts() {
	a.t.Log(scalar[string](a.environment, `SELECT COALESCE(jsonb_agg(jsonb_build_object('health', to_jsonb(h), 'skip', r.skip,
		'accounts', (SELECT jsonb_agg(c.state) FROM onceward.outbox o CROSS JOIN LATERAL onceward.account(o.id, o.tx_id, o.seq) c
			WHERE strpos(h.detail, o.id::text) > 0 AND c.slot = h.slot)))::text, 'no relay halts')
		FROM onceward.relay_health h JOIN onceward.relay_state r ON r.slot = h.slot WHERE h.state = 'halted'`))
}
