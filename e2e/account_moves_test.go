//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/process"
)

// The moves of TestAccount that are no faults of processes and networks.
const (
	// An operator's commands.
	relayPaused          pack = "relay paused and resumed"
	routePaused          pack = "route paused and resumed"
	lettersRetried       pack = "letters retried"
	letterDiscarded      pack = "letter discarded"
	letterEdited         pack = "letter edited and retried"
	eventSkipped         pack = "event skipped"
	skipTakenBack        pack = "skip taken back"
	eventReplayed        pack = "event replayed"
	gapRepaired          pack = "repair of a gap"
	gapAccepted          pack = "accept of a gap"
	aggregateReplayed    pack = "aggregate replayed"
	deadReplayed         pack = "dead letters replayed"
	timeReplayed         pack = "time replayed"
	topicReplayed        pack = "event replayed to a topic"
	eventReprocessed     pack = "event replayed to be reprocessed"
	haltSkipped          pack = "event skipped that halts"
	filledAdopted        pack = "opened day adopted"
	partitionsMaintained pack = "partitions maintained"
	oldRowsDropped       pack = "partitions maintained, and rows of before dropped"
	daysKeptLonger       pack = "partitions kept longer"
	migratedAgain        pack = "migrated again"
	rolesApplied         pack = "roles applied again"
	producerBound        pack = "producer bound and let go"
	systemAdopted        pack = "database adopted by copy or dump"
	kafkaAdopted         pack = "Kafka adopted"
	commandInterrupted   pack = "command interrupted"
	dayDetached          pack = "closed day detached by hand, attached again and adopted"
	statusWatched        pack = "status watched and interrupted"
	eventAwaited         pack = "event awaited"
	topicsCreated        pack = "topics created by outboxctl"
	topicsCreatedOnce    pack = "topics create asked in exactly-once mode"
	profilesToggled      pack = "profiles served or not"
	typoRetired          pack = "relay of a wrong name halted and retired"
	// Changes of the environment.
	topicMade          pack = "topic made"
	topicRemoved       pack = "topic removed"
	topicNarrowed      pack = "topic narrowed and widened"
	partitionsAdded    pack = "partitions added"
	modeChanged        pack = "mode changed"
	relayRenamed       pack = "relay renamed"
	routesChanged      pack = "routes changed"
	dayOpened          pack = "old day opened"
	rightsTaken        pack = "rights taken and given"
	publicationRemade  pack = "publication dropped and made anew"
	publicationToggled pack = "publication toggled"
	slotDropped        pack = "slot dropped"
	slotAdvanced       pack = "slot advanced"
	leafUnlogged       pack = "partition unlogged and logged"
	leafFilled         pack = "partition attached with rows, and adopted"
	secondRelay        pack = "second relay begun and retired"
	storageSaved       pack = "snapshot of the storage taken"
	storageRestored    pack = "snapshot of the storage restored"
	standbyMade        pack = "standby made"
	standbyPromoted    pack = "standby promoted"
	topicShrunk        pack = "topic made anew with fewer partitions"
	maintenanceLed     pack = "maintenance led to another database"
	databaseCopied     pack = "database copied beside itself, with a relay"
	slotStolen         pack = "slot taken by a stranger"
	roleStripped       pack = "relay's role stripped and mended"
	kafkaHung          pack = "Kafka hung for one relay"
	tlsToggled         pack = "TLS of PostgreSQL served or not"
	settingChanged     pack = "setting of the database or the relay's role changed"
	quotaSet           pack = "producer quota set and removed"
	// Users' mistakes.
	badRow          pack = "row with a bad key"
	impossibleTopic pack = "row of an impossible topic"
	largeRow        pack = "row too large for Kafka"
	transactionLeft pack = "transaction left open"
	commitDelayed   pack = "commit delayed"
	largeCommit     pack = "transaction of thousands"
	largeCommitMet  pack = "transaction of thousands, and a relay terminated in it"
)

