package stream

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/publisher"
)

// Kafka's quota lets in what was saved up over eleven seconds, and the request beyond it; then it takes nothing until
// that is made up for: no transaction of a backlog lasts until its coordinator aborts it, and most are large.
func TestTransactionsAreAsLargeAsKafkaTakesThemInTime(t *testing.T) {
	for _, timeout := range []time.Duration{10 * time.Second, time.Minute, 15 * time.Minute} {
		for _, rate := range []float64{40_000, 50_000, 250_000, 1e6, 1e7} {
			m := &exactlyOnce{Transactions: Transactions{MaxBytes: 32 << 20, Timeout: timeout, Room: new(int64)}}
			m.begins()
			saved := 11 * rate
			for i := range 1000 {
				bytes := m.limit()
				waits := max(0, -saved) / rate
				saved = max(0, saved) - float64(bytes)
				took := waits + max(0, -saved)/rate
				require.Less(t, waits, timeout.Seconds(), "%v bytes a second, transaction %d of %d bytes", rate, i, bytes)
				m.learn(bytes, time.Duration(took*float64(time.Second)))
			}
			require.GreaterOrEqual(t, float64(m.limit()), min(32<<20, rate*timeout.Seconds()/50), "%v bytes a second", rate)
		}
	}
	room := int64(8 << 20)
	m := &exactlyOnce{Transactions: Transactions{MaxBytes: 1 << 30, Timeout: time.Minute, Room: &room}}
	m.learn(1<<20, time.Second)
	require.EqualValues(t, 8<<20, m.limit(), "a small one says nothing of a large one")
	m.learn(1<<20, 10*time.Second)
	require.EqualValues(t, 512<<10, m.limit(), "one that is slow does")
	for range 100 {
		m.learn(m.limit(), time.Minute)
	}
	require.EqualValues(t, leastBytes, m.limit())
	m.MaxBytes = 1000
	m.learn(m.limit(), time.Second)
	require.EqualValues(t, 1000, m.limit())
}

// A session that follows others begins with half of what they came to, and with no more than the first: what a
// quota makes a transaction of that size wait may be longer than the coordinator waits, and nobody lives to learn it.
func TestASessionBeginsWithHalfOfTheLastOnesTransactions(t *testing.T) {
	conf := Transactions{Timeout: time.Minute, Room: new(int64)}
	for _, want := range []int64{960 << 10, 480 << 10, 240 << 10, 120 << 10, leastBytes, leastBytes} {
		conf.begins()
		require.Equal(t, want, *conf.Room)
	}
	*conf.Room = 32 << 20
	conf.begins()
	require.EqualValues(t, 960<<10, *conf.Room)
}

// What a transaction is judged by is how long Kafka was busy with its records: also while the sink was full,
// before the commit began, and not what the rest of a commit takes, which is the same for one event.
func TestATransactionIsJudgedByWhatItsRecordsTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := quiet()
		p, m, _ := g.session(t)
		m.MaxBytes, *m.Room = 1<<30, 8<<20
		l := &slowLedger{fakeLedger: p.sink.(*fakeLedger)}
		p.sink, m.tx = l, l
		var batch []cdc.Item
		for range 200 {
			batch = append(batch, typed(200, "order"))
		}
		m.Timeout = 30 * time.Second // 64 records take 3.2 s
		require.NoError(t, p.take(t.Context(), batch[:64]))
		require.EqualValues(t, 8<<20, *m.Room)
		m.Timeout = 20 * time.Second
		require.NoError(t, p.take(t.Context(), batch[64:128]))
		require.EqualValues(t, leastBytes, *m.Room)

		*m.Room, m.tx = 8<<20, &lateLedger{l.fakeLedger}
		p.sink = m.tx
		m.Timeout = 10 * time.Second
		require.NoError(t, p.take(t.Context(), batch[128:]))
		require.NoError(t, p.Flush(t.Context()))
		require.EqualValues(t, 8<<20, *m.Room)
	})
}

// lateLedger has the records at once, and takes its time for the rest of a commit.
type lateLedger struct{ *fakeLedger }

func (l *lateLedger) Commit(ctx context.Context, pos publisher.Position) error {
	err := l.fakeLedger.Commit(ctx, pos)
	<-time.After(5 * time.Second)
	return err
}

// While a broker takes nothing for longer than a transaction should, none begins: its timeout would run.
func TestNoTransactionBeginsInALongThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &fakeLedger{g: quiet()}
		l := watchedTransactions{inner, newSinkWatch(), 10 * time.Second}
		publish := func(ctx context.Context) (took time.Duration, err error) {
			began := time.Now()
			err = l.Publish(ctx, publisher.Event{Row: typed(200, "order").Row})
			return time.Since(began), err
		}
		inner.throttled = time.Now().Add(10 * time.Second)
		took, err := publish(t.Context())
		require.NoError(t, err)
		require.Zero(t, took, "it is over in time")
		inner.throttled = time.Now().Add(90 * time.Second)
		took, err = publish(t.Context())
		require.NoError(t, err)
		require.Zero(t, took, "one is open already")
		require.NoError(t, l.Commit(t.Context(), publisher.Position{}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = publish(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Empty(t, inner.open)
		took, err = publish(t.Context())
		require.NoError(t, err)
		require.Equal(t, 30*time.Second, took)
	})
}
