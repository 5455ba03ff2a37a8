//go:build e2e

package consumer_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
)

// TestSaveDemandsWhatWasSaved (W1): within one history, a mark that is gone or lower
// than it was read or saved ends the session; one that another member has raised
// does not.
func TestSaveDemandsWhatWasSaved(t *testing.T) {
	e := newEnv(t, nil)
	r := e.router("billing", effect("billing"))
	save := func(high int64) error {
		return r.SaveProgress(t.Context(), must(r.Progress(t.Context())).History, []consumer.Mark{{Topic: "orders", High: high}})
	}
	history := must(r.Progress(t.Context())).History
	again := func(high int64) error {
		return r.SaveProgress(t.Context(), history, []consumer.Mark{{Topic: "orders", High: high}, {Topic: "orders", Partition: 1, High: high}})
	}
	high := func() int {
		return count(t, e.db, "SELECT COALESCE(sum(high_offset), -1) FROM onceward.progress WHERE kafka_partition = 0")
	}
	require.NoError(t, again(20))
	exec(t, e.db, "UPDATE onceward.progress SET high_offset = 22")
	require.NoError(t, again(21), "another member was further")
	require.Equal(t, 22, high())

	exec(t, e.db, "UPDATE onceward.progress SET high_offset = 20 WHERE kafka_partition = 0")
	require.ErrorIs(t, again(25), consumer.ErrHistory, "21 was saved")
	require.Equal(t, 20, high())
	require.Zero(t, count(t, e.db, "SELECT count(*) FROM onceward.progress WHERE high_offset = 25"), "of no partition")
	require.NoError(t, save(25), "with what is there now")

	exec(t, e.db, "DELETE FROM onceward.progress")
	require.ErrorIs(t, again(26), consumer.ErrHistory)
	require.Equal(t, -1, high())
	require.NoError(t, save(27))
}

// TestMarksOfTopics (A5, W2): the mark of each topic id stands for itself; that of the
// topic before stays, outside of stream time, and comes back with the topic.
func TestMarksOfTopics(t *testing.T) {
	e := newEnv(t, nil)
	r := e.router("billing", effect("billing"))
	now, old, made := time.Now().Truncate(time.Millisecond), uuid.New(), uuid.New()
	begin := func(id uuid.UUID, high int64) {
		t.Helper()
		require.NoError(t, r.BeginProgress(t.Context(), must(r.Progress(t.Context())).History, []consumer.Mark{{Topic: "orders", TopicID: id, High: high}}))
	}
	marks := func() (all []consumer.Mark) {
		all = must(r.Progress(t.Context())).Marks
		for i := range all {
			all[i].Low, all[i].FinishedTime = 0, time.Time{}
		}
		return all
	}
	history := must(r.Progress(t.Context())).History
	require.NoError(t, r.SaveProgress(t.Context(), history, []consumer.Mark{{Topic: "orders", High: 5_000_000, FinishedTime: now}}))
	begin(old, 4)
	require.Equal(t, []consumer.Mark{{Topic: "orders", TopicID: old, High: 5_000_000}}, marks(), "the id was not known before")

	begin(made, -1)
	require.Equal(t, []consumer.Mark{{Topic: "orders", TopicID: made, High: -1}, {Topic: "orders", TopicID: old, High: 5_000_000, Retired: true}}, marks())
	require.Zero(t, count(t, e.db, "SELECT count(*) FROM onceward.progress WHERE retired_at IS NULL AND finished_time IS NOT NULL"), "stream time waits for the new one")
	require.NoError(t, r.SaveProgress(t.Context(), history, []consumer.Mark{{Topic: "orders", TopicID: old, High: 5_000_001}}), "a member that does not know yet")
	require.Equal(t, consumer.Mark{Topic: "orders", TopicID: old, High: 5_000_001, Retired: true}, marks()[1])

	begin(old, 4) // back on the cluster of before
	require.Equal(t, []consumer.Mark{{Topic: "orders", TopicID: old, High: 5_000_001}, {Topic: "orders", TopicID: made, High: -1, Retired: true}}, marks())

	exec(t, e.db, "UPDATE onceward.progress SET retired_at = now()") // by an operator
	begin(made, 2)
	require.Equal(t, []consumer.Mark{{Topic: "orders", TopicID: made, High: 2}, {Topic: "orders", TopicID: old, High: 5_000_001, Retired: true}}, marks())
}