func (a *accounting) moves() map[pack]func(step) bool {
	return map[pack]func(step) bool{
		relayPaused: a.pauseRelay, routePaused: a.pauseRoute, lettersRetried: a.retryLetters, letterDiscarded: a.discardLetter, letterEdited: a.editLetter,
		eventSkipped: func(s step) bool { return a.skipEvent(s) != "" }, skipTakenBack: a.takeSkipBack,
		eventReplayed: a.replayEvent, aggregateReplayed: a.replayAggregate, partitionsMaintained: func(step) bool { return a.maintain(1, false) }, oldRowsDropped: func(step) bool { return a.maintain(1, true) }, dayOpened: a.openDay,
		deadReplayed: a.replayDead, timeReplayed: a.replayTime, topicReplayed: a.replayToTopic, eventReprocessed: a.reprocess, routesChanged: a.changeRoutes, commitDelayed: a.commitLate,
		haltSkipped:   func(step) bool { a.skipHalts(); return false }, // it is noted there
		migratedAgain: a.migrate, daysKeptLonger: func(step) bool { return a.maintain(30, false) }, rolesApplied: a.applyRoles,
		commandInterrupted: a.interruptCommand, dayDetached: a.detachDay, relayRenamed: a.renameRelay,
		statusWatched: a.watchStatus, eventAwaited: a.awaitEvent, topicsCreated: a.createTopics, typoRetired: a.retireTypo,
		topicMade: a.makeLateTopic, topicNarrowed: a.narrowTopic, partitionsAdded: a.addPartitions, modeChanged: a.changeMode, rightsTaken: a.takeRights,
		badRow:            func(step) bool { return a.mistake("order", []byte("{}"), 4) },
		impossibleTopic:   func(step) bool { return a.mistake("no topic!", []byte("{}"), 7) },
		largeRow:          func(s step) bool { return a.mistake(a.kind(s), bytes.Repeat([]byte("x"), 1_200_000), 7) },
		transactionLeft:   a.leaveTransaction,
		largeCommit:       a.commitLarge,
		largeCommitMet:    func(s step) bool { return a.commitLarge(s) && a.nemesis.terminateRelay(s) },
		publicationRemade: a.remakePublication, publicationToggled: a.togglePublication, slotDropped: a.dropSlot, slotAdvanced: a.advanceSlot,
		producerBound: a.bindProducer, systemAdopted: a.adoptSystem, kafkaAdopted: a.adoptKafka, leafUnlogged: a.unlogLeaf, leafFilled: a.fillLeaf, secondRelay: a.beginSecond,
		profilesToggled: a.toggleProfiles, maintenanceLed: a.leadMaintenanceElsewhere, databaseCopied: a.copyBeside, slotStolen: a.takeSlot,
		roleStripped: a.stripRole, kafkaHung: a.hangForOne, tlsToggled: a.toggleTLS,
		settingChanged: a.changeSetting, quotaSet: a.limitProducer,
		storageSaved: a.saveStorage, storageRestored: a.restoreStorage, standbyMade: a.makeStandby, standbyPromoted: a.promoteStandby,
	}
}

// kind picks an aggregate type of the load by the step's dice.
func (a *accounting) kind(s step) string { return kindsThere[s.target%uint64(len(kindsThere))] }

// ctl runs outboxctl with the operator's rights, or those of another login, and
// returns its output and exit code; -1: it could not be asked.
func (a *accounting) ctl(args ...string) (string, int) { return a.ctlAs(a.dsn(operatorLogin), args...) }

func (a *accounting) ctlAs(dsn string, args ...string) (string, int) {
	return a.ctlIn([]string{"OUTBOXCTL_DSN=" + dsn}, args...)
}

