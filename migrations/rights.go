package migrations

import (
	"fmt"
	"strings"
)

// What the writer may say of an event, and what it may read to tell a duplicate
// from a reused key. Left out are created_at, tx_id and seq: a forged tx_id
// would make an event look published that was never sent.
const (
	eventColumns   = "id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, headers, traceparent"
	compareColumns = "id, namespace, aggregate_type, aggregate_id, event_type, payload, content_type, headers"
)

// What an operator's rows may say. Who asked, when and in which transaction is
// the database's to say, and what a replayed event holds too: dead, which came with
// version 8, says where it is taken from.
const (
	replayColumns  = "replay_id, id, mode, replay_group, topic, reason"
	controlColumns = "control_id, action, namespace, aggregate_type, aggregate_id, letter_id, payload, headers, reason"
	wordColumns    = "paused, paused_routes, skip"
)

// resultsTable came with version 4 of the outbox's schema.
const resultsTable = "onceward.control_results"

// healthTable came with version 6 of the outbox's schema.
const healthTable = "onceward.relay_health"

// gapTables came with version 7 of the outbox's schema.
var gapTables = []string{"onceward.gaps", "onceward.published_snapshots", "onceward.relay_actions"}

// waitingTables came with version 10 of the outbox's schema.
var waitingTables = []string{"onceward.waiting", "onceward.waiting_copies", "onceward.lanes", "onceward.releases"}

// kafkaTable came with version 11 of the outbox's schema.
const kafkaTable = "onceward.kafka_topics"

// laterTables came with version 2 of the consumer's schema.
var laterTables = []string{"onceward.dedup_horizon", "onceward.redeliveries", "onceward.consumer_actions"}

// aheadTable came with version 4 of the consumer's schema.
const aheadTable = "onceward.ahead"

// parkedTable came with version 7 of the consumer's schema.
const parkedTable = "onceward.parked"

// tables returns the side's tables of version 1, without the version table.
func (r Roles) tables() []string {
	if r.side == Consumer {
		return []string{
			"onceward.processed_events", "onceward.fences", "onceward.attempts", "onceward.progress",
			"onceward.dedup_windows", "onceward.consumer_dead_letters",
		}
	}
	return []string{"onceward.outbox", "onceward.replays", "onceward.controls", "onceward.relay_state", "onceward.dead_letters"}
}

// rights returns the statements that give every role its rights on the tables
// that are there; the owner of the tables may run them. What was given to a role
// beyond its rights is taken away again. Partitions get none of their own: they
// are reached through their table.
func (r Roles) rights() []string {
	all := strings.Join(append(r.tables(), r.side.versionTable()), ", ")
	others := r.quoted(r.All()[1:]...)
	body := []string{
		fmt.Sprintf("IF pg_catalog.to_regclass(%s) IS NULL THEN RETURN; END IF; -- not installed yet", literal(r.side.versionTable())),
		fmt.Sprintf("REVOKE ALL ON %s FROM %s;", all, others),
		fmt.Sprintf("GRANT SELECT ON %s TO %s;", all, r.quoted(RoleOperator)),
	}
	if r.side == Consumer {
		body = append(
			body,
			fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %s;", strings.Join(r.tables(), ", "), r.quoted(RoleConsumer)),
			fmt.Sprintf("GRANT SELECT ON %s TO %s;", r.side.versionTable(), r.quoted(RoleConsumer)),
		)
		return []string{do("", "  "+strings.Join(body, "\n  ")), r.windows(), r.ahead(), r.buckets(), r.parked(), r.letters()}
	}
	body = append(
		body,
		fmt.Sprintf("GRANT INSERT (%s), SELECT (%s) ON onceward.outbox TO %s;", eventColumns, compareColumns, r.quoted(RoleWriter)),
		fmt.Sprintf("GRANT SELECT ON onceward.outbox, onceward.replays, onceward.controls, %s TO %s;", r.side.versionTable(), r.quoted(RoleRelay)),
		fmt.Sprintf("GRANT SELECT, INSERT, UPDATE ON onceward.relay_state, onceward.dead_letters TO %s;", r.quoted(RoleRelay)),
		fmt.Sprintf("GRANT INSERT (%s) ON onceward.replays TO %s;", replayColumns, r.quoted(RoleOperator)),
		fmt.Sprintf("GRANT INSERT (%s) ON onceward.controls TO %s;", controlColumns, r.quoted(RoleOperator)),
		fmt.Sprintf("GRANT UPDATE (%s) ON onceward.relay_state TO %s;", wordColumns, r.quoted(RoleOperator)),
	)
	return []string{
		do("", "  "+strings.Join(body, "\n  ")), r.results(), r.health(), r.gaps(), r.waiting(), r.decisions(), r.kafka(), r.replays(), r.functions(),
		producersRights(), everybodyElse(),
	}
}

