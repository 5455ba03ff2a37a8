//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/internal/process"
)

// bag holds the moves: each returns whether it fitted.
func (m *mover) bag() map[string]func() bool {
	all := map[string]func() bool{
		// faults of processes and networks
		"member killed": m.memberKilled, "member paused": m.memberPaused, "member restarted": m.memberRestarted,
		"connections terminated": m.connectionsTerminated, "postgres crashed": m.postgresCrashed, "zombie": m.zombie,
		// an operator's commands
		"letters redriven": m.lettersRedriven, "letter discarded": m.discarded(""), "claim forgotten": m.claimForgotten,
		"window set": m.windowSet, "window of readings set": m.readingsSet, "class retired": m.classRetired, "partitions maintained": m.partitionsMaintained, "audited": m.audited, "DEFAULT partition": m.strayMade, "floor lowered": m.floorLowered,
		"fence released": m.fenceReleased, "group retired": m.retired(), "topic retired": m.retired("--topic", m.w.topic()),
		// changes of the environment
		"deployed": m.deployed, "offsets reset": m.offsetsReset, "group deleted": m.groupDeleted, "setting of the role changed": m.settingChanged,
		// users' mistakes
		"slow handlers": m.troubled(slowly), "deaf handlers": m.troubled(deaf), "deadly events": m.troubled(deadly), "exiting handlers": m.troubled(exiting),
		"conflicting handlers": m.troubled(conflicting), "breaking handlers": m.troubled(breaking), "committing handlers": m.troubled(committing), "unknown type": m.unknownType,
		"malformed record": m.malformedRecord, "unreadable batch": m.unreadableBatch, "key used twice": m.keyUsedTwice, "reprocessed": m.reprocess, "late copies": m.lateCopies, "readings copied": m.readingsCopied,
	}
	if m.replicated != nil {
		all["promoted"] = m.promoted
	} else if m.defect == "" {
		all["snapshot taken"], all["snapshot restored"] = m.snapshotTaken, m.snapshotRestored
	}
	all["topic made anew"], all["cluster moved"] = m.topicMadeAnew, m.clusterMoved
	m.more(all)
	return all
}

func (m *mover) member() *consumerProcess { return m.members[m.rng.IntN(len(m.members))] }

func (m *mover) memberKilled() bool {
	c := m.member()
	if c.process == nil {
		return false
	}
	c.kill()
	m.kills++
	return true // the watch starts it
}

