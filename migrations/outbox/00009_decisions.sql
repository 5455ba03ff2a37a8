-- +goose Up
-- What operators decide about gaps and relays goes by these functions: only the
-- transitions that are meant, and always with who took the decision and why. They
-- have the owner's rights, because the rows are not the operator's to write.
-- SQLSTATE OW006: what is decided about is not as it was when the operator looked.

-- +goose StatementBegin
CREATE FUNCTION onceward.decide_gap(gap_id uuid, expected text, decision text, reason text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $decide$
DECLARE
  gap onceward.gaps;
BEGIN
  IF COALESCE(decide_gap.reason, '') = '' THEN
    RAISE EXCEPTION 'a reason is missing' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF (decide_gap.decision = 'repairing' AND decide_gap.expected IN ('open', 'accepted', 'before')
      OR decide_gap.decision = 'accepted' AND decide_gap.expected = 'open') IS NOT TRUE THEN
    RAISE EXCEPTION 'a gap that is % cannot be made %', decide_gap.expected, decide_gap.decision USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT * INTO gap FROM onceward.gaps AS g WHERE g.gap_id = decide_gap.gap_id FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no gap %: `outboxctl gap list --all` names them', decide_gap.gap_id USING ERRCODE = 'OW006';
  ELSIF gap.state <> decide_gap.expected THEN
    RAISE EXCEPTION 'gap % is % and not % any more: look again, `outboxctl gap show %`', decide_gap.gap_id, gap.state, decide_gap.expected, decide_gap.gap_id
      USING ERRCODE = 'OW006';
  END IF;
  UPDATE onceward.gaps AS g
    SET state = decide_gap.decision, decided_by = session_user, decided_why = decide_gap.reason, decided_at = pg_catalog.clock_timestamp()
    WHERE g.gap_id = decide_gap.gap_id;
  INSERT INTO onceward.relay_actions (action, slot, target, reason)
    VALUES (CASE decide_gap.decision WHEN 'accepted' THEN 'gap accept' ELSE 'gap repair' END, gap.slot,
      pg_catalog.format('gap %s, %s, %s events when it was found', decide_gap.gap_id, gap.state, gap.events), decide_gap.reason);
  RETURN decide_gap.decision;
END
$decide$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION onceward.decide_gap(uuid, text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION onceward.decide_gap(uuid, text, text, text) IS
  'Decides about a gap that is in the state expected: repairing or accepted. Written down in relay_actions. Returns the new state.';

-- Nobody obeys orders about the letters of a relay that is gone, and retention
-- would wait for them for ever: they are discarded with it.
-- +goose StatementBegin
CREATE FUNCTION onceward.retire_relay(slot text, reason text) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $retire$
DECLARE
  relay_name text;
  letters    bigint;
BEGIN
  IF COALESCE(retire_relay.reason, '') = '' THEN
    RAISE EXCEPTION 'a reason is missing' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  -- A relay that starts waits for this row, and finds itself forgotten.
  SELECT r.relay INTO relay_name FROM onceward.relay_state AS r WHERE r.slot = retire_relay.slot FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no relay with slot %: `outboxctl status` names them', retire_relay.slot USING ERRCODE = 'OW006';
  ELSIF EXISTS (SELECT FROM pg_catalog.pg_replication_slots AS p WHERE p.slot_name = retire_relay.slot) THEN
    RAISE EXCEPTION 'slot % exists: drop it first (SELECT pg_catalog.pg_drop_replication_slot(%);), and make sure that no relay uses it',
      retire_relay.slot, pg_catalog.quote_literal(retire_relay.slot) USING ERRCODE = 'OW006';
  END IF;
  UPDATE onceward.dead_letters AS d
    SET state = 'discarded', retry_position = NULL, retry_index = NULL, decided_by = session_user, decided_why = retire_relay.reason,
      last_at = pg_catalog.clock_timestamp()
    WHERE d.slot = retire_relay.slot AND d.state IN ('open', 'retrying');
  GET DIAGNOSTICS letters = ROW_COUNT;
  DELETE FROM onceward.gaps AS g WHERE g.slot = retire_relay.slot;
  DELETE FROM onceward.published_snapshots AS p WHERE p.slot = retire_relay.slot;
  DELETE FROM onceward.relay_state AS r WHERE r.slot = retire_relay.slot;
  INSERT INTO onceward.relay_actions (action, slot, target, reason)
    VALUES ('retire', retire_relay.slot, pg_catalog.format('relay %s, %s dead letters discarded', relay_name, letters), retire_relay.reason);
  RETURN letters;
END
$retire$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION onceward.retire_relay(text, text) FROM PUBLIC;
COMMENT ON FUNCTION onceward.retire_relay(text, text) IS
  'Forgets a relay whose slot is gone, and discards its dead letters that wait. Written down in relay_actions. Returns how many it discarded.';

-- +goose Down
DROP FUNCTION onceward.retire_relay(text, text);
DROP FUNCTION onceward.decide_gap(uuid, text, text, text);
