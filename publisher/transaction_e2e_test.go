//go:build e2e

package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaproxy"
	"github.com/onceward/onceward/publisher"
)

func TestPositionAloneIsCommitted(t *testing.T) {
	s := newScene(t)
	p := startTransactional(t, s.config(), s.slot())
	_, found := p.Checkpoint()
	require.False(t, found)
	require.NoError(t, p.Commit(within(t), at(7)))
	require.NoError(t, p.Commit(within(t), at(8)))
	require.NoError(t, p.Close())
	require.Equal(t, at(8), s.checkpoint())
	_, end := s.offsets()
	require.Zero(t, end)
}

func TestCheckpointTopicOfARealBroker(t *testing.T) {
	s := newScene(t)
	missing := s.slot()
	missing.Topic, missing.Timeout = s.topic+".checkpoint", time.Minute
	_, err := publisher.NewTransactional(within(t), s.config(), missing)
	var checkpoint *publisher.CheckpointError
	require.ErrorAs(t, err, &checkpoint)
	require.ErrorContains(t, err, "kafka-topics.sh")
	cfg := s.config()
	cfg.Topics = publisher.Topics{Create: true, ReplicationFactor: 1}
	p := startTransactional(t, cfg, missing)
	require.NoError(t, p.Commit(within(t), at(1)))
	s.deleteTopic(missing.Topic)
	require.Eventually(t, func() bool { // brokers learn of it a moment later
		reports, err := publisher.Inspect(within(t), cfg, []string{missing.Topic})
		return err == nil && reports[0].Missing
	}, patience, 20*time.Millisecond)
	begin := time.Now()
	require.ErrorAs(t, p.Commit(within(t), at(2)), &checkpoint)
	require.LessOrEqual(t, time.Since(begin), 15*time.Second)
	p = startTransactional(t, cfg, missing) // which makes it anew
	_, found := p.Checkpoint()
	require.False(t, found)
	require.NoError(t, p.Commit(within(t), at(2)))

	plain := s.slot()
	plain.Topic = s.topic + ".plain"
	require.NoError(t, s.CreateTopic(t.Context(), plain.Topic, 2, nil)) // cleanup.policy is delete by default
	_, err = publisher.NewTransactional(within(t), s.config(), plain)
	require.ErrorContains(t, err, "cleanup.policy = delete")
	plain.Topic = s.topic + ".wide"
	require.NoError(t, s.CreateTopic(t.Context(), plain.Topic, 3, map[string]string{"cleanup.policy": "compact"}))
	_, err = publisher.NewTransactional(within(t), s.config(), plain)
	require.ErrorContains(t, err, "has 3 partitions")
}

func TestTimeoutAboveTheBrokersIsExplained(t *testing.T) {
	s := newScene(t)
	tx := s.slot()
	tx.Timeout = 15 * time.Minute
	startTransactional(t, s.config(), tx) // the default of brokers
}

func TestTwinsOnARealBroker(t *testing.T) {
	s := newScene(t)
	first := startTransactional(t, s.config(), s.slot())
	transact(t, first, "a", 0, 4)
	require.NoError(t, first.Commit(within(t), at(5)))
	transact(t, first, "a", 5, 5)
	s.waitForRecords(0, 7) // six events and a marker
	second := startTransactional(t, s.config(), s.slot())
	pos, _ := second.Checkpoint()
	require.Equal(t, at(5), pos)
	_ = first.Publish(within(t), event(6, "a", "zombie"))
	waitFor(t, first.Failed())
	require.ErrorIs(t, first.Err(), publisher.ErrFenced)
	require.ErrorIs(t, first.Commit(within(t), at(9)), publisher.ErrFenced)
	transact(t, second, "a", 5, 9)
	require.NoError(t, second.Commit(within(t), at(10)))
	require.Equal(t, numbers(0, 9), s.committed())
}

// The coordinator aborts what is open for too long. Whoever slept through it is
// told that its epoch is old, as if there were a rival.
func TestTransactionThatTimedOutIsLost(t *testing.T) {
	s := newScene(t)
	tx := publisher.Unwatched(s.slot())
	tx.Timeout = time.Second
	p := startTransactional(t, s.config(), tx)
	transact(t, p, "a", 0, 4)
	require.NoError(t, p.Commit(within(t), at(5)))
	transact(t, p, "a", 5, 5)
	s.waitForRecords(0, 8) // six events, a marker of the commit, a marker of the abort
	_ = p.Publish(within(t), event(6, "a", "6"))
	waitFor(t, p.Failed())
	require.ErrorIs(t, p.Err(), publisher.ErrFenced)
	require.NoError(t, p.Close())
	require.Equal(t, at(5), s.checkpoint())
	require.Equal(t, numbers(0, 4), s.committed())
}

