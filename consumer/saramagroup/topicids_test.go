package saramagroup_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
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

// TestTopicMadeAnew (A5): the mark of a topic that was deleted, far ahead of the one
// that was made in its place, does not hide that the database has lost commits.
func TestTopicMadeAnew(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		old := k.topicID()
		k.remake()
		require.NotEqual(t, old, k.topicID())
		k.produce(10)
		h := newHandler(nil)
		for p := range int32(2) {
			h.db.marks[p] = consumer.Mark{Topic: topic, Partition: p, TopicID: old, High: 5_000_000}
		}
		stop, _ := k.run(h, defect{})
		_, err := h.await(20)
		require.NoError(t, err)
		<-time.After(2 * time.Second)
		require.Equal(t, [2]int64{10, 10}, k.committed())
		mark, _ := h.db.mark(0)
		require.EqualValues(t, 9, mark.High)
		require.Equal(t, k.topicID(), mark.TopicID)
		h.db.set(func(d *database) {
			require.Len(t, d.earlier, 2, "marks of before stay")
			d.history = "promoted"
			for p, m := range d.marks {
				m.High = 3
				d.marks[p] = m
			}
		})
		recs, err := h.await(12)
		require.NoError(t, err)
		require.NoError(t, stop())
		for p := range int32(2) {
			again := offsets(recs, p)
			slices.Sort(again)
			require.Equal(t, []int64{4, 5, 6, 7, 8, 9}, slices.Compact(again))
		}
	})
}

// TestTopicMadeAnewBelowARunningGroup: it joins again, and reads the new one from its
// beginning; nothing that it knows of offsets is committed for that.
func TestTopicMadeAnewBelowARunningGroup(t *testing.T) {
	for name, n := range map[string]int{"shorter than before": 3, "longer than before": 30} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, func(k *kafka) {
				k.produce(10)
				h := newHandler(nil)
				stop, ended := k.run(h, defect{})
				_, err := h.await(20)
				require.NoError(t, err)
				<-time.After(2 * time.Second)
				k.remake()
				k.produce(n)
				limit := time.After(3 * time.Minute)
				seen := make(map[consumer.Source]bool)
				for len(seen) < 2*n {
					select {
					case rec := <-h.finished:
						if rec.Source.TopicID == k.topicID() {
							seen[rec.Source] = true
						}
					case err := <-ended:
						require.NoError(t, err, "Run ended")
					case <-limit:
						require.Fail(t, "not all of the new topic was read", "%d", len(seen))
					}
				}
				require.NoError(t, stop())
				require.Equal(t, [2]int64{int64(n), int64(n)}, k.committed())
			})
		})
	}
}

// TestLateReportOfATopicMadeAnew: that an offset is out of range may be said when the next
// session is there. It is judged by what the session before knew of the topics, and only
// what is known to be gone ends Run.
func TestLateReportOfATopicMadeAnew(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		client := k.client(nil)
		defer closing(k.t, client)
		was := map[string]uuid.UUID{topic: k.topicID()}
		require.ErrorContains(t, saramagroup.LateReport(client, newHandler(nil), was), "are gone from Kafka")
		k.remake()
		require.NoError(t, saramagroup.LateReport(client, newHandler(nil), was))
		require.NoError(t, k.cluster.DeleteTopic(topic))
		require.NoError(t, saramagroup.LateReport(client, newHandler(nil), was), "it may be about to be made")
	})
}