// TestMarksOfPartitionsThatAreNoMore: a topic that was made anew with fewer partitions leaves no mark
// in stream time, whoever begins first and whatever a member saves that has not noticed; another
// topic's marks, those of an unknown id, and those of the same topic stay.
func TestMarksOfPartitionsThatAreNoMore(t *testing.T) {
	e := newEnv(t, nil)
	r := e.router("billing", effect("billing"))
	now, old, made := time.Now().Truncate(time.Millisecond), uuid.New(), uuid.New()
	history := must(r.Progress(t.Context())).History
	marks := func(id uuid.UUID, partitions ...int32) (all []consumer.Mark) {
		for _, p := range partitions {
			all = append(all, consumer.Mark{Topic: "orders", Partition: p, TopicID: id, High: 4, FinishedTime: now})
		}
		return all
	}
	begin := func(id uuid.UUID, partitions ...int32) {
		t.Helper()
		require.NoError(t, r.BeginProgress(t.Context(), history, marks(id, partitions...)))
	}
	counted := func(id uuid.UUID) (n int) {
		return count(t, e.db, "SELECT count(*) FROM onceward.progress WHERE topic = 'orders' AND topic_id = $1 AND retired_at IS NULL", id)
	}
	require.NoError(t, r.BeginProgress(t.Context(), history, []consumer.Mark{{Topic: "mails", Partition: 3, TopicID: uuid.New(), High: 4}}))
	begin(old, 0, 1)
	begin(old, 2, 3)
	begin(old, 0, 4) // it got a partition more
	require.Equal(t, 5, counted(old))

	begin(made, 0)
	require.Zero(t, counted(old), "also of partitions that nobody begins with any more")
	require.NoError(t, r.SaveProgress(t.Context(), history, marks(old, 1, 3)), "a member that has not noticed")
	require.Zero(t, counted(old))
	begin(made, 1)
	require.Equal(t, 2, counted(made))
	require.Equal(t, 1, count(t, e.db, "SELECT count(*) FROM onceward.progress WHERE topic = 'mails' AND retired_at IS NULL"))

	begin(uuid.Nil, 2) // of which topic nobody knows
	require.Equal(t, 2, counted(made))
	begin(made, 0, 1)
	require.Equal(t, 1, counted(uuid.Nil), "it may be the one of now")
	begin(made, 2)
	require.Equal(t, 3, counted(made))
	require.Zero(t, counted(uuid.Nil))

	begin(old, 0, 1, 2) // back on the cluster of before
	require.Zero(t, counted(made))
	begin(old, 3, 4)
	require.Equal(t, 5, counted(old))
}

// TestOffsetResetIsDuplicates (C4): records at offsets that the marks prove finished
// make no letters when the group's offset is set back, however old they are; without
// that proof they do.
func TestOffsetResetIsDuplicates(t *testing.T) {
	t.Parallel()
	b := newBelow(t, nil, consumer.Class{}, 30)
	topic := uuid.New()
	exec(t, b.db, "UPDATE onceward.progress SET high_offset = 2999, topic_id = $1", topic)
	at := func(id uuid.UUID, offset int64) consumer.Event {
		ev := b.event(offset)
		ev.Source.TopicID = id
		return ev
	}
	for offset := range int64(2990) {
		ev := at(topic, offset)
		require.NoError(t, b.deliver(ev, consumer.Duplicate))
	}
	var batch []consumer.Event
	for offset := int64(2990); offset < 3000; offset++ {
		ev := at(topic, offset)
		ev.Type = "Moved"
		batch = append(batch, ev)
	}
	for _, d := range b.router.HandleBatch(t.Context(), batch) {
		require.NoError(t, d.Err)
		require.Equal(t, consumer.Duplicate, d.Outcome)
	}
	require.NoError(t, b.left(0, ""))

	require.NoError(t, b.deliver(at(uuid.Nil, 1), consumer.DeadLettered), "of what topic it is nobody knows")
	require.NoError(t, b.deliver(at(uuid.New(), 2), consumer.Processed), "the topic was made anew: it was never seen")
	require.NoError(t, b.deliver(at(topic, 3000), consumer.Processed))
	repair := at(topic, 5)
	repair.RepairID = uuid.New()
	require.NoError(t, b.deliver(repair, consumer.DeadLettered))
	require.NoError(t, b.left(2, "replay 1, replay 5"))
	exec(t, b.db, "UPDATE onceward.progress SET topic_id = '00000000-0000-0000-0000-000000000000'")
	require.NoError(t, b.deliver(at(topic, 6), consumer.DeadLettered), "the mark is of an unknown one")
}

// A class that applies replays by its policy goes on doing so.
func TestOffsetResetWithReplays(t *testing.T) {
	t.Parallel()
	b := newBelow(t, nil, consumer.Class{Replay: consumer.ReplayProcess}, 30)
	topic := uuid.New()
	exec(t, b.db, "UPDATE onceward.progress SET topic_id = $1", topic)
	ev := b.event(1)
	ev.Source.TopicID = topic
	require.NoError(t, b.deliver(ev, consumer.Processed))
	require.True(t, b.seen[0].Unprotected)
}
