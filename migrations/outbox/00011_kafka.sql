-- +goose Up
-- A relay is bound to the Kafka cluster that it publishes to, as it is to its
-- database: what the account calls published is in that one.
ALTER TABLE onceward.relay_state
  ADD COLUMN kafka_cluster text,                        -- its id; NULL: not known yet, or it has none
  ADD COLUMN kafka_met     text,                        -- the id of another one that answered and was not written to
  ADD COLUMN kafka_gap     boolean NOT NULL DEFAULT false, -- the next session writes down as a gap what no snapshot calls published
  ADD COLUMN routes        text;                        -- a hash of those of the last session

-- The topics that a relay writes to. A topic of another id was deleted and made
-- anew: what was in it is gone.
CREATE TABLE onceward.kafka_topics (
  slot         text        NOT NULL REFERENCES onceward.relay_state (slot) ON DELETE CASCADE,
  topic        text        NOT NULL,
  topic_id     text        NOT NULL,
  records      bigint      NOT NULL,             -- acknowledged to this relay by the topic of this id, as of seen_at
  seen_at      timestamptz NOT NULL,
  remade       integer     NOT NULL DEFAULT 0,   -- how often it was made anew
  remade_at    timestamptz,                      -- when that was seen last
  lost_records bigint,                           -- acknowledged by the one before, as of when it was seen last
  PRIMARY KEY (slot, topic)
);

-- What an operator decides about a relay that met another Kafka. One transaction:
-- the relay is bound to the cluster, whoever runs by that name is fenced, and what
-- is decided is written down in relay_actions. Returns how many events are in doubt.
--   continue       what was published is in that cluster too, the relay's checkpoint with it
--   from-position  what lies behind the position in relay_state is in that cluster too; a checkpoint there does not count
--   gap            nothing is proved to be there: what the account calls published becomes gaps,
--                  and letters that were replayed are open again. What nobody has published
--                  yet the next session writes down as a gap to be repaired.
-- Gaps that nobody decided about, or gave up, or that are older than the relay stay
-- as they are, and the new ones lie between them. SQLSTATE OW006 as in 00009.
-- +goose StatementBegin
CREATE FUNCTION onceward.adopt_kafka(slot text, how text, seen text, cluster text, reason text) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $adopt$
DECLARE
  relay   onceward.relay_state;
  covered pg_snapshot;
  proved  pg_snapshot := '1:1:'::pg_snapshot;
  known   record;
  part    bigint;
  doubted bigint := 0;
  letters bigint := 0;