// replays is the right on what schema version 8 brings to onceward.replays.
func (r Roles) replays() string {
	return do("", fmt.Sprintf(`  IF EXISTS (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = pg_catalog.to_regclass('onceward.replays') AND attname = 'dead') THEN
    GRANT INSERT (dead) ON onceward.replays TO %s;
  END IF;`, r.quoted(RoleOperator)))
}

// results are the rights on what schema version 4 brings, which the schema of
// the release before has not. What became of a word is the relay's to say.
func (r Roles) results() string {
	return do("", fmt.Sprintf(`  IF pg_catalog.to_regclass(%[1]s) IS NULL THEN RETURN; END IF;
  REVOKE ALL ON %[2]s FROM %[3]s;
  GRANT SELECT ON %[2]s TO %[4]s;
  GRANT SELECT, INSERT, UPDATE ON %[2]s TO %[5]s;
  GRANT INSERT (payload_null) ON onceward.controls TO %[4]s;`,
		literal(resultsTable), resultsTable, r.quoted(r.All()[1:]...), r.quoted(RoleOperator), r.quoted(RoleRelay)))
}

// health are the rights on what schema version 6 brings: a relay writes how it
// does, and removes what processes that are gone have left.
func (r Roles) health() string {
	return r.written(healthTable)
}

// waiting are the rights on what is held, which came with version 10.
func (r Roles) waiting() string {
	return r.written(waitingTables...)
}

// written are tables that a relay writes and an operator reads.
func (r Roles) written(tables ...string) string {
	return do("", fmt.Sprintf(`  IF pg_catalog.to_regclass(%[1]s) IS NULL THEN RETURN; END IF;
  REVOKE ALL ON %[2]s FROM %[3]s;
  GRANT SELECT ON %[2]s TO %[4]s;
  GRANT SELECT, INSERT, UPDATE, DELETE ON %[2]s TO %[5]s;`,
		literal(tables[0]), strings.Join(tables, ", "), r.quoted(r.All()[1:]...), r.quoted(RoleOperator), r.quoted(RoleRelay)))
}

// gaps are the rights on what schema version 7 brings. What an operator decides
// about gaps and relays goes by functions that came with version 9.
func (r Roles) gaps() string {
	return do("", fmt.Sprintf(`  IF pg_catalog.to_regclass(%[1]s) IS NULL THEN RETURN; END IF;
  REVOKE ALL ON %[2]s FROM %[3]s;
  GRANT SELECT ON %[2]s TO %[4]s;
  GRANT SELECT, INSERT, UPDATE ON onceward.gaps, onceward.published_snapshots TO %[5]s;
  GRANT EXECUTE ON FUNCTION onceward.account(uuid, xid8, bigint) TO %[4]s, %[5]s, %[6]s;`,
		literal(gapTables[0]), strings.Join(gapTables, ", "), r.quoted(r.All()[1:]...), r.quoted(RoleOperator), r.quoted(RoleRelay), r.quoted(RoleMaintainer)))
}

// decisionFunctions came with versions 9 and 15 of the outbox's schema.
var decisionFunctions = []string{
	"onceward.decide_gap(uuid, text, text, text)", "onceward.retire_relay(text, text)",
	"onceward.rest_relay(text, boolean, text[], text)",
}

// decisions are the rights on functions by which an operator decides; who did is the
// database's to say.
func (r Roles) decisions() string {
	var grants []string
	for _, function := range decisionFunctions {
		grants = append(grants, fmt.Sprintf(`  IF pg_catalog.to_regprocedure(%[1]s) IS NOT NULL THEN
    REVOKE ALL ON FUNCTION %[2]s FROM PUBLIC, %[3]s;
    GRANT EXECUTE ON FUNCTION %[2]s TO %[4]s;
  END IF;`, literal(function), function, r.quoted(r.All()[1:]...), r.quoted(RoleOperator)))
	}
	return do("", strings.Join(grants, "\n"))
}

// kafka are the rights on what schema version 11 brings: the relay writes which
// topics it writes to, an operator decides to which cluster it is bound.
func (r Roles) kafka() string {
	const adopt = "onceward.adopt_kafka(text, text, text, text, text)"
	return do("", fmt.Sprintf(`  IF pg_catalog.to_regclass(%[1]s) IS NULL THEN RETURN; END IF;
  REVOKE ALL ON %[2]s FROM %[3]s;
  REVOKE ALL ON FUNCTION %[6]s FROM PUBLIC, %[3]s;
  GRANT SELECT ON %[2]s TO %[4]s;
  GRANT SELECT, INSERT, UPDATE ON %[2]s TO %[5]s;
  GRANT EXECUTE ON FUNCTION %[6]s TO %[4]s;`,
		literal(kafkaTable), kafkaTable, r.quoted(r.All()[1:]...), r.quoted(RoleOperator), r.quoted(RoleRelay), adopt))
}