// Another relay's commit is under way when the checkpoint is read: its position
// is not known yet, and the one before is not true any more.
func TestCheckpointWaitsForAPendingCommit(t *testing.T) {
	pending := func(t *testing.T, tx func(publisher.TransactionConfig) publisher.TransactionConfig) (publisher.Position, string) {
		s := newScene(t)
		rival := s.slot()
		rival.ID, rival.Timeout = s.topic+"-rival", time.Minute
		other := startTransactional(t, s.config(), rival)
		require.NoError(t, other.Commit(within(t), at(1)))
		end := s.inject(kafkaproxy.EndTxn, kafkaproxy.Hold)
		committed := make(chan error, 1)
		go func() { committed <- other.Commit(within(t), at(2)) }()
		s.hit(end, 1)

		logged := &logLines{}
		cfg := s.config()
		cfg.Logger = logged.logger()
		read := make(chan publisher.Position, 1)
		go func() {
			p, err := publisher.NewTransactional(within(t), cfg, tx(s.slot()))
			if err != nil {
				close(read)
				return
			}
			pos, _ := p.Checkpoint()
			_ = p.Close()
			read <- pos
		}()
		require.Eventually(t, func() bool {
			return len(read) == 1 || strings.Contains(logged.String(), "held back by an open transaction")
		}, patience, 20*time.Millisecond)
		end.Release()
		require.NoError(t, <-committed)
		return <-read, logged.String()
	}
	t.Run("ours", func(t *testing.T) {
		pos, logged := pending(t, func(tx publisher.TransactionConfig) publisher.TransactionConfig { return tx })
		require.Equal(t, at(2), pos)
		require.Contains(t, logged, "held back by an open transaction")
	})
	t.Run("defect: until quiet", func(t *testing.T) {
		pos, _ := pending(t, publisher.UntilQuiet)
		require.Equal(t, at(1), pos)
	})
}

// An abort has an epoch of its own: its end in a partition is no trace of a commit.
func TestCloseAbortsAndReleasesReaders(t *testing.T) {
	s := newScene(t)
	end := s.network.Inject(kafkaproxy.Fault{Key: kafkaproxy.EndTxn, Action: kafkaproxy.Hold, Client: s.topic})
	p := startTransactional(t, s.config(), s.slot())
	transact(t, p, "a", 0, 9)
	s.waitForRecords(0, 10)
	stable, _ := s.offsets()
	require.Zero(t, stable)
	require.NoError(t, p.Close())
	require.Empty(t, s.committed())
	require.Eventually(t, func() bool { stable, end := s.offsets(); return stable == end }, 5*time.Second, 20*time.Millisecond,
		"before the transaction's timeout")
	require.Zero(t, end.Hits())
}

func TestBrokerRestartInsideATransaction(t *testing.T) {
	s := newScene(t)
	tx := s.slot()
	tx.Timeout = time.Minute
	p := startTransactional(t, s.config(), tx)
	transact(t, p, "a", 0, 9)
	require.NoError(t, p.Commit(within(t), at(10)))
	transact(t, p, "a", 10, 19)
	s.Kill(0)
	transact(t, p, "a", 20, 29)
	require.NoError(t, s.StartBroker(t.Context(), 0))
	transact(t, p, "a", 30, 39)
	require.NoError(t, p.Commit(within(t), at(40)))
	require.NoError(t, p.Err())
	require.NoError(t, p.Close())
	require.Equal(t, numbers(0, 39), s.committed())
	require.Equal(t, at(40), s.checkpoint())
}

// The loop below ends when it has seen so much.
const (
	wantedCommits = 60
	wantedFaults  = 60
)

// Transactions of random size under random faults; after every failure the
// events from the checkpoint on are published again. Whatever happens, a reader
// with read_committed sees each event once, in order.
func TestExactlyOnceUnderCuts(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("SEED=%d", seed)
	s := newScene(t)
	nemesis := &cutter{scene: s, dice: rand.New(rand.NewPCG(seed, 1)), stop: make(chan struct{}), done: make(chan struct{})}
	go nemesis.run()
	l := &loop{scene: s, dice: rand.New(rand.NewPCG(seed, 2))}
	l.enough = func() bool { return l.commits >= wantedCommits && nemesis.faults.Load() >= wantedFaults }
	deadline := time.Now().Add(3 * time.Minute)
	for !l.enough() && time.Now().Before(deadline) {
		l.session()
	}
	close(nemesis.stop)
	<-nemesis.done
	s.network.Heal()
	quiet := l.commits
	l.enough = func() bool { return l.commits > quiet }
	for !l.enough() { // in peace, to settle what is open
		l.session()
	}
	l.bury(within(t))
	t.Logf("%d commits known, %d sessions, %d faults, %d events", l.commits, l.sessions, nemesis.faults.Load(), l.next)
	require.GreaterOrEqual(t, l.commits, wantedCommits)
	pos := s.checkpoint()
	require.Equal(t, l.next, pos.Order)
	require.Equal(t, numbers(0, int(l.next)-1), s.committed())
}

// loop is the relay of the test: it knows nothing but the checkpoint.
type loop struct {
	*scene
	dice   *rand.Rand
	enough func() bool
	zombie *publisher.Transactional // the session before, with an open transaction

	next      uint64 // the event to publish next
	committed uint64 // events of the commits that are known
	commits   int
	sessions  int
}