BEGIN
  IF COALESCE(adopt_kafka.reason, '') = '' THEN
    RAISE EXCEPTION 'a reason is missing' USING ERRCODE = 'invalid_parameter_value';
  ELSIF (adopt_kafka.how IN ('continue', 'from-position', 'gap')) IS NOT TRUE OR COALESCE(adopt_kafka.cluster, '') = '' THEN
    RAISE EXCEPTION 'want continue, from-position or gap, and a cluster' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  -- A relay that starts waits for this row.
  SELECT * INTO relay FROM onceward.relay_state AS r WHERE r.slot = adopt_kafka.slot FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no relay with slot %: `outboxctl status` names them', adopt_kafka.slot USING ERRCODE = 'OW006';
  ELSIF relay.kafka_cluster IS DISTINCT FROM adopt_kafka.seen THEN
    RAISE EXCEPTION 'relay % is bound to Kafka cluster % and not to % any more: look again, `outboxctl status`',
      relay.relay, COALESCE(relay.kafka_cluster, '(none)'), COALESCE(adopt_kafka.seen, '(none)') USING ERRCODE = 'OW006';
  ELSIF relay.kafka_cluster = adopt_kafka.cluster THEN
    RAISE EXCEPTION 'relay % is bound to Kafka cluster % already', relay.relay, adopt_kafka.cluster USING ERRCODE = 'OW006';
  ELSIF EXISTS (SELECT FROM pg_catalog.pg_replication_slots AS p WHERE p.slot_name = adopt_kafka.slot AND p.active) THEN
    RAISE EXCEPTION 'a process streams from slot % and publishes to the cluster that it is bound to: stop it first', adopt_kafka.slot
      USING ERRCODE = 'OW006';
  END IF;
  SELECT p.snapshot INTO covered FROM onceward.published_snapshots AS p WHERE p.slot = adopt_kafka.slot;
  IF adopt_kafka.how = 'gap' AND covered IS NOT NULL THEN
    UPDATE onceward.dead_letters AS d
      SET state = 'open', holds = false, retry_position = NULL, retry_index = NULL, last_at = pg_catalog.clock_timestamp(),
        error = 'replayed to another Kafka cluster than the relay is bound to now; it was: ' || d.error
      WHERE d.slot = adopt_kafka.slot AND d.state = 'replayed' AND EXISTS (SELECT FROM onceward.outbox AS o WHERE o.id = d.letter_id);
    GET DIAGNOSTICS letters = ROW_COUNT;
    -- What a release has ended, and nobody has forgotten yet, is in the old cluster.
    DELETE FROM onceward.releases AS e WHERE e.slot = adopt_kafka.slot;
    UPDATE onceward.gaps AS g SET cursor = 0 WHERE g.slot = adopt_kafka.slot AND g.state = 'repairing';
    FOR known IN
      SELECT w.from_snapshot, w.to_snapshot FROM (
        SELECT g.from_snapshot, g.to_snapshot, g.found_at FROM onceward.gaps AS g WHERE g.slot = adopt_kafka.slot AND g.state <> 'repaired'
        UNION ALL SELECT covered, covered, 'infinity'::timestamptz) AS w
      ORDER BY pg_catalog.pg_snapshot_xmax(w.to_snapshot), pg_catalog.pg_snapshot_xmin(w.to_snapshot), w.found_at
    LOOP
      SELECT pg_catalog.count(*) INTO part FROM onceward.outbox AS o
        CROSS JOIN LATERAL onceward.account(o.id, o.tx_id, o.seq) AS a (slot, relay, state, gap_id, snapshot_at)
        WHERE a.slot = adopt_kafka.slot AND a.state = 'published'
          AND pg_catalog.pg_visible_in_snapshot(o.tx_id, known.from_snapshot) AND NOT pg_catalog.pg_visible_in_snapshot(o.tx_id, proved);
      IF part > 0 THEN
        INSERT INTO onceward.gaps (gap_id, slot, cause, detail, from_snapshot, to_snapshot, events, state)
          VALUES (pg_catalog.gen_random_uuid(), adopt_kafka.slot, 'OTHER_KAFKA', pg_catalog.format('published to Kafka cluster %s, and not proved to be in cluster %s',
            COALESCE(relay.kafka_cluster, '(not known)'), adopt_kafka.cluster), proved, known.from_snapshot, part, 'open');
        doubted := doubted + part;
      END IF;
      proved := known.to_snapshot;
    END LOOP;
  END IF;
  DELETE FROM onceward.kafka_topics AS t WHERE t.slot = adopt_kafka.slot;
  UPDATE onceward.relay_state AS r
    SET kafka_cluster = adopt_kafka.cluster, kafka_met = NULL, epoch = r.epoch + 1, updated_at = pg_catalog.clock_timestamp(),
      kafka_gap = r.kafka_gap OR adopt_kafka.how = 'gap' AND covered IS NOT NULL,
      mode = CASE adopt_kafka.how WHEN 'continue' THEN r.mode ELSE 'idempotent' END
    WHERE r.slot = adopt_kafka.slot;
  INSERT INTO onceward.relay_actions (action, slot, target, reason)
    VALUES ('adopt kafka ' || adopt_kafka.how, adopt_kafka.slot, pg_catalog.format('from cluster %s to %s: %s events in doubt, %s dead letters open again',
      COALESCE(relay.kafka_cluster, '(not known)'), adopt_kafka.cluster, doubted, letters), adopt_kafka.reason);
  RETURN doubted;
END
$adopt$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION onceward.adopt_kafka(text, text, text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION onceward.adopt_kafka(text, text, text, text, text) IS
  'Binds a relay to another Kafka cluster: continue, from-position or gap. Written down in relay_actions. Returns how many events are in doubt.';

-- +goose Down
DROP FUNCTION onceward.adopt_kafka(text, text, text, text, text);
DROP TABLE onceward.kafka_topics;
ALTER TABLE onceward.relay_state DROP COLUMN kafka_cluster, DROP COLUMN kafka_met, DROP COLUMN kafka_gap, DROP COLUMN routes;
