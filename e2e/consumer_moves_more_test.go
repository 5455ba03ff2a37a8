//go:build e2e

package e2e

import (
	"net/url"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/kafkaproxy"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// more adds the moves that need something of their own.
func (m *mover) more(all map[string]func() bool) {
	all["answers lost"], all["fences reconciled"] = m.troubledCalls, m.fencesReconciled
	all["replayed"], all["replays redriven"], all["replay discarded"] = m.replayed, m.redriven("replay"), m.discarded("replay")
	all["reprocessed in vain"] = m.reprocessedInVain
	all["clock ahead"], all["future letters redriven"] = m.clockAhead, m.redriven("from-future")
	all["late set"], all["late letters redriven"], all["late letter discarded"] = m.lateSet, m.redriven("late"), m.discarded("late")
	if m.fast != nil {
		all["Redis flushed"], all["Redis frozen"], all["Redis killed"], all["Redis put back"] = m.redisFlushed, m.redisFrozen, m.redisKilled, m.redisPutBack
	}
	if m.network != nil {
		all["broker paused"], all["network fault"] = m.brokerPaused, m.networkFault
		if m.second == nil {
			all["second group"] = m.secondBegins
		}
	}
}

// troubledCalls publishes events of which nobody hears whether the provider was called.
func (m *mover) troubledCalls() bool {
	for range 1 + m.rng.IntN(3) {
		e := &toldEvent{body: body{N: m.events, Trouble: lost, Charged: m.rng.IntN(2) == 0}}
		m.sendAll(m.message(m.plain(e, "Call", time.Now()).Event))
	}
	return true
}

// fencesReconciled asks the provider, of each fence that nobody drives any more, what
// happened, and says so. What the program would have written is written by hand. An
// event whose provider may not have been asked yet, by one that is paused, has to wait.
func (m *mover) fencesReconciled() bool {
	rows, err := m.w.pool.Query(m.t.Context(), `SELECT DISTINCT l.namespace || ':' || f.event_id FROM onceward.fences f JOIN onceward.consumer_dead_letters l USING (event_id, consumer_group)
		WHERE consumer_group = $1 AND f.status = 'PENDING' AND f.expires_at IS NULL AND lease_until < clock_timestamp() AND provider_key_until < clock_timestamp() AND l.state = 'open'`, m.group)
	require.NoError(m.t, err)
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(m.t, err)
	if len(keys) == 0 {
		m.troubledCalls() // for the next time
	}
	done := false
	for _, key := range keys {
		e := m.told[key]
		if e == nil || e.Trouble != lost {
			continue
		}
		provider := consumer.ProviderKey(e.Key, m.group, "charge")
		if scalar[int](m.outside, `SELECT count(*) FROM tries WHERE key = $1`, provider) == 0 {
			continue
		}
		args := []string{"fences", "reconcile", key, "--group", m.group, "--name", "charge"}
		if scalar[int](m.outside, `SELECT count(*) FROM provider WHERE key = $1`, provider) > 0 {
			if !m.command(operatorLogin, append(args, "--made", "--result", `"by hand"`)...) {
				continue
			}
			m.w.execute(`INSERT INTO effects (key, pid, late) VALUES ($1, 0, false)`, key)
			m.counts["fences made"]++
		} else {
			m.outside.execute(`INSERT INTO reconciled VALUES ($1) ON CONFLICT DO NOTHING`, provider)
			if !m.command(operatorLogin, append(args, "--not-made")...) {
				continue
			}
			m.counts["fences not made"]++
		}
		done = true
		if m.rng.IntN(3) > 0 {
			m.command(operatorLogin, "dead", "redrive", key, "--group", m.group, "--wait", "0")
		}
	}
	return done
}

// replayed publishes events again as an operator's replay does that does not know
// which were applied. Below the floor they become letters.
func (m *mover) replayed() bool {
	old := m.below()
	if len(old) == 0 {
		m.partitionsMaintained()
		old = m.below()
	}
	m.rng.Shuffle(len(old), func(i, j int) { old[i], old[j] = old[j], old[i] })
	for _, e := range old[:min(len(old), 6)] {
		m.sendAll(m.message(e.Event, header(record.HeaderReplayID, uuid.Must(uuid.NewV7()).String()), header(record.HeaderReplayMode, "redeliver")))
	}
	return len(old) > 0
}

// below are the events that lie below all floors of the first group, and can be applied.
func (m *mover) below() (old []*toldEvent) {
	floor := scalar[time.Time](m.w, `SELECT min(floor) FROM onceward.dedup_windows WHERE consumer_group = $1`, m.group)
	for _, e := range m.order {
		if e.simple() && e.Key.Time().Before(floor) {
			old = append(old, e)
		}
	}
	return old
}

// reprocessedInVain orders that an event is applied once more that cannot be applied:
// the order has a letter of its own.
func (m *mover) reprocessedInVain() bool {
	for range 200 {
		e := m.order[m.rng.IntN(len(m.order))]
		if e.Dead && e.oneTransaction() && !e.Refused && !e.future &&
			scalar[int](m.w, `SELECT count(*) FROM onceward.processed_events WHERE event_id = $1 AND consumer_group = $2 AND outcome = 'd'`, e.Key.UUID(), m.group) == 1 {
			e.again++
			m.sendAll(m.reprocessed(e))
			return true
		}
	}
	return false
}

// clockAhead publishes events of a producer whose clock is ahead by a few seconds more
// than is allowed: their time comes.
func (m *mover) clockAhead() bool {
	for range 3 {
		e := &toldEvent{body: body{N: m.events}, soon: true}
		at := time.Now().Add(consumer.DefaultSkew + time.Duration(1000+m.rng.IntN(5000))*time.Millisecond)
		m.sendAll(m.message(m.plain(e, []string{"Tx", "Batch", "Set"}[m.rng.IntN(3)], at).Event))
	}
	return true
}

// brokerPaused stops Kafka for so long that it misses its members afterwards, sometimes.
func (m *mover) brokerPaused() bool {
	broker, pause := m.broker(), time.Duration(500+m.rng.IntN(3500))*time.Millisecond
	require.NoError(m.t, syscall.Kill(broker, syscall.SIGSTOP))
	time.AfterFunc(pause, func() { _ = syscall.Kill(broker, syscall.SIGCONT) }) // what is due may wait for it
	m.pass(pause)
	eventually(m.t, "Kafka answers", 30*time.Second, m.writable)
	return true
}

// Keys of requests of members.
const (
	joinGroup kafkaproxy.Key = 11
	heartbeat kafkaproxy.Key = 12
	syncGroup kafkaproxy.Key = 14
)

// networkFault meets requests of the members on their way to Kafka, and not ours.
func (m *mover) networkFault() bool {
	keys := []kafkaproxy.Key{
		kafkaproxy.Fetch, kafkaproxy.OffsetCommit, kafkaproxy.OffsetCommit, kafkaproxy.OffsetFetch, kafkaproxy.Metadata, kafkaproxy.FindCoordinator, joinGroup, heartbeat, syncGroup,
	}
	f := m.network.Inject(kafkaproxy.Fault{
		Key: keys[m.rng.IntN(len(keys))], Client: "onceward", Times: m.rng.IntN(4),
		Action: []kafkaproxy.Action{kafkaproxy.Break, kafkaproxy.DropReply, kafkaproxy.Hold, kafkaproxy.Late}[m.rng.IntN(4)],
	})
	m.due = append(m.due, later{time.Now().Add(time.Duration(500+m.rng.IntN(3500)) * time.Millisecond), f.Release})
	return true
}

// secondGroup is another group that has begun on the old topic in the middle.
type secondGroup struct {
	name    string
	before  int // malformed records from before it began
	offered map[string]bool
}

// secondBegins has an operator adopt another group, whose effects are in a schema of
// their own, and starts its member.
func (m *mover) secondBegins() bool {
	s := &secondGroup{name: m.group + "-second", before: m.malformed, offered: map[string]bool{}}
	if !m.command(consumerMaintainerLogin, "windows", "adopt", s.name, "--from", time.Now().UTC().Add(-4*day).Format(time.DateOnly), "--class", "*", "--window", "1d") {
		return false
	}
	m.registerReadings(s.name)
	for _, r := range m.w.records() {
		var headers []sarama.RecordHeader
		for _, h := range r.Headers {
			headers = append(headers, *h)
		}
		s.offer(headers)
	}
	m.second = s
	c := m.program(s.name, 2)
	c.task.Group, c.task.DSN = s.name, m.secondDSN()
	c.start()
	m.members = append(m.members, c)
	return true
}

// secondDSN leads to the tables of the second group.
func (m *mover) secondDSN() string {
	u, err := url.Parse(m.dsn)
	require.NoError(m.t, err)
	q := u.Query()
	q.Set("search_path", "second,public")
	u.RawQuery = q.Encode()
	return u.String()
}

// offer notes what the group has to apply. That it applies a replay of what it did not
// see before is its own affair.
func (s *secondGroup) offer(headers []sarama.RecordHeader) {
	if s == nil {
		return
	}
	key := ""
	for _, h := range headers {
		switch string(h.Key) {
		case outbox.HeaderKey, readingHeader:
			key = string(h.Value)
		case record.HeaderReplayID:
			return
		}
	}
	s.offered[key] = true
}

// lags is how far all groups are from the end of the topic.
func (m *mover) lags() int64 {
	lag := m.lag()
	if m.second != nil {
		group := m.group
		m.group = m.second.name
		lag += m.lag()
		m.group = group
	}
	return lag
}
