package saramagroup_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

// raw writes one batch to the first partition as it is.
func (k *kafka) raw(batch []byte) {
	k.t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(k.cluster.ListenAddrs()...), kgo.Dialer(k.network.DialContext), kgo.MaxVersions(kversion.V3_6_0()))
	require.NoError(k.t, err)
	defer c.Close()
	require.NoError(k.t, c.Ping(k.t.Context()))
	produceRaw(k.t, c, batch)
}

// A message that fails holds back its key alone, also when sarama cannot read what
// lies between it and the others: the offset waits for it, and what is behind an
// unreadable batch is not delivered instead of what is before.
func TestUnreadableBehindAMessageThatFails(t *testing.T) {
	large := gzipBatch(t, 3, 8<<20)
	inFakeTime(t, func(k *kafka) {
		k.send(&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("poison")})
		for range 100 { // more than one fetch
			k.send(&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("b"), Value: sarama.ByteEncoder(make([]byte, 100))})
		}
		k.raw(large)
		k.send(&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("c")})
		release := make(chan struct{})
		h := newHandler(nil)
		answers := k.showsNothing(h, 3)
		h.react = func(_ context.Context, rec consumer.Record, _ int) (consumer.Outcome, error) {
			select {
			case <-release:
			default:
				if string(rec.Key) == "poison" {
					return 0, errors.New("broken")
				}
			}
			return consumer.Processed, nil
		}
		stop, _ := k.run(h, defect{})
		var got []int64
		for !slices.Contains(got, 104) {
			recs, err := h.await(1)
			require.NoError(t, err)
			got = append(got, recs[0].Source.Offset)
		}
		k.send(&sarama.ProducerMessage{Topic: topic, Partition: 1}) // something to commit
		<-time.After(5 * time.Second)
		require.EqualValues(t, 1, k.offset(1))
		require.Zero(t, *answers)
		for len(h.finished) > 0 {
			<-h.finished
		}
		slices.Sort(got)
		want := []int64{}
		for offset := range int64(101) {
			want = append(want, offset)
		}
		require.Equal(t, append(want[1:], 104), slices.Compact(got))
		require.LessOrEqual(t, k.offset(0), int64(0), "it waits for the first")
		require.Len(t, h.unreadable, 1)
		require.Equal(t, consumer.Source{Topic: topic, Offset: 101, TopicID: k.topicID()}, h.unreadable[0].From)
		require.EqualValues(t, 104, h.unreadable[0].Until)
		require.ErrorContains(t, h.unreadable[0].Why, "unpacks to more than the 16777216 that sarama.MaxDecompressedBatchSize allows")
		close(release)
		recs, err := h.await(1)
		require.NoError(t, err)
		require.EqualValues(t, 0, recs[0].Source.Offset)
		require.NoError(t, stop())
		require.EqualValues(t, 105, k.offset(0))
	})
}

// showsNothing has the brokers answer so many fetches of single batches at the
// beginning with none, as a leader does that has just been elected, once a letter
// was kept.
func (k *kafka) showsNothing(h *handler, answers int) (left *int) {
	k.cluster.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		k.cluster.KeepControl()
		fetch := req.(*kmsg.FetchRequest)
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.unreadable) == 0 || answers == 0 || len(fetch.Topics) != 1 || fetch.Topics[0].Partitions[0].PartitionMaxBytes != 1 ||
			fetch.Topics[0].Partitions[0].FetchOffset > 2 {
			return nil, nil, false
		}
		answers--
		part := kmsg.NewFetchResponseTopicPartition()
		part.Partition, part.RecordBatches = fetch.Topics[0].Partitions[0].Partition, []byte{}
		of := kmsg.NewFetchResponseTopic()
		of.Topic, of.Partitions = fetch.Topics[0].Topic, append(of.Partitions, part)
		answer := fetch.ResponseKind().(*kmsg.FetchResponse)
		answer.Topics = append(answer.Topics, of)
		return answer, nil, true
	})
	return &answers
}

// keeper refuses letters until they are allowed.
type keeper struct {
	saramagroup.Handler
	allowed chan struct{}
}

func (r keeper) KeepUnreadable(ctx context.Context, u consumer.Unreadable) error {
	select {
	case <-r.allowed:
		return r.Handler.KeepUnreadable(ctx, u)
	default:
		return errors.New("the database is away")
	}
}

// While the letter cannot be written, nothing goes on behind the batch; neither
// does an offset.
func TestUnreadableWaitsForItsLetter(t *testing.T) {
	large := gzipBatch(t, 3, 8<<20)
	inFakeTime(t, func(k *kafka) {
		k.raw(large)
		k.produce(2)
		h := newHandler(nil)
		allowed := make(chan struct{})
		stop, _ := k.run(h, defect{handler: func(h saramagroup.Handler) saramagroup.Handler { return keeper{h, allowed} }})
		<-time.After(5 * time.Minute)
		require.LessOrEqual(t, k.offset(0), int64(0))
		for len(h.finished) > 0 {
			require.EqualValues(t, 1, (<-h.finished).Source.Partition)
		}
		close(allowed)
		var got []int64
		for len(got) < 2 {
			recs, err := h.await(1)
			require.NoError(t, err)
			got = append(got, offsets(recs, 0)...)
		}
		require.Equal(t, []int64{3, 4}, got)
		require.NoError(t, stop())
		require.EqualValues(t, 5, k.offset(0))
		require.Len(t, h.unreadable, 1)
	})
}

// A partition that ends with what cannot be read has nothing left.
func TestUnreadableAtTheEnd(t *testing.T) {
	large := gzipBatch(t, 3, 8<<20)
	inFakeTime(t, func(k *kafka) {
		k.produce(1)
		k.raw(large)
		h := newHandler(nil)
		stop, _ := k.run(h, defect{})
		<-time.After(2 * time.Minute)
		require.EqualValues(t, 4, k.offset(0))
		_, ends := h.db.mark(0)
		require.NotZero(t, ends)
		require.NoError(t, stop())
		require.Len(t, h.unreadable, 1)
	})
}

// What sarama refuses is found through TLS as well, which is checked as always.
func TestUnreadableByTLS(t *testing.T) {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	secured := server.Client().Transport.(*http.Transport).TLSClientConfig
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic), kfake.TLS(server.TLS))
	require.NoError(t, err)
	defer c.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.DialTLSConfig(secured), kgo.MaxVersions(kversion.V3_6_0()))
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.Ping(t.Context()))
	produceGood(t, client, 0, 1)
	produceRaw(t, client, gzipBatch(t, 3, 8<<20))
	produceGood(t, client, 0, 1)

	h, ended := newHandler(nil), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- saramagroup.Run(ctx, c.ListenAddrs(), h, saramagroup.Config{Topics: []string{topic}, TLS: &tls.Config{RootCAs: secured.RootCAs}})
	}()
	recs, err := h.await(2)
	require.NoError(t, err)
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, []int64{0, 4}, offsets(recs, 0))
	require.Len(t, h.unreadable, 1)
}