// stopMember ends a member as a deploy does; one that has ended by itself is gone. One
// that waits for an answer of Kafka does not end before that has come.
func (m *mover) stopMember(c *consumerProcess) {
	if c.process == nil {
		return
	}
	if m.network != nil {
		m.network.Heal()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_ = c.process.Signal(syscall.SIGCONT) // it may be paused
	if err := c.process.Stop(ctx, syscall.SIGTERM); err != nil {
		m.found = append(m.found, fmt.Sprintf("a member does not stop: %v", err))
		c.process.Kill()
	}
	c.process = nil
}

func (m *mover) memberRestarted() bool {
	m.stopMember(m.member())
	return true
}

// deployed changes a member's version: its classes and handlers, and how its pool speaks to the database.
func (m *mover) deployed() bool {
	c := m.member()
	m.stopMember(c)
	c.task.Version = 3 - c.task.Version
	modes := []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
	c.task.Mode, c.task.Bare = modes[m.rng.IntN(len(modes))], m.rng.IntN(2) == 0
	if c.task.Mode == pgx.QueryExecModeCacheDescribe {
		c.task.Bare = false // pgx has no such connection
	}
	return true
}

// memberPaused stops a member for so long that the group and the database miss it,
// sometimes.
func (m *mover) memberPaused() bool {
	c := m.member()
	if c.process == nil || c.process.Signal(syscall.SIGSTOP) != nil {
		return false
	}
	p := c.process
	m.due = append(m.due, later{time.Now().Add(time.Duration(500+m.rng.IntN(5000)) * time.Millisecond), func() { _ = p.Signal(syscall.SIGCONT) }})
	return true
}

func (m *mover) connectionsTerminated() bool {
	m.terminated += scalar[int](m.w, `SELECT count(pg_terminate_backend(pid)) FROM
		(SELECT pid FROM pg_stat_activity WHERE usename = $1 AND datname = current_database() ORDER BY random() LIMIT 4) s`, billingLogin)
	return true
}

func (m *mover) postgresCrashed() bool {
	require.NoError(m.t, m.w.server.Halt(m.t.Context(), pgserver.Immediate))
	m.halted = true
	m.pass(time.Duration(m.rng.IntN(1500)) * time.Millisecond)
	require.NoError(m.t, m.w.server.Resume(m.t.Context()))
	m.halted = false
	m.reset()
	return true
}

// reset forgets connections to a server that is another by now.
func (m *mover) reset() {
	m.w.pool.Reset()
	m.w.app.Reset()
	eventually(m.t, "the database answers", 30*time.Second, func() bool { return m.w.pool.Ping(m.t.Context()) == nil })
}

// zombie reads the whole topic for itself for a while, in the name of the group.
func (m *mover) zombie() bool {
	m.zombies++
	c := m.program(fmt.Sprintf("%s-zombie-%d", m.group, m.zombies), 2)
	c.start()
	m.due = append(m.due, later{time.Now().Add(time.Duration(1000+m.rng.IntN(3000)) * time.Millisecond), c.kill})
	return true
}

// command gives a command to outboxctl, and says whether it was carried out.
func (m *mover) command(login string, args ...string) bool {
	out, err := process.Run(m.t.Context(), process.Spec{
		Path: outboxctlBinary(m.t), Args: append(args, "--yes", "--reason", "moves"), Env: []string{"OUTBOXCTL_DSN=" + m.w.dsn(login), "OUTBOXCTL_INSECURE=true"},
	})
	if err != nil {
		m.note(time.Since(m.began), fmt.Sprintf("outboxctl %v: %v: %.300s", args, err, out))
	}
	return err == nil
}

// lettersRedriven mends half of what could not be applied, and redrives all of it.
func (m *mover) lettersRedriven() bool {
	group := m.someGroup()
	if m.open(group, "handler") == 0 {
		return false
	}
	m.w.execute(`INSERT INTO mended SELECT namespace || ':' || event_id FROM onceward.consumer_dead_letters
		WHERE state = 'open' AND reason = 'handler' AND hashtext(event_id::text) % 2 = 0 ON CONFLICT DO NOTHING`)
	return m.command(operatorLogin, "dead", "redrive", "--group", group, "--cause", "handler", "--wait", "0")
}

// redriven redrives all letters that are there for another reason.
func (m *mover) redriven(reason string) func() bool {
	return func() bool {
		group := m.someGroup()
		return m.open(group, reason) > 0 && m.command(operatorLogin, "dead", "redrive", "--group", group, "--cause", reason, "--wait", "0")
	}
}

// open counts the open letters of a group.
func (m *mover) open(group, reason string) int {
	return scalar[int](m.w, `SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'open' AND consumer_group = $1 AND reason = $2`, group, reason)
}

// discarded gives one letter up, for whatever reason it is there when none is named.
func (m *mover) discarded(reason string) func() bool {
	return func() bool {
		var place string
		group := m.someGroup()
		err := m.w.pool.QueryRow(m.t.Context(), `SELECT topic || '/' || kafka_partition || '@' || kafka_offset FROM onceward.consumer_dead_letters
			WHERE state = 'open' AND consumer_group = $1 AND event_id IS NOT NULL AND $2 IN ('', reason) ORDER BY random() LIMIT 1`, group, reason).Scan(&place)
		return err == nil && m.command(operatorLogin, "dead", "discard", "--side", "consumer", "--group", group, place)
	}
}

// claimForgotten has the group apply an event once more. A member that asks Redis may take
// a copy for a duplicate for ten seconds more, and a replay not.
func (m *mover) claimForgotten() bool {
	if m.fast != nil {
		return m.reprocess()
	}
	e := m.applied()
	if e == nil || !m.command(operatorLogin, "processed", "forget", e.Key.String(), "--group", m.group) {
		return false
	}
	m.sendAll(m.message(e.Event))
	return true
}

func (m *mover) windowSet() bool {
	return m.command(operatorLogin, "windows", "set", m.group, "*", "--window", []string{"1d", "30h", "2d"}[m.rng.IntN(3)])
}

// classRetired takes a class for unused, which members of the second version use.
func (m *mover) classRetired() bool {
	return m.command(operatorLogin, "windows", "retire", m.group, "--class", "Tx")
}

// fenceReleased ends the lease of an attempt, which may live still.
func (m *mover) fenceReleased() bool {
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		var key, name string
		err := m.w.pool.QueryRow(m.t.Context(), `SELECT (SELECT o.event ->> 'key' FROM onceward.fences o WHERE o.event_id = f.event_id AND o.event IS NOT NULL LIMIT 1), name
			FROM onceward.fences f WHERE status = 'PENDING' AND consumer_group = $1 AND lease_until > clock_timestamp() + interval '1 second' LIMIT 1`, m.group).Scan(&key, &name)
		if err == nil && key != "" {
			return m.command(operatorLogin, "fences", "release", key, "--group", m.group, "--name", name)
		}
		m.publish(5)
	}
	return false
}