// TestOffsetOfBeforeIsNotCommittedAgain: a commit that failed before its topic was made
// anew is not made up for at the session's end: of the new one it would skip messages.
func TestOffsetOfBeforeIsNotCommittedAgain(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(10)
		var refuse atomic.Bool
		refuse.Store(true)
		k.cluster.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
			k.cluster.KeepControl()
			if !refuse.Load() {
				return nil, nil, false
			}
			answer := req.ResponseKind().(*kmsg.OffsetCommitResponse)
			for _, asked := range req.(*kmsg.OffsetCommitRequest).Topics {
				refused := kmsg.OffsetCommitResponseTopic{Topic: asked.Topic}
				for _, p := range asked.Partitions {
					refused.Partitions = append(refused.Partitions, kmsg.OffsetCommitResponseTopicPartition{
						Partition: p.Partition, ErrorCode: kerr.UnknownTopicOrPartition.Code,
					})
				}
				answer.Topics = append(answer.Topics, refused)
			}
			return answer, nil, true
		})
		release := make(chan struct{})
		h := newHandler(func(_ context.Context, rec consumer.Record, _ int) (consumer.Outcome, error) {
			if rec.Source.Partition == 0 && rec.Source.Offset == 9 {
				<-release
			}
			return consumer.Processed, nil
		})
		stop, _ := k.run(h, defect{})
		_, err := h.await(19)
		require.NoError(t, err)
		<-time.After(2 * time.Second)
		stopped := make(chan error, 1)
		go func() { stopped <- stop() }()
		<-time.After(time.Second)
		k.remake()
		k.produce(30)
		refuse.Store(false)
		close(release)
		require.NoError(t, <-stopped)
		again := newHandler(nil)
		again.db = h.db
		stop, _ = k.run(again, defect{})
		recs, err := again.await(60)
		require.NoError(t, err)
		require.NoError(t, stop())
		for p := range int32(2) {
			read := offsets(recs, p)
			slices.Sort(read)
			require.EqualValues(t, 0, read[0])
			require.Len(t, slices.Compact(read), 30)
		}
	})
}

// TestClusterMoved (W2): who moves a group to another cluster translates its offsets
// and takes their metadata along. They are followed: nothing that lies before is read.
func TestClusterMoved(t *testing.T) {
	before := uuid.New()
	for name, metadata := range map[string]string{
		"metadata of another cluster":    saramagroup.Metadata("another", before, 106),
		"metadata of an earlier release": fmt.Sprintf("onceward:2:%s:106", before),
	} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, func(k *kafka) {
				k.produce(10)
				h := newHandler(nil)
				for p := range int32(2) {
					h.db.marks[p] = consumer.Mark{Topic: topic, Partition: p, TopicID: before, High: 106}
					k.commits(p, 7, metadata) // its 107 over there
				}
				stop, _ := k.run(h, defect{})
				recs, err := h.await(6)
				require.NoError(t, err)
				<-time.After(2 * time.Second)
				require.Empty(t, h.finished)
				require.NoError(t, stop())
				require.Equal(t, []int64{7, 8, 9}, offsets(recs, 0))
				require.Equal(t, []int64{7, 8, 9}, offsets(recs, 1))
				mark, _ := h.db.mark(0)
				require.Equal(t, consumer.Mark{Topic: topic, TopicID: k.topicID(), Low: 7, High: 9}, mark)
				require.True(t, h.db.earlier[0].Retired)
			})
		})
	}
}

// TestOffsetOfATopicOfBefore: an offset of before the topic was made anew on this cluster
// is not followed. Behind the end it would end Run; where the topic of now is longer, what
// lies before it would never be read.
func TestOffsetOfATopicOfBefore(t *testing.T) {
	before := uuid.New()
	for name, c := range map[string]struct {
		offset   int64
		metadata string
		oldest   int64 // of the topic of now, which has 20 messages
	}{
		"behind the end":                        {107, saramagroup.Metadata(clusterID, before, 106), 0},
		"behind the end, of an earlier release": {107, fmt.Sprintf("onceward:2:%s:106", before), 0},
		"within the topic of now":               {7, saramagroup.Metadata(clusterID, before, 6), 0},
		"at its end":                            {20, saramagroup.Metadata(clusterID, before, 19), 0},
		"before its first message":              {7, saramagroup.Metadata(clusterID, before, 6), 12},
	} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, func(k *kafka) {
				k.produce(20)
				if c.oldest > 0 {
					require.NoError(t, k.cluster.DeleteRecords(topic, 0, c.oldest))
				}
				k.commits(0, c.offset, c.metadata)
				h := newHandler(nil)
				stop, _ := k.run(h, defect{})
				recs, err := h.await(40 - int(c.oldest))
				require.NoError(t, err)
				<-time.After(2 * time.Second)
				require.NoError(t, stop())
				require.Equal(t, c.oldest, offsets(recs, 0)[0])
				require.Len(t, offsets(recs, 0), 20-int(c.oldest))
				require.Equal(t, [2]int64{20, 20}, k.committed())
				require.Equal(t, saramagroup.Metadata(clusterID, k.topicID(), 19), k.metadata(0))
				mark, _ := h.db.mark(0)
				require.Equal(t, consumer.Mark{Topic: topic, TopicID: k.topicID(), Low: c.oldest, High: 19}, mark)
			})
		})
	}
}

