-- +goose Up
-- Nobody says what he may not: who orders a replay names an event, and its content
-- is the database's to fill in. Producers that are bound to a namespace are made by
-- `outboxctl migrate roles --producer`, not by a migration.

-- Behind one who waits for this lock the operators wait: give way soon. migrate up tries again.
SET LOCAL lock_timeout = '2s';

ALTER TABLE onceward.replays ADD COLUMN dead boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN onceward.replays.dead IS 'The content is that of a dead letter which was discarded (or waits, where a topic is named), not of the event''s row.';
CREATE INDEX dead_letters_letter ON onceward.dead_letters (letter_id);

-- The owner's rights, because the content may not be the caller's to write. A letter
-- that was published comes before the row: it may have been edited. A letter of a
-- replay is not an event, and its id none of an event.
-- +goose StatementBegin
CREATE FUNCTION onceward.fill_replay() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $fill$
BEGIN
  IF TG_RELID <> 'onceward.replays'::pg_catalog.regclass THEN
    RAISE EXCEPTION 'onceward.fill_replay is the trigger of onceward.replays only' USING ERRCODE = 'insufficient_privilege';
  END IF;
  IF NEW.namespace IS NOT NULL THEN
    RETURN NEW; -- written whole, as only the owner of the table may
  END IF;
  SELECT d.namespace, d.aggregate_type, d.aggregate_id, d.event_type, d.payload, d.content_type, d.headers, d.traceparent, d.created_at
    INTO NEW.namespace, NEW.aggregate_type, NEW.aggregate_id, NEW.event_type, NEW.payload, NEW.content_type, NEW.headers, NEW.traceparent, NEW.created_at
    FROM onceward.dead_letters AS d
    WHERE d.letter_id = NEW.id AND d.replay_of IS NULL
      AND CASE WHEN NEW.dead THEN d.state = 'discarded' OR (d.state = 'open' AND NEW.topic IS NOT NULL) ELSE d.state = 'replayed' END
    ORDER BY d.edited_at DESC NULLS LAST, d.slot LIMIT 1;
  IF FOUND THEN
    RETURN NEW;
  ELSIF NEW.dead THEN
    RAISE EXCEPTION 'no dead letter of event % can be replayed: it was not discarded', NEW.id
      USING ERRCODE = 'OW005', HINT = 'One that waits can be replayed to another topic only; outboxctl dead show tells how it stands.';
  END IF;
  SELECT o.namespace, o.aggregate_type, o.aggregate_id, o.event_type, o.payload, o.content_type, o.headers, o.traceparent, o.created_at
    INTO NEW.namespace, NEW.aggregate_type, NEW.aggregate_id, NEW.event_type, NEW.payload, NEW.content_type, NEW.headers, NEW.traceparent, NEW.created_at
    FROM onceward.outbox AS o WHERE o.id = NEW.id;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no event % in onceward.outbox to replay', NEW.id
      USING ERRCODE = 'OW005', HINT = 'It does not exist, or was dropped with its day; outboxctl show tells more.';
  END IF;
  RETURN NEW;
END
$fill$;
-- +goose StatementEnd
-- Whoever may execute it could make it the trigger of a table of his own.
REVOKE ALL ON FUNCTION onceward.fill_replay() FROM PUBLIC;
CREATE TRIGGER onceward_fill BEFORE INSERT ON onceward.replays FOR EACH ROW EXECUTE FUNCTION onceward.fill_replay();

-- +goose Down
DROP TRIGGER onceward_fill ON onceward.replays;
DROP FUNCTION onceward.fill_replay();
DROP INDEX onceward.dead_letters_letter;
ALTER TABLE onceward.replays DROP COLUMN dead;
