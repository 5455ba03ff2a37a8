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