// answersIDs answers in Kafka's place who asks for the ids of topics; nil leaves it to Kafka.
func (k *kafka) answersIDs(answer func() *kmsg.MetadataResponse) {
	k.cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		k.cluster.KeepControl()
		if req.GetVersion() != 10 { // sarama's own
			return nil, nil, false
		}
		is := answer()
		if is == nil {
			return nil, nil, false
		}
		is.Version = 10
		return is, nil, true
	})
}

// TestClusterIsNotKnown: an offset is followed then, whatever its metadata says of a cluster,
// and metadata is written without: where Kafka does not say its id, and where something
// hides the ids of topics, so that the one of the mark is all there is.
func TestClusterIsNotKnown(t *testing.T) {
	before := uuid.New()
	for name, said := range map[string]kmsg.MetadataResponse{
		"no cluster": {Topics: []kmsg.MetadataResponseTopic{{Topic: new(topic), TopicID: uuid.New()}}},
		"no topic":   {Topics: []kmsg.MetadataResponseTopic{{Topic: new(topic)}}, ClusterID: new(clusterID)},
	} {
		t.Run(name, func(t *testing.T) {
			inFakeTime(t, func(k *kafka) {
				k.produce(10)
				k.answersIDs(func() *kmsg.MetadataResponse { return new(said) })
				k.commits(0, 7, saramagroup.Metadata(clusterID, before, 6))
				h := newHandler(nil)
				h.db.marks[0] = consumer.Mark{Topic: topic, TopicID: before, High: 6}
				stop, _ := k.run(h, defect{})
				recs, err := h.await(13)
				require.NoError(t, err)
				<-time.After(2 * time.Second)
				require.NoError(t, stop())
				require.Equal(t, []int64{7, 8, 9}, offsets(recs, 0))
				id := before
				if said.ClusterID == nil {
					id = said.Topics[0].TopicID
				}
				require.Equal(t, fmt.Sprintf("onceward:2:%s:9", id), k.metadata(0))
			})
		})
	}
}

// TestOffsetOfATopicOfBeforeAfterACrash: the session that died had begun with the topic of
// now, and such an offset still stands. What the mark proves finished is read again, as
// what an offset was set back over: it is not to blame.
func TestOffsetOfATopicOfBeforeAfterACrash(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(30)
		k.commits(0, 7, saramagroup.Metadata(clusterID, uuid.New(), 6))
		h := newHandler(nil)
		h.db.marks[0] = consumer.Mark{Topic: topic, TopicID: k.topicID(), Low: 7, High: 14, Read: 16, Crashed: true}
		stop, _ := k.run(h, defect{}, small)
		recs, err := h.await(60)
		require.NoError(t, err)
		<-time.After(2 * time.Second)
		require.NoError(t, stop())
		read := offsets(recs, 0)
		slices.Sort(read)
		require.EqualValues(t, 0, read[0])
		require.Len(t, slices.Compact(read), 30)
		require.Len(t, h.cautiously, 26-15)
		require.EqualValues(t, 15, h.cautiously[0].Offset)
		mark, _ := h.db.mark(0)
		require.Equal(t, consumer.Mark{Topic: topic, TopicID: k.topicID(), Low: 0, High: 29}, mark)
	})
}

// savesSlowly is a database that takes its time once, until meanwhile is done.
type savesSlowly struct {
	saramagroup.Handler
	meanwhile func(marks []consumer.Mark)
}

func (s *savesSlowly) SaveProgress(ctx context.Context, history string, marks []consumer.Mark) error {
	s.meanwhile(marks)
	return s.Handler.SaveProgress(ctx, history, marks)
}