// retired gives up the group, or its place in the topic, a minute after it saved
// its progress last; and then it comes back.
func (m *mover) retired(args ...string) func() bool {
	return func() bool {
		m.rest()
		m.w.execute(`UPDATE onceward.progress SET updated_at = updated_at - interval '2 minutes'`)
		return m.command(operatorLogin, append([]string{"windows", "retire", m.group}, args...)...)
	}
}

// partitionsMaintained does two rounds. The minute for which a floor has to stand
// before a partition goes is taken out of the table, and given back: an audit takes
// claims for wrong that were made later than that before the floor was raised.
func (m *mover) partitionsMaintained() bool {
	for range 2 { // it exits with 3 while a partition waits for its second round
		m.w.execute(`UPDATE onceward.dedup_windows SET raised_at = raised_at - interval '2 minutes'`)
		m.command(consumerMaintainerLogin, "partitions", "maintain", "--side", "consumer")
	}
	m.w.execute(`UPDATE onceward.dedup_windows SET raised_at = LEAST(clock_timestamp(), raised_at + interval '4 minutes')`)
	return true
}

// audited looks at what must hold in the tables at any time.
func (m *mover) audited() bool {
	m.strayTaken()
	out, err := process.Run(m.t.Context(), process.Spec{
		Path: outboxctlBinary(m.t), Args: []string{"audit"}, Env: []string{"OUTBOXCTL_DSN=" + m.w.dsn(operatorLogin), "OUTBOXCTL_INSECURE=true"},
	})
	if err != nil {
		m.found = append(m.found, fmt.Sprintf("outboxctl audit: %v: %s", err, out))
	}
	return true
}

// rest stops all members, so that the group is empty.
func (m *mover) rest() {
	m.doDue(time.Now().Add(time.Hour)) // zombies, and those that are paused
	for _, c := range m.members {
		m.stopMember(c)
	}
}

// groupDeleted has the group begin at the beginning, as Kafka does with one that
// was away too long.
func (m *mover) groupDeleted() bool {
	m.rest()
	m.rewind()
	return true
}

// offsetsReset puts the offsets back by hand, by some records. What an offset is set over is
// finished by somebody's word, so that it is counted from what the database knows: after a
// restore, Kafka's are ahead of that.
func (m *mover) offsetsReset() bool {
	m.rest()
	client, err := sarama.NewClient(m.w.brokers, kafkaConfig())
	require.NoError(m.t, err)
	defer client.Close()
	offsets, err := sarama.NewOffsetManagerFromClient(m.group, client)
	require.NoError(m.t, err)
	for p := range m.w.partitions {
		partition, err := offsets.ManagePartition(m.w.topic(), p)
		require.NoError(m.t, err)
		at, _ := partition.NextOffset()
		at = min(at, 1+scalar[int64](m.w, `SELECT COALESCE((SELECT high_offset FROM onceward.progress
			WHERE consumer_group = $1 AND topic = $2 AND kafka_partition = $3 ORDER BY retired_at IS NOT NULL, updated_at DESC LIMIT 1), -1)`, m.group, m.w.topic(), p))
		partition.ResetOffset(max(0, at-m.rng.Int64N(200)), "")
		require.NoError(m.t, partition.Close())
	}
	require.NoError(m.t, offsets.Close())
	return true
}

