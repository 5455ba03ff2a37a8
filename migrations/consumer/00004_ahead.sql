-- +goose Up
-- Offsets beyond the group's mark whose events were applied and claimed in a way that a later delivery may not find: by
-- arrival, or so far behind stream time that the floor passes them before the mark does. A save of the mark removes them.
CREATE TABLE onceward.ahead (
  consumer_group  text    NOT NULL,
  topic           text    NOT NULL,
  kafka_partition integer NOT NULL,
  kafka_offset    bigint  NOT NULL,
  event_id        uuid    NOT NULL,          -- another one: the topic was made anew, and the row says nothing
  PRIMARY KEY (consumer_group, topic, kafka_partition, kafka_offset)
);

-- When an operator said that the group does not read the topic any more. The mark stays, and stream time goes on without it:
-- a mark that was forgotten would have the topic applied again from its beginning, should the group ever read it again.
ALTER TABLE onceward.progress ADD COLUMN retired_at timestamptz;

-- +goose Down
ALTER TABLE onceward.progress DROP COLUMN retired_at;
DROP TABLE onceward.ahead;
