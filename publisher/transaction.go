package publisher

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/internal/fault"
)

// Defaults of [TransactionConfig].
const (
	DefaultCheckpointTopic    = "onceward.checkpoint"
	defaultTransactionTimeout = time.Minute
)

// maxMeta is the broker's default for offset.metadata.max.bytes.
const maxMeta = 4096

// ErrFenced: another producer with the same transactional id has taken over, or
// the coordinator has aborted the transaction on its own, which cannot be told
// apart. Give up everything read so far; only who owns the slot may make a new
// [Transactional].
var ErrFenced = errors.New("producer fenced")

// TransactionConfig names what must be one per slot, for ever: two producers
// with the same ID fence one another, and the checkpoint lies in Group.
type TransactionConfig struct {
	// ID is the transactional id. Required.
	ID string
	// Group is the consumer group whose offset is the checkpoint. No consumer
	// may join it. Required.
	Group string
	// Topic is the topic of that offset, whose partition 0 it names. It holds
	// no records, and no events may be routed to it: whoever deletes it deletes
	// the checkpoint. Default "onceward.checkpoint".
	Topic string
	// Timeout is how long a transaction may stay open before the coordinator aborts it, which is also how long a dead
	// relay holds readers back. The brokers' transaction.max.timeout.ms must not be below it. Default 1 minute; 1
	// second to 15 minutes.
	Timeout time.Duration

	faults transactionFaults
}

// transactionFaults are deliberate defects, as [faults] are.
type transactionFaults struct {
	keepProducer bool // after a commit
	untilQuiet   bool // the checkpoint is read without RequireStable
	unprobed     bool // the checkpoint is read without a write before it
	halves       bool // what is half committed is aborted
	unwatched    bool // a transaction that is open for too long is left to the coordinator
}

func (c TransactionConfig) resolve() (TransactionConfig, error) {
	c.faults.keepProducer = c.faults.keepProducer || fault.Is(fault.OneEpoch)
	setDefault(&c.Topic, DefaultCheckpointTopic)
	setDefault(&c.Timeout, defaultTransactionTimeout)
	if c.ID == "" {
		return c, configError("TransactionConfig.ID", `""`, "required: one per slot, stable over restarts")
	}
	if c.Group == "" {
		return c, configError("TransactionConfig.Group", `""`, "required: one per slot, stable over restarts")
	}
	if InvalidTopic(c.Topic) != "" {
		return c, configError("TransactionConfig.Topic", fmt.Sprintf("%q", c.Topic), InvalidTopic(c.Topic))
	}
	if c.Timeout < time.Second || c.Timeout > 15*time.Minute {
		return c, configError("TransactionConfig.Timeout", c.Timeout, "want 1s to 15m")
	}
	return c, nil
}

// Position is how far a commit has come. Both parts are opaque here.
type Position struct {
	// Order is what Kafka keeps as the offset; at most 2⁶³ − 1.
	Order uint64
	// Meta is kept beside it, at most 4096 bytes of UTF-8.
	Meta string
}

// Transactional publishes events to one cluster in exactly-once mode: the
// events of a transaction and the position behind them become visible together
// or not at all. One goroutine calls its methods; Failed, Err and
// Close may be called from any.
type Transactional struct {
	publisher *Publisher
	settings  *settings
	config    TransactionConfig
	start     Position // the checkpoint at New
	found     bool

	wire *wire
	last Position // that is known to be committed, or start
	// When the coordinator was first needed, in ns since born; 0 when it is not.
	opened atomic.Int64
	born   time.Time

	// Of the open transaction; publisher.handover guards them.
	begun  bool
	events int
	bytes  int64
	since  time.Time
	taken  time.Time     // all of the last one
	ending chan struct{} // closed when the last commit or abort has ended; nil before

	turn chan struct{} // of capacity 1: taken by who has txn
	txn  *txn
}

// NewTransactional connects to the cluster, checks the checkpoint topic (and makes it, when Topics.Create), gets a
// producer id, which ends whatever a producer of the same id left open, and only then reads the checkpoint. Only the
// owner of the slot may call it, because it fences everybody else. It blocks until all that is done or ctx ends; ctx
// is not used afterwards. A transaction of a foreign producer that holds the checkpoint back is waited for.
//
// It returns a [*CheckpointError] when the checkpoint topic is not as it must be. The caller must call Close, also
// after a failure.
func NewTransactional(ctx context.Context, cfg Config, tx TransactionConfig) (*Transactional, error) {
	s, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	if tx, err = tx.resolve(); err != nil {
		return nil, err
	}
	if s.router, err = newRouter(s.Routes, s.Topics.Allow, DefaultCheckpointTopic, tx.Topic); err != nil {
		return nil, err
	}
	w := newWire(s.Dial)
	disarm := context.AfterFunc(ctx, w.Cut)
	t := &Transactional{settings: s, config: tx, wire: w, born: time.Now(), turn: make(chan struct{}, 1)}
	b, err := reach(s, w)
	if err == nil {
		err = t.connect(b)
	}
	if !disarm() {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		w.Cut()
		if b != nil {
			b.Close()
		}
		if t.txn != nil {
			t.txn.hangUp()
		}
		return nil, err
	}
	p := t.publisher
	p.start(func([]uint64) {})
	if !tx.faults.unwatched {
		p.tasks.Go(t.watch)
	}
	return t, nil
}