// windows are the rights on the consumer's side that came with its version 2.
// What an operator decides about letters, fences, claims and windows is written
// down in consumer_actions, under a name that is the database's to say.
func (r Roles) windows() string {
	return do("", fmt.Sprintf(`  IF pg_catalog.to_regclass(%[1]s) IS NULL THEN RETURN; END IF;
  REVOKE ALL ON %[2]s FROM %[3]s;
  GRANT SELECT ON %[2]s TO %[4]s, %[5]s;
  GRANT INSERT, UPDATE, DELETE ON onceward.redeliveries TO %[5]s;
  GRANT INSERT (action, consumer_group, target, reason) ON onceward.consumer_actions TO %[4]s;
  GRANT UPDATE (state, generation, decided_at, decided_by, decided_why, expires_at) ON onceward.consumer_dead_letters TO %[4]s;
  GRANT UPDATE (status, epoch, lease_until, provider_key_until, result, completed_at, expires_at, event, stuck) ON onceward.fences TO %[4]s;
  GRANT INSERT, DELETE ON onceward.processed_events TO %[4]s;
  GRANT UPDATE (time_window, late, replay, retired_at) ON onceward.dedup_windows TO %[4]s;
  GRANT DELETE ON onceward.attempts TO %[4]s;`,
		literal(laterTables[0]), strings.Join(laterTables, ", "), r.quoted(r.All()[1:]...), r.quoted(RoleOperator), r.quoted(RoleConsumer)))
}

// ahead are the rights on the consumer's side that came with its version 4.
func (r Roles) ahead() string {
	return do("", fmt.Sprintf(`  IF pg_catalog.to_regclass(%[1]s) IS NULL THEN RETURN; END IF;
  REVOKE ALL ON %[2]s FROM %[3]s;
  GRANT SELECT, DELETE ON %[2]s TO %[4]s, %[5]s;
  GRANT INSERT, UPDATE ON %[2]s TO %[5]s;
  GRANT UPDATE (retired_at) ON onceward.progress TO %[4]s;`,
		literal(aheadTable), aheadTable, r.quoted(r.All()[1:]...), r.quoted(RoleOperator), r.quoted(RoleConsumer)))
}

// letters is the right on what version 8 of the consumer's schema brings: to forget
// an event is to forget what its letters say of it.
func (r Roles) letters() string {
	return do("", fmt.Sprintf(`  IF EXISTS (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = pg_catalog.to_regclass('onceward.consumer_dead_letters') AND attname = 'claim_id') THEN
    GRANT UPDATE (claim_id) ON onceward.consumer_dead_letters TO %s;
  END IF;`, r.quoted(RoleOperator)))
}

// parked are the rights on the consumer's side that came with its version 7. A row
// is locked, for which PostgreSQL asks for the right to change it.
func (r Roles) parked() string {
	return do("", fmt.Sprintf(`  IF pg_catalog.to_regclass(%[1]s) IS NULL THEN RETURN; END IF;
  REVOKE ALL ON %[2]s FROM %[3]s;
  GRANT SELECT ON %[2]s TO %[4]s, %[5]s;
  GRANT INSERT, UPDATE, DELETE ON %[2]s TO %[5]s;`,
		literal(parkedTable), parkedTable, r.quoted(r.All()[1:]...), r.quoted(RoleOperator), r.quoted(RoleConsumer)))
}

// buckets is the right on what version 6 of the consumer's schema brings.
func (r Roles) buckets() string {
	return do("", fmt.Sprintf(`  IF EXISTS (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = pg_catalog.to_regclass('onceward.dedup_windows') AND attname = 'bucket') THEN
    GRANT UPDATE (bucket, old_bucket, old_until) ON onceward.dedup_windows TO %s;
  END IF;`, r.quoted(RoleOperator)))
}

// enqueueFunctions names the function, in all its forms, by which events are written.
const enqueueFunctions = `SELECT p.oid::regprocedure::text FROM pg_catalog.pg_proc p
    JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = '` + schemaName + `' AND p.proname = 'enqueue'`

// functions: what PostgreSQL lets everybody execute is for those who write.
func (r Roles) functions() string {
	return do("function text;", fmt.Sprintf(`  FOR function IN %s
  LOOP
    EXECUTE 'REVOKE ALL ON FUNCTION ' || function || ' FROM PUBLIC';
    EXECUTE 'GRANT EXECUTE ON FUNCTION ' || function || ' TO %s';
  END LOOP;`, enqueueFunctions, r.quoted(RoleWriter)))
}