// TestTopicMadeAnewDuringASave: what was finished of a topic is not committed for the one
// that was made in its place while the database was asked.
func TestTopicMadeAnewDuringASave(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(10)
		before := k.topicID()
		var remade, stale atomic.Bool
		k.cluster.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
			k.cluster.KeepControl()
			for _, asked := range req.(*kmsg.OffsetCommitRequest).Topics {
				for _, p := range asked.Partitions {
					if remade.Load() && strings.Contains(*p.Metadata, before.String()) {
						stale.Store(true)
					}
				}
			}
			return nil, nil, false
		})
		h := newHandler(nil)
		stop, _ := k.run(h, defect{handler: func(h saramagroup.Handler) saramagroup.Handler {
			return &savesSlowly{h, func(marks []consumer.Mark) {
				if len(marks) > 0 && !remade.Swap(true) {
					k.remake()
					k.produce(30)
				}
			}}
		}})
		for seen := 0; seen < 60; {
			recs, err := h.await(1)
			require.NoError(t, err)
			if recs[0].Source.TopicID != before {
				seen++
			}
		}
		<-time.After(2 * time.Second)
		require.NoError(t, stop())
		require.False(t, stale.Load())
		require.Equal(t, [2]int64{30, 30}, k.committed())
	})
}

// TestTopicIDsComeAndGo: marks stay what they are when Kafka says no ids for a while.
func TestTopicIDsComeAndGo(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		db := newDatabase()
		hidden := true
		k.cluster.ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) {
			k.cluster.KeepControl()
			return nil, nil, false
		})
		k.cluster.ControlKey(int16(kmsg.ApiVersions), func(req kmsg.Request) (kmsg.Response, error, bool) {
			k.cluster.KeepControl()
			if !hidden {
				return nil, nil, false
			}
			answer := req.ResponseKind().(*kmsg.ApiVersionsResponse)
			for key, most := range map[int16]int16{0: 9, 1: 11, 2: 6, 3: 9, 8: 8, 9: 8, 10: 4, 11: 9, 12: 4, 13: 5, 14: 5, 18: 3, 22: 5} {
				answer.ApiKeys = append(answer.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: key, MaxVersion: most})
			}
			return answer, nil, true
		})
		for round, known := range []bool{false, true, false, true} {
			hidden = !known
			k.produce(2)
			h := newHandler(nil)
			h.db = db
			stop, _ := k.run(h, defect{})
			recs, err := h.await(4)
			require.NoError(t, err)
			require.NoError(t, stop())
			require.Equal(t, []int64{int64(2 * round), int64(2*round + 1)}, offsets(recs, 0))
			require.Equal(t, known, recs[0].Source.TopicID != uuid.Nil, "round %d", round)
			require.Empty(t, db.earlier)
			mark, _ := db.mark(0)
			require.EqualValues(t, 2*round+1, mark.High)
			require.Equal(t, round > 0, mark.TopicID != uuid.Nil)
		}
	})
}

// TestLostMarksBeforeTheLogsStart (A6): a database that has lost its marks reads again
// from what Kafka still has; Run does not end because that is not offset 0.
func TestLostMarksBeforeTheLogsStart(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(10)
		h := newHandler(nil)
		stop, _ := k.run(h, defect{})
		_, err := h.await(20)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.NoError(t, k.cluster.DeleteRecords(topic, 0, 4))
		again := newHandler(func(context.Context, consumer.Record, int) (consumer.Outcome, error) { return consumer.Duplicate, nil })
		stop, _ = k.run(again, defect{})
		recs, err := again.await(16)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Equal(t, []int64{4, 5, 6, 7, 8, 9}, offsets(recs, 0))
	})
}

// When Kafka cannot be asked for ids, the session is tried again.
func TestTopicIDsAreAskedForAgain(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.produce(1)
		refusals := 0
		k.cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
			k.cluster.KeepControl()
			if req.GetVersion() != 10 || refusals == 2 {
				return nil, nil, false
			}
			refusals++
			return nil, kerr.UnknownServerError, true // closes the connection
		})
		h := newHandler(nil)
		stop, _ := k.run(h, defect{})
		_, err := h.await(2)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Equal(t, 2, refusals)
	})
}
