-- +goose Up
-- A topic that was deleted and made anew, or moved to another cluster, counts its offsets anew: what a mark says holds for one
-- topic id only. Zero: not known, as of a broker before Kafka 2.8, and of rows of an earlier release, which the next session
-- gives the id that it sees. The row of an earlier id is retired, and stays.
ALTER TABLE onceward.progress ADD COLUMN topic_id uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000';
ALTER TABLE onceward.progress DROP CONSTRAINT progress_pkey;
ALTER TABLE onceward.progress ADD CONSTRAINT progress_pkey PRIMARY KEY (consumer_group, topic, kafka_partition, topic_id);

ALTER TABLE onceward.ahead ADD COLUMN topic_id uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000';
ALTER TABLE onceward.ahead DROP CONSTRAINT ahead_pkey;
ALTER TABLE onceward.ahead ADD CONSTRAINT ahead_pkey PRIMARY KEY (consumer_group, topic, kafka_partition, kafka_offset, topic_id);

-- The session that has a partition, until its clean end; a session that finds another one's was preceded by a crash. And the
-- offset up to which messages were read, where the crash may lie.
ALTER TABLE onceward.progress ADD COLUMN open_by text;
ALTER TABLE onceward.progress ADD COLUMN read_offset bigint NOT NULL DEFAULT 0;
-- How often, after a crash, the handling of the event was begun and did not come back.
ALTER TABLE onceward.attempts ADD COLUMN starts integer NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE onceward.attempts DROP COLUMN starts;
ALTER TABLE onceward.progress DROP COLUMN read_offset, DROP COLUMN open_by;

DELETE FROM onceward.ahead a WHERE EXISTS (SELECT FROM onceward.ahead o WHERE (o.consumer_group, o.topic, o.kafka_partition, o.kafka_offset)
  = (a.consumer_group, a.topic, a.kafka_partition, a.kafka_offset) AND o.topic_id > a.topic_id);
ALTER TABLE onceward.ahead DROP CONSTRAINT ahead_pkey;
ALTER TABLE onceward.ahead DROP COLUMN topic_id;
ALTER TABLE onceward.ahead ADD CONSTRAINT ahead_pkey PRIMARY KEY (consumer_group, topic, kafka_partition, kafka_offset);

DELETE FROM onceward.progress p WHERE EXISTS (SELECT FROM onceward.progress o WHERE (o.consumer_group, o.topic, o.kafka_partition)
  = (p.consumer_group, p.topic, p.kafka_partition) AND (o.retired_at IS NULL, o.updated_at, o.topic_id) > (p.retired_at IS NULL, p.updated_at, p.topic_id));
ALTER TABLE onceward.progress DROP CONSTRAINT progress_pkey;
ALTER TABLE onceward.progress DROP COLUMN topic_id;
ALTER TABLE onceward.progress ADD CONSTRAINT progress_pkey PRIMARY KEY (consumer_group, topic, kafka_partition);
