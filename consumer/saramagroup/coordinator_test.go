package saramagroup_test

import (
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

// TestCoordinatorMoved: the client for questions holds a broker for the group's coordinator
// that is it no more, and lives. sarama's own has learnt of that; a session that begins asks
// for the new one, and not the old one for ever.
func TestCoordinatorMoved(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(10)
		var synced, refused atomic.Bool
		var asked atomic.Int32
		k.cluster.ControlKey(int16(kmsg.SyncGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
			k.cluster.KeepControl()
			synced.Store(true)
			return nil, nil, false
		})
		other := 1 - k.cluster.CoordinatorFor("billing")
		host, text, err := net.SplitHostPort(k.cluster.ListenAddrs()[other])
		require.NoError(t, err)
		port, err := strconv.Atoi(text)
		require.NoError(t, err)
		k.cluster.ControlKey(int16(kmsg.FindCoordinator), func(req kmsg.Request) (kmsg.Response, error, bool) {
			k.cluster.KeepControl()
			if !synced.Load() || asked.Add(1) != 2 { // the first question is sarama's own
				return nil, nil, false
			}
			answer := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
			answer.NodeID, answer.Host, answer.Port = other, host, int32(port)
			answer.Coordinators = []kmsg.FindCoordinatorResponseCoordinator{{Key: "billing", NodeID: other, Host: host, Port: int32(port)}}
			return answer, nil, true
		})
		k.cluster.ControlKey(int16(kmsg.OffsetFetch), func(kmsg.Request) (kmsg.Response, error, bool) {
			k.cluster.KeepControl()
			if k.cluster.CurrentNode() == other {
				refused.Store(true)
			}
			return nil, nil, false
		})
		h := newHandler(nil)
		stop, _ := k.run(h, defect{})
		_, err = h.await(20)
		require.NoError(t, err)
		<-time.After(2 * time.Second)
		require.NoError(t, stop())
		require.True(t, refused.Load())
		require.Equal(t, [2]int64{10, 10}, k.committed())
	})
}

// TestCoordinatorIsBehind: a broker that has seen a topic go and not yet come back answers
// with an error. Where to begin is not decided by that: the late offset would be followed.
func TestCoordinatorIsBehind(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(10)
		var asked atomic.Int32
		k.answersIDs(func() *kmsg.MetadataResponse {
			if asked.Add(1) > 2 {
				return nil
			}
			return &kmsg.MetadataResponse{ClusterID: new(clusterID),
				Topics: []kmsg.MetadataResponseTopic{{Topic: new(topic), ErrorCode: kerr.UnknownTopicOrPartition.Code}}}
		})
		before := uuid.New()
		k.commits(0, 7, saramagroup.Metadata(clusterID, before, 6))
		h := newHandler(nil)
		h.db.marks[0] = consumer.Mark{Topic: topic, TopicID: before, High: 6}
		stop, _ := k.run(h, defect{})
		recs, err := h.await(20)
		require.NoError(t, err)
		<-time.After(2 * time.Second)
		require.NoError(t, stop())
		require.Greater(t, asked.Load(), int32(2))
		require.EqualValues(t, 0, offsets(recs, 0)[0])
		require.Equal(t, saramagroup.Metadata(clusterID, k.topicID(), 9), k.metadata(0))
	})
}