// session publishes until something fails, or it is enough, or at random: then
// it is forgotten with an open transaction, and tries to commit once the next
// session has begun.
func (l *loop) session() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := publisher.NewTransactional(ctx, l.config(), l.slot())
	if err != nil {
		return // the network is cut; the next session tries again
	}
	l.sessions++
	pos, _ := p.Checkpoint()
	require.GreaterOrEqual(l.t, pos.Order, l.committed, "a known commit is never lost")
	l.next = pos.Order
	l.bury(ctx)
	for left := 3 + l.dice.IntN(60); err == nil && !l.enough(); left-- {
		if left == 0 {
			_ = p.Publish(ctx, event(l.next, "a", "never committed"))
			l.zombie = p
			return
		}
		err = l.transaction(ctx, p)
	}
	require.NoError(l.t, p.Close())
	if err != nil {
		require.True(l.t, errors.Is(err, publisher.ErrFailed) || errors.Is(err, publisher.ErrRoute) || errors.Is(err, context.DeadlineExceeded), "%v", err)
		l.next = l.committed // until the checkpoint says otherwise
	}
}

// bury has the session before try its commit, which must be in vain.
func (l *loop) bury(ctx context.Context) {
	if l.zombie == nil {
		return
	}
	require.ErrorIs(l.t, l.zombie.Commit(ctx, at(l.next+1000)), publisher.ErrFailed)
	require.NoError(l.t, l.zombie.Close())
	l.zombie = nil
}

func (l *loop) transaction(ctx context.Context, p *publisher.Transactional) error {
	next := l.next
	for range 1 + l.dice.IntN(200) {
		if err := p.Publish(ctx, event(next, "a", fmt.Sprint(next))); err != nil {
			return err
		}
		next++
	}
	if err := p.Commit(ctx, at(next)); err != nil {
		return err
	}
	l.next, l.committed = next, next
	l.commits++
	return nil
}

// cutter cuts all connections and loses replies, at random.
type cutter struct {
	*scene
	dice       *rand.Rand
	stop, done chan struct{}
	faults     atomic.Int64
}

var losable = []kafkaproxy.Key{
	kafkaproxy.Produce, kafkaproxy.AddPartitionsToTxn, kafkaproxy.AddOffsetsToTxn,
	kafkaproxy.TxnOffsetCommit, kafkaproxy.EndTxn, kafkaproxy.InitProducerID, kafkaproxy.OffsetCommit, kafkaproxy.OffsetFetch,
}

func (c *cutter) run() {
	defer close(c.done)
	for {
		select {
		case <-c.stop:
			return
		case <-time.After(time.Duration(c.dice.IntN(600)) * time.Millisecond):
		}
		c.faults.Add(1)
		switch c.dice.IntN(3) {
		case 0:
			c.network.Cut()
		case 1:
			c.inject(losable[c.dice.IntN(len(losable))], kafkaproxy.DropReply)
		default:
			c.link.Refuse(true)
			c.network.Cut()
			select {
			case <-c.stop:
			case <-time.After(time.Duration(c.dice.IntN(800)) * time.Millisecond):
			}
			c.link.Refuse(false)
		}
	}
}

// BenchmarkModes measures both modes against the real broker: events/s is the
// figure. A transaction ends every 100 ms, as the relay's do.
func BenchmarkModes(b *testing.B) {
	shared, err := shared()
	require.NoError(b, err)
	events := make([]publisher.Event, 1000)
	for i := range events {
		events[i] = event(uint64(i), fmt.Sprintf("order-%d", i), fmt.Sprintf("%0350d", i))
	}
	config := func(b *testing.B) publisher.Config {
		b.Helper()
		topic := fmt.Sprintf("b%d", time.Now().UnixNano())
		require.NoError(b, shared.CreateTopic(b.Context(), topic, 12, nil))
		return publisher.Config{Brokers: shared.Addrs(), Routes: []publisher.Route{{Topic: topic}}}
	}
	b.Run("mode=idempotent", func(b *testing.B) {
		p, _ := start(b, config(b))
		publish := func(i int) { require.NoError(b, p.Publish(b.Context(), events[i%len(events)])) }
		publish(0)
		for i := 0; b.Loop(); i++ {
			publish(i)
		}
		require.NoError(b, p.Flush(b.Context()))
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	})
	b.Run("mode=exactly-once", func(b *testing.B) {
		p := startTransactional(b, config(b), publisher.TransactionConfig{ID: b.Name(), Group: b.Name()})
		var committing time.Duration
		commits := 0
		commit := func() {
			begin := time.Now()
			require.NoError(b, p.Commit(b.Context(), at(uint64(begin.UnixNano()))))
			committing += time.Since(begin)
			commits++
		}
		var began time.Time
		publish := func(i int) {
			require.NoError(b, p.Publish(b.Context(), events[i%len(events)]))
			if i%64 == 0 && time.Since(began) >= 100*time.Millisecond {
				commit()
				began = time.Now()
			}
		}
		publish(0)
		for i := 1; b.Loop(); i++ {
			publish(i)
		}
		commit()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		b.ReportMetric(float64(committing.Milliseconds())/float64(commits), "ms/commit")
	})
}
