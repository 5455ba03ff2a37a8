package publisher_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/publisher"
)

// produce is one produce request as it came.
type produce struct {
	at      time.Time
	acks    int16
	timeout int32
	id      *string
	batches map[string]string // by topic/partition, their bytes
}

// listen notes the produce requests, and refuses the first with these errors.
func (c *cluster) listen(refuse ...*kerr.Error) func() []produce {
	var mu sync.Mutex
	var heard []produce
	for _, code := range refuse {
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: code})
	}
	c.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r := request.(*kmsg.ProduceRequest)
		p := produce{at: time.Now(), acks: r.Acks, timeout: r.TimeoutMillis, id: r.TransactionID, batches: make(map[string]string)}
		for _, topic := range r.Topics {
			for _, partition := range topic.Partitions {
				p.batches[fmt.Sprint(topic.Topic, "/", partition.Partition)] = string(partition.Records)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, p)
		return nil, nil, false
	})
	return func() []produce {
		mu.Lock()
		defer mu.Unlock()
		return append([]produce(nil), heard...)
	}
}

// A batch is sent again as it was, byte by byte, whatever was handed over
// meanwhile, after refusals and after a connection that was lost.
func TestABatchIsSentAgainAsItWas(t *testing.T) {
	for _, compression := range []string{"none", "lz4"} {
		t.Run(compression, func(t *testing.T) {
			c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
			network := newCuttingDialer()
			cfg := c.config()
			cfg.Dial, cfg.Compression = network.dial, compression
			heard := c.listen(kerr.NotLeaderForPartition, kerr.NotEnoughReplicas, kerr.RequestTimedOut)
			p, acks := start(t, cfg)
			first := event(0, "a", "0"+string(make([]byte, 2000)))
			require.NoError(t, p.Publish(within(t), first))
			sent := 1
			require.Eventually(t, func() bool {
				publishNumbered(t, p, "a", sent, sent)
				sent++
				return len(heard()) == 2
			}, patience, time.Millisecond)
			network.cutAll()
			require.NoError(t, p.Flush(within(t)))
			require.Len(t, acks.all(), sent)
			var again []string
			for _, r := range heard() {
				require.EqualValues(t, -1, r.acks)
				require.EqualValues(t, 15_000, r.timeout)
				require.Nil(t, r.id)
				again = append(again, r.batches["shop.order/0"])
			}
			require.GreaterOrEqual(t, len(again), 5)
			for _, batch := range again[:4] {
				require.Equal(t, again[0], batch)
			}
			require.NotEqual(t, again[0], again[len(again)-1])
			require.Equal(t, numbers(1, sent-1), c.values("shop.order")[1:])
		})
	}
}

// Under a steady flow there is about one request to a broker in 2 ms, in 8 where it is a strong one, with
// all that waits for its partitions, and none waits for longer; what comes after a silence leaves at once, with
// what comes together with it, and so does what is much.
func TestRequestsArePaced(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		heard := c.listen()
		p, acks := start(t, cfg)
		for i := range 4 { // the partitions' leaders are known
			publishNumbered(t, p, fmt.Sprint("k", i), i, i)
		}
		require.NoError(t, p.Flush(t.Context()))
		for pause, size := range map[time.Duration]int{2 * time.Millisecond: 1, 8 * time.Millisecond: 2000} {
			time.Sleep(time.Second)
			begin, before, known := time.Now(), len(heard()), len(acks.all())
			const events = 1000
			for i := range events {
				require.NoError(t, p.Publish(t.Context(), event(0, fmt.Sprint("k", i%4), noise(size))))
				time.Sleep(100 * time.Microsecond)
			}
			synctest.Wait()
			took := time.Since(begin)
			requests := heard()[before:]
			require.Equal(t, begin, requests[0].at, "the first one waits for nothing")
			require.InDelta(t, int(took/pause), len(requests), 2)
			require.GreaterOrEqual(t, len(acks.all())-known, events-int(pause/(100*time.Microsecond)))
			require.NoError(t, p.Flush(t.Context()))
		}

		time.Sleep(time.Second)
		begin, before := time.Now(), len(heard())
		for i := range 1000 { // of 4 KB: more than is waited for
			require.NoError(t, p.Publish(t.Context(), event(0, fmt.Sprint("k", i%4), noise(4000))))
			synctest.Wait()
		}
		require.Zero(t, time.Since(begin))
		require.Greater(t, len(heard())-before, 3, "without a moment gone by")

		for _, honest := range []bool{true, false} {
			time.Sleep(time.Second)
			before = len(heard())
			for i := range 10 {
				ev := event(0, fmt.Sprint("k", i%4), noise(10))
				ev.More = i < 9 || !honest
				require.NoError(t, p.Publish(t.Context(), ev))
				synctest.Wait()
			}
			if !honest {
				require.Len(t, heard(), before)
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
			}
			require.Len(t, heard(), before+1, "all in one request")
		}
		ev := event(0, "k", noise(10))
		ev.More = true
		time.Sleep(time.Second)
		require.NoError(t, p.Publish(t.Context(), ev))
		begin = time.Now()
		require.NoError(t, p.Flush(t.Context()))
		require.Zero(t, time.Since(begin), "somebody waits")
	}, kfake.SeedTopics(4, "shop.order"))
}

// Nothing leaves once the publisher has failed, for other partitions neither: what
// was about to waits for the next one.
func TestNothingLeavesAfterAFailure(t *testing.T) {
	inFakeTime(t, func(t *testing.T, c *cluster, cfg publisher.Config) {
		p, acks := start(t, cfg)
		publishNumbered(t, p, "a", 0, 0)
		require.NoError(t, p.Publish(t.Context(), typed(1, "other")))
		require.NoError(t, p.Flush(t.Context()))
		time.Sleep(time.Second)
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "shop.order", Err: kerr.InvalidRecord})
		release, arrived := c.holdProduceSeen()
		publishNumbered(t, p, "a", 2, 2)
		waitFor(t, arrived)
		require.NoError(t, p.Publish(t.Context(), typed(3, "other")))
		release()
		<-p.Failed()
		time.Sleep(time.Minute)
		require.Len(t, c.values("shop.other"), 1)
		require.NoError(t, p.Close())
		require.Len(t, acks.all(), 2)
	}, kfake.SeedTopics(1, "shop.order", "shop.other"))
}

// Requests of a transaction say so.
func TestRequestsOfATransactionSaySo(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	c.checkpointTopic()
	heard := c.listen()
	p := startTransactional(t, c.config(), oneSlot())
	transact(t, p, "a", 0, 9)
	require.NoError(t, p.Commit(within(t), at(10)))
	require.NotEmpty(t, heard())
	for _, r := range heard() {
		require.Equal(t, oneSlot().ID, *r.id)
		var batch kmsg.RecordBatch
		require.NoError(t, batch.ReadFrom([]byte(r.batches["shop.order/0"])))
		require.NotZero(t, batch.Attributes&0x10)
	}
}