// ctlIn runs outboxctl in an environment of its own.
func (a *accounting) ctlIn(env []string, args ...string) (string, int) {
	ctx, cancel := context.WithTimeout(a.t.Context(), 30*time.Second)
	defer cancel()
	out, err := process.Run(ctx, process.Spec{
		Path: outboxctlBinary(a.t), Args: args, Env: append(env, "OUTBOXCTL_INSECURE=true"),
	})
	var exit *exec.ExitError
	switch {
	case err == nil:
		return out, 0
	case errors.As(err, &exit):
		a.refused = fmt.Sprintf("%v: %s", args, out)
		return out, exit.ExitCode()
	}
	a.refused = fmt.Sprintf("%v: %v: %s", args, err, out)
	return out, -1
}

// surely repeats a command that undoes a move until the server takes it.
func (a *accounting) surely(lasting time.Duration, args ...string) {
	a.undoes(lasting, func() bool {
		_, code := a.ctl(args...)
		return code == 0
	})
}

func (a *accounting) pauseRelay(s step) bool {
	if _, code := a.ctl("pause", "--relay", a.name); code != 0 {
		return false
	}
	a.surely(s.lasting, "resume", "--relay", a.name)
	return true
}

func (a *accounting) pauseRoute(s step) bool {
	topic := a.topicOf(a.kind(s))
	args := []string{"pause", "--route", topic, "--reason", "move"}
	if s.up { // the relay is the one of the file, which also says whether there is such a topic
		args = append(args, "--config", a.relays[0].config)
	} else {
		args = append(args, "--relay", a.name)
	}
	if _, code := a.ctl(args...); code != 0 {
		return false
	}
	a.undoes(s.lasting, func() bool {
		// Paused twice and resumed once it is not paused any more, and resume says so.
		if a.holds(`SELECT NOT $2 = ANY(paused_routes) FROM onceward.relay_state WHERE slot = $1`, a.slot(), topic) {
			return true
		}
		_, code := a.ctl("resume", "--relay", a.name, "--route", topic)
		return code == 0
	})
	return true
}

func (a *accounting) retryLetters(step) bool {
	_, code := a.ctl("dead", "retry", "--all", "--yes", "--reason", "move", "--wait", "0s")
	return code == 0
}

// named is what commands call an event: its key or, when that is none, the UUID alone.
func named(namespace, id string) string {
	return `CASE WHEN substr(` + id + `::text, 15, 1) IN ('7', '8') THEN ` + namespace + ` || ':' || ` + id + ` ELSE ` + id + `::text END`
}

// letter returns the key of some open letter, of a class if one is given.
func (a *accounting) letter(s step) (key string) {
	ctx, cancel := context.WithTimeout(a.t.Context(), 5*time.Second)
	defer cancel()
	_ = a.pool.QueryRow(ctx, `SELECT `+named("namespace", "letter_id")+` FROM onceward.dead_letters WHERE state = 'open' AND replay_of IS NULL
		ORDER BY hashtextextended(letter_id::text, $1) LIMIT 1`, int64(s.target>>1)).Scan(&key)
	return key
}

func (a *accounting) discardLetter(s step) bool {
	key := a.letter(s)
	if key == "" {
		return false
	}
	_, code := a.ctl("dead", "discard", key, "--yes", "--reason", "move", "--wait", "0s")
	return code == 0
}

func (a *accounting) editLetter(s step) bool {
	key := a.letter(s)
	if key == "" {
		return false
	}
	file := filepath.Join(a.t.TempDir(), "payload")
	require.NoError(a.t, os.WriteFile(file, []byte(`{"edited": true}`), 0o600))
	if _, code := a.ctl("dead", "edit", key, "--payload-file", file, "--yes", "--reason", "move", "--wait", "0s"); code != 0 {
		return false
	}
	_, code := a.ctl("dead", "retry", key, "--yes", "--reason", "move", "--wait", "0s")
	return code == 0
}

