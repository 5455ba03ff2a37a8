//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

// TestMillionEventTransaction: one transaction of a million events arrives whole,
// also through a hard kill in its middle, while another transaction stays open,
// and the relay's memory does not know how large it is.
func TestMillionEventTransaction(t *testing.T) {
	n := 300_000
	if full() {
		n = 1_000_000
	}
	onAVersion(t, func(t *testing.T, version string) {
		w := newEnvironment(t, version)
		r := streaming(t, w)
		watch := watchPositions(t, w)
		open, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = (&writers{namespace: w.name}).row(t.Context(), open, 0, "a-0")
		require.NoError(t, err)

		began := time.Now()
		require.NoError(t, bulk(t.Context(), w, 0, n, 300))
		inserted := time.Since(began)
		eventually(t, "half of it is in Kafka", 3*time.Minute, func() bool { return w.ends() > int64(n/2) })
		first := memory(t, r, "VmHWM")
		r.kill()
		r.start()
		eventually(t, "the relay streams again", 30*time.Second, func() bool { return sessions(r) == 2 })
		again := time.Now()
		eventually(t, "all of it was read again and is in Kafka", 3*time.Minute, func() bool { return w.ends() >= int64(n) })
		took := time.Since(again)
		require.NoError(t, open.Commit(t.Context()))
		caughtUp(t, w, r)
		second := memory(t, r, "VmHWM")
		r.stop()

		s := newSeen(n)
		w.scan(s.record)
		require.Empty(t, summary(s.found))
		require.Equal(t, n, s.distinct)
		require.Equal(t, 2, s.others, "the open transaction, and the one that caughtUp adds")
		require.Empty(t, summary(watch.stop().found))
		t.Logf("PostgreSQL %s: %d events in one transaction (%s to insert), killed in the middle, %d extra copies; read again from the slot in %s, %.0f events/s; resident at most %.0f MiB before the kill, %.0f MiB after",
			version, n, inserted.Round(time.Millisecond), s.copies, took.Round(time.Millisecond), float64(n)/took.Seconds(), first, second)
		require.LessOrEqual(t, max(first, second), float64(memoryBar))
	})
}

// ends is the number of records in the topic.
func (w *environment) ends() int64 {
	w.t.Helper()
	client, err := sarama.NewClient(w.brokers, kafkaConfig())
	require.NoError(w.t, err)
	defer client.Close()
	var sum int64
	for p := range w.partitions {
		end, err := client.GetOffset(w.topic(), p, sarama.OffsetNewest)
		require.NoError(w.t, err)
		sum += end
	}
	return sum
}

// seen checks the events of bulk in bounded memory: a bit for each, and the last
// number of each aggregate.
type seen struct {
	n                int
	bits             []uint64
	last             map[string]int
	distinct, copies int
	others           int // events of other writers
	found            []violation
}

func newSeen(n int) *seen {
	return &seen{n: n, bits: make([]uint64, n/64+1), last: map[string]int{}}
}

// record takes the next record of a partition.
func (s *seen) record(m *sarama.ConsumerMessage) {
	number, bulk := strings.CutPrefix(string(m.Key), "b-")
	if !bulk {
		s.others++
		return
	}
	var p payload
	aggregate, err := strconv.Atoi(number)
	if err == nil {
		err = json.Unmarshal(m.Value, &p)
	}
	i := (p.N-1)*bulkAggregates + aggregate
	if err != nil || i < 0 || i >= s.n || p.Aggregate != string(m.Key) {
		s.found = append(s.found, violation{noInvention, string(m.Key) + " " + string(m.Value)})
		return
	}
	if s.bits[i/64]&(1<<(i%64)) != 0 {
		s.copies++
		return
	}
	s.bits[i/64] |= 1 << (i % 64)
	s.distinct++
	if p.N != s.last[p.Aggregate]+1 {
		s.found = append(s.found, violation{order, headerOf(m, outbox.HeaderKey)})
	}
	s.last[p.Aggregate] = p.N
}

// scan reads the topic from its beginning to its present end and keeps nothing.
func (w *environment) scan(record func(*sarama.ConsumerMessage)) {
	w.t.Helper()
	client, err := sarama.NewClient(w.brokers, kafkaConfig())
	require.NoError(w.t, err)
	defer client.Close()
	reader, err := sarama.NewConsumerFromClient(client)
	require.NoError(w.t, err)
	defer reader.Close()
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute)
	defer cancel()
	for p := range w.partitions {
		end, err := client.GetOffset(w.topic(), p, sarama.OffsetNewest)
		require.NoError(w.t, err)
		part, err := reader.ConsumePartition(w.topic(), p, sarama.OffsetOldest)
		require.NoError(w.t, err)
		for next := int64(0); next < end; {
			select {
			case m := <-part.Messages():
				record(m)
				next = m.Offset + 1
			case <-ctx.Done():
				w.t.Fatalf("partition %d: stuck at offset %d of %d", p, next, end)
			}
		}
		require.NoError(w.t, part.Close())
	}
}