// connect does what NewTransactional promises, in the one order that is safe.
func (t *Transactional) connect(b *brokers) error {
	s, w := t.settings, t.wire
	if err := checkCheckpoint(b, w, s, t.config.Topic); err != nil {
		return err
	}
	d := transactionalDelivery(s, w, t.config)
	d.Join = t.join
	t.txn = newTxn(s, w, t.config, d.Connection)
	if key, err := t.txn.findCoordinators(); err != nil {
		return fmt.Errorf("find the coordinator of %q: %w: %s", key, err, t.advise(err))
	}
	if !t.config.faults.halves {
		if err := t.txn.finish(s, d.Connection); err != nil {
			return t.explainStart(fmt.Errorf("see how the last transaction has ended: %w", err))
		}
	}
	if err := t.txn.initialize(); err != nil {
		return t.explainStart(fmt.Errorf("get a producer id from %s: %w: %s", b.Address, err, advise(err, s)))
	}
	p := newPublisher(s, w, b, d)
	p.watcher.also = t.lookForTopic
	t.publisher = p
	var err error
	t.start, t.found, err = t.fetch(0)
	t.last = t.start
	return err
}

// Checkpoint returns the position of the last commit as it was when the
// Transactional was made, and false when there is none.
func (t *Transactional) Checkpoint() (Position, bool) {
	return t.start, t.found && !fault.Is(fault.NoCheckpoint)
}

// Publish hands an event over and opens a transaction when none is open. It blocks, and refuses events, as
// [Publisher.Publish] does; after a [*RouteError] or a [*record.RowError] the transaction is as it was before. An event
// for which nil was returned ends with the commit of its transaction.
func (t *Transactional) Publish(ctx context.Context, ev Event) error {
	p := t.publisher
	p.handover.Lock()
	defer p.handover.Unlock()
	r, err := p.accept(ctx, ev)
	if err != nil {
		return err
	}
	cost := r.Cost // the record is not ours any more once it is sent
	t.begin()
	if err := p.send(ctx, r); err != nil {
		return p.reason(err)
	}
	t.events++
	t.bytes += cost
	return nil
}

// Usable is [Publisher.Usable].
func (t *Transactional) Usable(ctx context.Context, ev Event) error {
	return t.publisher.Usable(ctx, ev)
}

// begin opens a transaction. Nothing is sent.
func (t *Transactional) begin() {
	if t.begun {
		return
	}
	t.begun, t.since = true, time.Now()
	t.txn.producer.Transaction++
	t.publisher.loop.Become(t.txn.producer)
	t.opened.Store(int64(max(time.Since(t.born), 1)))
}

// join adds partitions to the open transaction for the loop, and then the group,
// of which the commit need not think any more.
func (t *Transactional) join(partitions map[string][]int32) {
	p := t.publisher
	t.inTurn(func() {
		topic, err := t.txn.addPartitions(partitions)
		p.loop.Joined(topic, err)
		if err != nil {
			return
		}
		if err := t.txn.addGroup(); err != nil && !p.closing() {
			p.fail(t.explain("commit a transaction", err))
		}
	})
}

// inTurn runs fn beside the caller, when those before it have ended: one goroutine
// at a time has txn. It ends with the wire, if not by itself.
func (t *Transactional) inTurn(fn func()) {
	t.publisher.tasks.Go(func() {
		t.turn <- struct{}{}
		defer func() { <-t.turn }()
		fn()
	})
}

// Open describes the open transaction: how many events it holds, how much memory they took, estimated as for
// MaxInFlightBytes, and when the first was to be handed over. All are zero when none was.
func (t *Transactional) Open() (events int, bytes int64, since time.Time) {
	t.publisher.handover.Lock()
	defer t.publisher.handover.Unlock()
	return t.events, t.bytes, t.since
}

// Taken returns when brokers had acknowledged all that the last commit made visible, and until when one takes nothing,
// because a quota is used up; each is zero when that was not so.
func (t *Transactional) Taken() (all, throttled time.Time) {
	return t.taken, t.settings.Memory.throttle.Until()
}

// Failed is closed when nothing can be committed any more.
func (t *Transactional) Failed() <-chan struct{} { return t.publisher.Failed() }

// Err returns nil until Failed is closed, and then why. It matches [ErrFailed],
// and [ErrFenced] when another producer has taken over.
func (t *Transactional) Err() error { return t.publisher.Err() }

// Close ends the Transactional and waits for its goroutines, as [Publisher.Close] does. It never commits: an open
// transaction is aborted if that takes no longer than two seconds, and else left to the next producer with the same
// id, or to its timeout.
func (t *Transactional) Close() error { return t.publisher.close(t.letGo, t.txn.hangUp) }

// watch fails the Transactional when a transaction has been open, or its end
// under way, for longer than the coordinator bears. What is retried in vain
// ends with that.
func (t *Transactional) watch() {
	p := t.publisher
	tick := time.NewTicker(t.config.Timeout / 8)
	defer tick.Stop()
	for {
		select {
		case <-p.quit:
			return
		case <-p.failed:
			return
		case <-tick.C:
			opened := t.opened.Load()
			if opened != 0 && time.Since(t.born)-time.Duration(opened) > t.config.Timeout {
				p.fail(fmt.Errorf("%w: a Kafka transaction was not ended, or what it left not read, within its timeout of %s; "+
					"see whether partitions lack in-sync replicas, brokers are away or a quota holds up what is written, and go on from the checkpoint", ErrFailed, t.config.Timeout))
				return
			}
		}
	}
}