// skipEvent gives some event up: one that waits, or the newest, which may be
// published already: the command refuses that.
func (a *accounting) skipEvent(s step) (key string) {
	ctx, cancel := context.WithTimeout(a.t.Context(), 5*time.Second)
	defer cancel()
	_ = a.pool.QueryRow(ctx, `SELECT key FROM (
		(SELECT `+named("o.namespace", "o.id")+` AS key, 1 AS rank FROM onceward.waiting w JOIN onceward.lanes l ON l.id = w.lane JOIN onceward.outbox o ON o.id = w.id
			WHERE l.slot = $1 AND $3 ORDER BY hashtextextended(w.id::text, $2) LIMIT 1)
		UNION ALL (SELECT `+named("namespace", "id")+`, 2 FROM onceward.outbox ORDER BY seq DESC LIMIT 1)) k ORDER BY rank LIMIT 1`, a.slot(), int64(s.target>>1), s.up).Scan(&key)
	if key == "" {
		return ""
	}
	if _, code := a.ctl("skip", key, "--relay", a.name, "--yes", "--reason", "move"); code != 0 {
		return ""
	}
	return key
}

func (a *accounting) takeSkipBack(s step) bool {
	key := a.skipEvent(s)
	if key == "" {
		return false
	}
	a.undoes(s.lasting, func() bool {
		_, code := a.ctl("skip", key, "--undo", "--relay", a.name)
		return code == 0 || code == 3 // it was carried out, or is gone with its history
	})
	return true
}

// row returns some row of the table.
func (a *accounting) row(s step) (row accountRow, ok bool) {
	ctx, cancel := context.WithTimeout(a.t.Context(), 5*time.Second)
	defer cancel()
	err := a.pool.QueryRow(ctx, `SELECT namespace || ':' || id, aggregate_type, aggregate_id, seq FROM onceward.outbox ORDER BY hashint8(seq # $1) LIMIT 1`, int64(s.target>>1)).
		Scan(&row.Key, &row.Kind, &row.Aggregate, &row.Seq)
	return row, err == nil
}

func (a *accounting) migrate(step) bool {
	_, code := a.ctlAs(a.dsn(maintainerLogin), "migrate", "up", "--side", "outbox", "--relay", a.name)
	return code == 0
}

func (a *accounting) applyRoles(step) bool {
	shared.roles.Lock()
	defer shared.roles.Unlock()
	_, code := a.ctlAs(a.server.DSN(a.name), "migrate", "roles", "--side", "outbox", "--apply")
	return code == 0
}

func (a *accounting) makeLateTopic(s step) bool {
	return a.makeTopic(kindsLate[s.target%uint64(len(kindsLate))])
}

func (a *accounting) narrowTopic(s step) bool {
	if !a.limitTopic("2000") {
		return false
	}
	a.nemesis.undos = append(a.nemesis.undos, undo{time.Now().Add(s.lasting), func() bool { return a.limitTopic("1048588") }})
	return true
}

// addPartitions lets a topic grow, which moves some of its keys.
func (a *accounting) addPartitions(step) bool {
	const most = 8
	if a.wide >= most || !a.growTopic(a.wide+1) {
		return false
	}
	a.wide++
	return true
}

// changeMode has all relays end, gracefully or killed, and begin in the other mode; in
// some cases their slot is gone by then.
func (a *accounting) changeMode(s step) bool {
	for _, r := range a.relays {
		if r.process == nil {
			return false
		}
	}
	a.copies = true
	a.changes++
	a.mode = map[string]string{"idempotent": "exactly-once", "exactly-once": "idempotent"}[a.mode]
	for _, r := range a.relays {
		r.env = append(r.env, "ONCEWARD_KAFKA_MODE="+a.mode)
	}
	switch s.target % 3 {
	case 0:
		a.nemesis.killRelays(s)
	case 1:
		a.nemesis.killRelays(s)
		a.dropSlot(s)
	default:
		a.restartAll(s)
	}
	return true
}

