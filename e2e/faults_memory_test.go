//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestMemoryWhileKafkaIsDown: a topic of a hundred partitions, and Kafka gone for
// a long time under load, in both modes. What relays have resident stays within
// the bar, and then everything arrives. The long form has Kafka down for ten
// minutes.
func TestMemoryWhileKafkaIsDown(t *testing.T) {
	down := 15 * time.Second
	if full() {
		down = 10 * time.Minute
	}
	modes := map[string]*spread{
		"idempotent":   newSpread(t, "idempotent", "queue: {bytes: 16MiB}"),
		"exactly-once": newSpread(t, "exactly-once", exactlyOnce(time.Minute), "queue: {bytes: 16MiB}"),
	}
	cluster := faultyKafka(t, 1).cluster
	cluster.Kill(0)
	for _, s := range modes {
		s.commit(t, 40_000) // more than a queue and a producer hold
	}
	for began := time.Now(); time.Since(began) < down; {
		for _, s := range modes {
			s.commit(t, 1000)
		}
		require.NoError(t, wait(t.Context(), time.Second))
	}
	stalled := map[string]float64{}
	for mode, s := range modes {
		stalled[mode] = memory(t, s.relay, "VmHWM")
	}
	require.NoError(t, cluster.StartBroker(context.WithoutCancel(t.Context()), 0))
	for mode, s := range modes {
		s.a.confirmed(5 * time.Minute)
		peak := memory(t, s.relay, "VmHWM")
		s.relay.stop()
		s.a.scanAt(s.a.topic(), kgo.ReadCommitted(), s.a.endOffsets(kgo.ReadUncommitted()), s.record)
		require.Empty(t, summary(s.found))
		require.Equal(t, s.committed, s.distinct)
		t.Logf("%s: %d partitions, Kafka down for %s, %d events; resident at most %.0f MiB by then, %.0f MiB in all; %d sessions, %d extra copies",
			mode, s.a.partitions, down, s.committed, stalled[mode], peak, sessions(s.relay), s.copies)
		require.LessOrEqual(t, peak, float64(memoryBar))
		if mode == "exactly-once" {
			require.Zero(t, s.copies)
		}
	}
}

// spread is a load over so many aggregates that every partition has some, made by
// the server itself and checked in bounded memory.
type spread struct {
	a     *arena
	relay *relayProcess

	committed, distinct, copies int
	last                        map[string]int
	found                       []violation
}

// spreadAggregates is the number of aggregates of a spread.
const spreadAggregates = 1000

func newSpread(t *testing.T, client string, config ...string) *spread {
	t.Helper()
	s := &spread{a: newArenaOf(t, "18", 1, 100), last: map[string]int{}}
	s.relay = s.a.relay(client, "", config...)
	_, err := s.a.app.Exec(t.Context(), oneAggregate)
	require.NoError(t, err)
	s.a.streams(s.relay)
	s.commit(t, spreadAggregates)
	s.a.confirmed(time.Minute) // every partition has been used
	return s
}

// commit commits n events, a multiple of spreadAggregates, of a kilobyte each.
func (s *spread) commit(t *testing.T, n int) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), s.a.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload)
			SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || '7000' || '8' || lpad(to_hex(i), 15, '0'))::uuid,
				$1, 'order', 's-' || i % $2, 'OrderChanged',
				convert_to(format('{"aggregate":"s-%s","n":%s,"pad":"%s"}', i % $2, i / $2 + 1, repeat('p', 1000)), 'UTF8')
			FROM generate_series($3::int, $4::int) i`, s.a.name, spreadAggregates, s.committed, s.committed+n-1)
		return err
	}))
	s.committed += n
}

// record takes the next record of a partition.
func (s *spread) record(m *sarama.ConsumerMessage) {
	var p payload
	if err := json.Unmarshal(m.Value, &p); err != nil {
		s.found = append(s.found, violation{noInvention, err.Error()})
		return
	}
	if p.Aggregate == hotAggregate {
		return // of confirmed
	}
	switch last := s.last[p.Aggregate]; {
	case p.N == last+1:
		s.last[p.Aggregate]++
		s.distinct++
	case p.N <= last:
		s.copies++
	default:
		s.found = append(s.found, violation{order, fmt.Sprintf("%s: event %d comes after %d", p.Aggregate, p.N, last)})
	}
}