// troubled publishes events whose first attempts end badly.
func (m *mover) troubled(trouble string) func() bool {
	return func() bool {
		types := []string{"Tx", "Batch", "Set", "Two", seenType, knownType}
		switch trouble {
		case conflicting, breaking: // a transaction
			types = types[:3]
		case committing: // of one event: that of a set may have effects to come
			types = types[:2]
		}
		for range 1 + m.rng.IntN(3) {
			e := &toldEvent{body: body{N: m.events, Trouble: trouble}}
			m.sendAll(m.message(m.plain(e, types[m.rng.IntN(len(types))], time.Now()).Event))
		}
		return true
	}
}

// unknownType publishes events of a type that the first version does not know.
func (m *mover) unknownType() bool {
	m.sendAll(m.message(m.plain(&toldEvent{body: body{N: m.events}}, "New", time.Now()).Event))
	return true
}

func (m *mover) malformedRecord() bool {
	m.malformedAt(int32(m.rng.IntN(int(m.w.partitions))))
	return true
}

// keyUsedTwice publishes another event with a key that was applied.
func (m *mover) keyUsedTwice() bool {
	e := m.applied()
	if e == nil {
		return false
	}
	e.changed = true
	other := e.Event
	other.Payload = []byte(`{"n": -1}`)
	m.sendAll(m.message(other))
	return true
}

func (m *mover) reprocess() bool {
	e := m.applied()
	if e == nil {
		return false
	}
	e.again++
	m.sendAll(m.reprocessed(e))
	return true
}

// lateCopies publishes old events, and a copy of each some time later.
func (m *mover) lateCopies() bool {
	var batch []*sarama.ProducerMessage
	for range 20 {
		at := time.Now().Add(-3*day + time.Duration(m.rng.Int64N(int64(day))))
		batch = append(batch, m.message(m.plain(&toldEvent{body: body{N: m.events}, republished: true}, []string{"Tx", "Batch", "Set", "Two"}[m.rng.IntN(4)], at).Event))
	}
	m.sendAll(batch...)
	m.due = append(m.due, later{time.Now().Add(time.Duration(m.rng.IntN(4000)) * time.Millisecond), func() {
		for _, r := range batch {
			again := *r // what was sent has its place in it
			m.sendAll(&again)
		}
	}})
	return true
}

func (m *mover) snapshotTaken() bool {
	dir := filepath.Join(m.t.TempDir(), "data")
	frozen(m.t, m.w.server, func() { copied(m.t, m.w.server.DataDir(), dir) })
	if m.snapshot != "" {
		require.NoError(m.t, os.RemoveAll(m.snapshot))
	}
	m.snapshot = dir
	return true
}

func (m *mover) snapshotRestored() bool {
	if m.snapshot == "" {
		return false
	}
	require.NoError(m.t, m.w.server.Halt(m.t.Context(), pgserver.Immediate))
	putBack(m.t, m.w.server, m.snapshot)
	require.NoError(m.t, m.w.server.Resume(m.t.Context()))
	m.reset()
	m.settingsTaken()
	m.deadlocks, m.lostCommits = m.deadlocked(), true
	return true
}

// promoted makes a standby the primary that lacks the last commits.
func (m *mover) promoted() bool {
	m.awaitStandby(m.w)
	m.hold()
	m.publish(200)
	m.pass(time.Duration(m.rng.IntN(2000)) * time.Millisecond)
	require.NoError(m.t, m.primary.Halt(m.t.Context(), pgserver.Immediate))
	m.promote(m.w)
	m.operator = m.w.as(operatorLogin)
	m.replicated = nil
	m.deadlocks, m.lostCommits = m.deadlocked(), true
	return true
}
