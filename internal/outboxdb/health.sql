-- name: HealthAllowed :one
-- HealthAllowed says whether this role may write the table of health.
SELECT (pg_catalog.has_table_privilege(t.oid, 'SELECT') AND pg_catalog.has_table_privilege(t.oid, 'INSERT')
  AND pg_catalog.has_table_privilege(t.oid, 'UPDATE') AND pg_catalog.has_table_privilege(t.oid, 'DELETE'))::boolean AS allowed
FROM (SELECT 'onceward.relay_health'::regclass::oid AS oid) t;

-- name: SaveHealth :exec
-- SaveHealth writes how a process does.
INSERT INTO onceward.relay_health (slot, process, relay, state, since, code, detail, waits)
VALUES (@slot, @process, @relay, @state, @since, @code, @detail, @waits)
ON CONFLICT (slot, process) DO UPDATE
SET relay = EXCLUDED.relay, state = EXCLUDED.state, since = EXCLUDED.since, code = EXCLUDED.code, detail = EXCLUDED.detail, waits = EXCLUDED.waits,
  written_at = pg_catalog.clock_timestamp();

-- name: HasHealth :one
-- HasHealth says whether a process has its row still.
SELECT EXISTS (SELECT FROM onceward.relay_health WHERE slot = @slot AND process = @process)::boolean AS found;

-- name: RemoveHealth :exec
-- RemoveHealth removes a process that has ended.
DELETE FROM onceward.relay_health WHERE slot = @slot AND process = @process;

-- name: RemoveDeadHealth :exec
-- RemoveDeadHealth removes the processes of a slot that live no more. The owner of the slot does it.
DELETE FROM onceward.relay_health h
WHERE h.slot = @slot AND h.process <> @process AND NOT EXISTS (
  SELECT FROM pg_catalog.pg_stat_activity a WHERE a.datname = pg_catalog.current_database() AND a.application_name = 'onceward process ' || h.process);

-- name: SlotActive :one
-- SlotActive returns the process that streams from the slot, or has the lock of those that begin on it; 0: nobody, or there is no slot.
-- Anybody who may log in can take such a lock; the role of a relay is who counts.
SELECT COALESCE((SELECT p.active_pid FROM pg_catalog.pg_replication_slots p WHERE p.slot_name = @slot::text AND p.database = pg_catalog.current_database()),
  (SELECT l.pid FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_database d ON d.oid = l.database AND d.datname = pg_catalog.current_database()
    JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid AND pg_catalog.has_table_privilege(a.usesysid, 'onceward.relay_state', 'UPDATE')
    WHERE l.locktype = 'advisory' AND l.granted AND l.classid = 1870094951 AND l.objid = pg_catalog.hashtext(@slot::text)::oid AND l.objsubid = 2
      AND l.pid <> pg_catalog.pg_backend_pid()), 0)::int AS pid;

-- name: SlotStranger :one
-- SlotStranger returns the session that holds the slot, where it is of no relay of that slot: theirs say so by their application_name,
-- of which PostgreSQL keeps 63 bytes.
SELECT a.pid::int AS pid, a.application_name::text AS application, COALESCE(a.usename, '')::text AS role
FROM pg_catalog.pg_replication_slots p JOIN pg_catalog.pg_stat_activity a ON a.pid = p.active_pid
WHERE p.slot_name = @slot::text AND p.database = pg_catalog.current_database() AND a.application_name <> pg_catalog.left('onceward relay ' || @slot::text, 63);

-- name: BeginningStranger :one
-- BeginningStranger returns who has the lock of those that begin on the slot, and cannot be a relay.
SELECT a.pid::int AS pid, COALESCE(a.usename, '')::text AS role
FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_database d ON d.oid = l.database AND d.datname = pg_catalog.current_database()
JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid AND NOT pg_catalog.has_table_privilege(a.usesysid, 'onceward.relay_state', 'UPDATE')
WHERE l.locktype = 'advisory' AND l.granted AND l.classid = 1870094951 AND l.objid = pg_catalog.hashtext(@slot::text)::oid AND l.objsubid = 2;

-- name: LockBeginning :one
-- LockBeginning makes this session the one that begins on a slot: until UnlockBeginning, its end, or a minute in which it asks for nothing,
-- as when its process stands still.
SELECT pg_catalog.pg_try_advisory_lock(1870094951, pg_catalog.hashtext(@slot::text))::boolean AS ours, pg_catalog.set_config('idle_session_timeout', '60s', false) AS bound;

-- name: UnlockBeginning :one
-- UnlockBeginning lets others begin on the slot; false: the lock was not this session's.
SELECT (pg_catalog.pg_advisory_unlock(1870094951, pg_catalog.hashtext(@slot::text)) AND pg_catalog.set_config('idle_session_timeout', '0', false) = '0')::boolean AS ours;

-- name: RelayHealth :many
-- RelayHealth lists how every relay process of this database does, and whether it lives.
SELECT h.slot, h.process, h.relay, h.state, h.since, h.code, h.detail, h.waits, h.written_at,
  EXISTS (SELECT FROM pg_catalog.pg_stat_activity a WHERE a.datname = pg_catalog.current_database() AND a.application_name = 'onceward process ' || h.process)::boolean AS alive
FROM onceward.relay_health h ORDER BY h.slot, h.process;

-- name: SlotsElsewhere :many
-- SlotsElsewhere lists the slots that have the name of a relay of this database and are of another database of the server.
SELECT p.slot_name::text AS slot, p.database::text AS database FROM pg_catalog.pg_replication_slots p
WHERE p.slot_name IN (SELECT r.slot FROM onceward.relay_state r) AND p.database <> pg_catalog.current_database() ORDER BY p.slot_name;