// takeRights takes from the relay what it needs, for a while.
func (a *accounting) takeRights(s step) bool {
	what := []string{"SELECT ON onceward.outbox", "UPDATE ON onceward.relay_state", "INSERT ON onceward.dead_letters"}[s.target%3]
	if !a.nemesis.sql("REVOKE " + what + " FROM " + relayLogin) {
		return false
	}
	a.undoes(s.lasting, func() bool { return a.nemesis.sql("GRANT " + what + " TO " + relayLogin) })
	return true
}

// leaveTransaction holds a transaction with a row open, and rolls it back.
func (a *accounting) leaveTransaction(s step) bool {
	ctx, cancel := context.WithTimeout(a.t.Context(), 5*time.Second)
	defer cancel()
	tx, err := a.app.Begin(ctx)
	if err != nil {
		return false
	}
	_, err = tx.Exec(ctx, `SELECT pg_current_xact_id()`)
	a.nemesis.later(s.lasting, func() { _ = tx.Rollback(context.WithoutCancel(a.t.Context())) })
	return err == nil
}

// gapOpens notes that up to a tick may be published twice.
func (a *accounting) gapOpens() { a.copies = true }

// nothingProved notes that all there is may be published twice.
func (a *accounting) nothingProved() { a.copies, a.all = true, true }

func (a *accounting) publication() string { return "onceward_" + a.name }

func (a *accounting) remakePublication(s step) bool {
	if !a.nemesis.sql("DROP PUBLICATION " + a.publication()) {
		return false
	}
	a.gapOpens()
	a.undoes(s.lasting, func() bool { return a.migrate(s) })
	return true
}

func (a *accounting) togglePublication(s step) bool {
	set := func(to string) bool {
		return a.nemesis.sql("ALTER PUBLICATION " + a.publication() + " SET (" + to + ")")
	}
	away, back := "publish = 'update'", "publish = 'insert'"
	if s.up {
		away, back = "publish_via_partition_root = false", "publish_via_partition_root = true"
	}
	if !set(away) {
		return false
	}
	a.gapOpens()
	a.undoes(s.lasting, func() bool {
		// Another move may have made it anew, as it should be.
		return set(back) || a.nemesis.sql(`SELECT 1 / (1 - count(*)) FROM pg_publication WHERE pubname = '`+a.publication()+`'`)
	})
	return true
}

// dropSlot takes the slot from whoever holds it, and drops it.
func (a *accounting) dropSlot(step) bool {
	for range 20 {
		if a.nemesis.sql(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '` + a.slot() + `' AND active;
			SELECT pg_drop_replication_slot('` + a.slot() + `')`) {
			a.gapOpens()
			return true
		}
	}
	return false
}

// advanceSlot leads the slot past what the relays have not read, while they are
// down.
func (a *accounting) advanceSlot(s step) bool {
	a.nemesis.killRelays(s)
	for range 20 {
		if a.nemesis.sql(`SELECT pg_replication_slot_advance('` + a.slot() + `', pg_current_wal_insert_lsn())`) {
			a.gapOpens()
			return true
		}
	}
	return false
}

// decideGaps decides about gaps that wait for it, once a relay has printed how: three
// of four are repaired.
func (a *accounting) decideGaps() {
	rows, err := a.pool.Query(a.t.Context(), `SELECT gap_id::text FROM onceward.gaps WHERE state = 'open' AND slot = $1`, a.slot())
	require.NoError(a.t, err)
	open, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(a.t, err)
	for _, gap := range open {
		if !a.printed(gap) {
			continue
		}
		what := gapRepaired
		if a.random.IntN(4) == 0 {
			what = gapAccepted
		}
		if out, code := a.ctl("gap", strings.Fields(string(what))[0], gap, "--yes", "--reason", "move"); code != 0 {
			a.found = append(a.found, violation{liveAgain, fmt.Sprintf("outboxctl %s: %d: %s", what, code, out)})
			continue
		}
		a.nemesis.note(step{at: time.Since(a.nemesis.began), pack: what})
	}
}

// streams says whether a relay holds the slot.
func (a *accounting) streams() bool {
	return a.holds(`SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND active)`, a.slot())
}
