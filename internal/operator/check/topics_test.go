package check

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onceward/onceward/publisher"
)

// TestNoWarningOfATopicHidesAnother: each that applies is given, what loses events first.
func TestNoWarningOfATopicHidesAnother(t *testing.T) {
	well := publisher.TopicReport{Name: "t", Partitions: 12, Replicas: 3, MinInSync: 2}
	all := publisher.TopicReport{Name: "t", Partitions: 12, Replicas: 1, MinInSync: 1, Unclean: true, Compacted: true, Narrow: true, Cure: "widen it"}
	kept := well
	kept.Compacted, kept.MinInSync, kept.Unclean = true, 1, true
	unread := well
	unread.MinInSync = 0
	for _, c := range []struct {
		report publisher.TopicReport
		want   []string
	}{
		{well, []string{""}},
		{unread, []string{""}},
		{publisher.TopicReport{Name: "t", Missing: true}, []string{""}},
		{kept, []string{codeUnclean, codeMinInSync, codeCompacted}},
		{all, []string{codeUnclean, codeFewReplicas, codeMinInSync, codeCompacted, codeNarrow}},
	} {
		require.Equal(t, c.want, codes(t, topicVerdicts(c.report), "topic t"))
	}
	require.Contains(t, topicVerdicts(kept)[1].Cure, "set min.insync.replicas=2", "at once")
	require.Contains(t, topicVerdicts(all)[2].Cure, "once it has 3 replicas, set min.insync.replicas=2", "before, nobody could write")
}

// codes are those of verdicts about one topic, each of which says what mends it.
func codes(t *testing.T, verdicts []Verdict, name string) (found []string) {
	t.Helper()
	for _, v := range verdicts {
		if v.Name != name {
			continue
		}
		require.Equal(t, v.Code != "", v.Status == Warning, "%+v", v)
		require.Equal(t, v.Code != "", v.Cure != "", "%+v", v)
		found = append(found, v.Code)
	}
	return found
}

// TestWhatExactlyOnceStandsOn: the topics that hold its position and its transactions are
// judged as the events' are; a checkpoint's topic that cannot be used says that alone.
func TestWhatExactlyOnceStandsOn(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	sink := publisher.Config{Brokers: cluster.ListenAddrs(), Insecure: true, Routes: []publisher.Route{{Topic: "t"}}}
	const checkpoint, offsets, state = "topic " + publisher.DefaultCheckpointTopic, "topic __consumer_offsets", "topic __transaction_state"
	well, unusable := Verdict{Name: checkpoint, Status: OK}, Verdict{Name: checkpoint, Status: Failed, Code: "CHECKPOINT_TOPIC", Cure: "make it"}
	found := positionVerdicts(t.Context(), sink, unusable)
	require.Equal(t, unusable, found[0])
	require.Equal(t, []string{""}, codes(t, found, offsets), "the brokers make it")

	loose := map[string]string{"unclean.leader.election.enable": "true", "min.insync.replicas": "1", "cleanup.policy": "compact"}
	kept := map[string]string{"min.insync.replicas": "2", "cleanup.policy": "compact"}
	require.NoError(t, cluster.CreateTopic(publisher.DefaultCheckpointTopic, 2, loose))
	require.NoError(t, cluster.CreateTopic("__consumer_offsets", 50, loose))
	require.NoError(t, cluster.CreateTopic("__transaction_state", 50, kept))
	found = positionVerdicts(t.Context(), sink, well)
	require.Equal(t, []string{codeUnclean, codeMinInSync}, codes(t, found, checkpoint))
	require.Contains(t, found[0].Detail, "exactly once stands on it")
	require.Equal(t, []string{codeUnclean, codeMinInSync}, codes(t, found, offsets))
	require.Equal(t, []string{""}, codes(t, found, state))
	require.Equal(t, unusable, positionVerdicts(t.Context(), sink, unusable)[0])
}
