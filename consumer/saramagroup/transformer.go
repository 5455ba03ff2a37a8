package saramagroup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/internal/aside"
	"github.com/onceward/onceward/consumer/saramagroup/internal/durable"
	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/internal/wire"
)

// errFunc marks an error of a [TransformFunc], or of its outputs: the record is tried
// again, and nothing else is amiss.
var errFunc = errors.New("transform")

// transforming is one call of [Transform].
type transforming struct {
	joiner
	cfg       TransformConfig
	fn        TransformFunc
	confirmed confirmed
	judged    sync.Map // topics of which it is known whether they keep what they have
}

// session implements work.
func (t *transforming) session(client sarama.Client) session {
	return &transformer{transforming: t, questions: client}
}

// refused implements work. Nothing is there in which the batch could be kept.
func (t *transforming) refused(err error) {
	t.stop(fmt.Errorf("a batch unpacks to more than the limit, and nothing of its broker can be read: %w; "+
		"raise sarama.MaxDecompressedBatchSize, or set the offset of group %q behind it by hand", err, t.group))
}

// outOfRange implements work.
func (t *transforming) outOfRange(err error) {
	t.stop(fmt.Errorf("the messages after the committed offset of group %q are gone from Kafka (retention, or the topic was created again): %w; "+
		"see what was lost, then set the group's offset by hand", t.group, err))
}

// transformer is one session of a [Transform]: sarama's ConsumerGroupHandler. Each
// partition has a worker of its own, with a transaction of its own; they share the
// connections.
type transformer struct {
	*transforming
	questions sarama.Client
	client    sarama.Client // of the producers, from Setup on
	wire      *wire.Wire
	tasks     sync.WaitGroup // what sarama does for the producers
	finished  atomic.Int64   // messages of this session

	mu      sync.Mutex
	failure error // the first that ended the session
}

// Setup connects the producers. No transaction of an earlier generation can be committed
// any more, and the offsets at which the partitions begin are behind all that were:
// sarama reads them with RequireStable.
func (t *transformer) Setup(s sarama.ConsumerGroupSession) error {
	t.log.Info("joined the group", "generation", s.GenerationID(), "member", s.MemberID(), "partitions", s.Claims())
	return t.connect()
}

func (t *transformer) connect() error {
	config, err := t.cfg.producers()
	if err != nil {
		return err
	}
	t.wire = wire.Into(config)
	t.tune(config)
	t.client, err = sarama.NewClient(t.brokers, config)
	return err
}

// tune has the retries of a configuration end soon after the timeout of a transaction,
// and with the wire; see newTxn.
func (t *transformer) tune(config *sarama.Config) {
	tries := int(t.cfg.TransactionTimeout/txnRetryMax) + 10
	config.Producer.Retry.Max, config.Producer.Transaction.Retry.Max = tries, tries
	config.Metadata.Retry.Max, config.Metadata.Retry.BackoffFunc = tries, func(retries, _ int) time.Duration {
		t.wire.Pause(backoff.After(retries+1, produceRetryMin, txnRetryMax))
		return 0
	}
}

// Cleanup waits for what workers have left behind. sarama calls it when all of them have
// returned.
func (t *transformer) Cleanup(s sarama.ConsumerGroupSession) error {
	t.disconnect()
	t.log.Info("left the session", "generation", s.GenerationID(), "cause", context.Cause(s.Context()), "finished", t.finished.Load())
	return nil
}

func (t *transformer) disconnect() {
	if t.client == nil {
		return
	}
	t.wire.Cut()
	_ = t.client.Close()
	t.tasks.Wait()
}

// close implements session. Offsets that are held back are those of a member that died in
// the middle of a commit, of which nobody had the time to say the end: it is said here,
// in the place of its timeout.
func (t *transformer) close(err error) ending {
	if errors.Is(err, sarama.ErrUnstableOffsetCommit) {
		if freeErr := t.free(); freeErr != nil {
			t.log.Warn("what holds offsets back was not ended; the next try will, or its timeout", "error", freeErr)
		}
	}
	finished := t.finished.Load() > 0
	return ending{finished: finished, hopeful: finished, err: t.failure}
}

// do runs what sarama gives no context, and leaves it behind when ctx ends first: Cleanup
// cuts its connections, and waits.
func (t *transformer) do(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	t.tasks.Go(func() { done <- f() })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// judge warns once of topics that can lose what they have confirmed. It does not wait.
func (t *transformer) judge(topics ...string) {
	for _, topic := range topics {
		if _, judged := t.judged.LoadOrStore(topic, true); judged {
			continue
		}
		t.tasks.Go(func() {
			why, cure, err := durable.Weakness(t.client, topic)
			switch {
			case errors.Is(err, sarama.ErrTopicAuthorizationFailed),
				errors.Is(err, sarama.ErrClusterAuthorizationFailed):
				t.log.Info("cannot see whether a topic keeps what it has confirmed; going on. Grant DESCRIBE and DESCRIBE_CONFIGS to have it checked",
					"topic", topic, "error", err)
			case err != nil: // the session is over, or Kafka is away: it is asked again
				t.judged.Delete(topic)
			case why != "":
				t.log.Warn("a topic can lose what it has confirmed: outputs can be lost, or be made twice", "topic", topic, "because", why, "cure", cure)
			}
		})
	}
}

// fail says of what the session ends. What a person has to change ends Transform.
func (t *transformer) fail(at place, err error) {
	log := t.log.With("topic", at.topic, "partition", at.partition, "error", err)
	var back *wentBackError
	switch {
	case errors.As(err, &back):
		t.stop(err)
	case hopeless(err) && !t.mayLogIn(err), errors.Is(err, sarama.ErrTransactionalIDAuthorizationFailed),
		errors.Is(err, sarama.ErrInvalidTransactionTimeout):
		t.stop(fmt.Errorf("transform %s/%d as group %q: %w", at.topic, at.partition, t.group, err))
	case errors.Is(err, sarama.ErrIllegalGeneration), errors.Is(err, sarama.ErrUnknownMemberId),
		errors.Is(err, sarama.ErrFencedInstancedId):
		log.Info("the partition is another member's by now, which goes on from the offset that was committed last")
	case errors.Is(err, sarama.ErrProducerFenced), errors.Is(err, sarama.ErrInvalidProducerEpoch):
		log.Warn("its producer was replaced by another member, or its transaction was open for longer than TransactionTimeout; " +
			"joining again, at the offset that was committed last")
	default:
		log.Warn("a transaction failed; joining again, at the offset that was committed last")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failure == nil {
		t.failure = err
	}
}

// ConsumeClaim is the worker of one partition. The session ends when it returns.
func (t *transformer) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	lasts, at := s.Context(), place{claim.Topic(), claim.Partition()}
	ctx, cancel := drained(lasts, t.cfg.DrainTimeout)
	defer cancel()
	w := &shift{
		transformer: t, session: s, claim: claim, known: make(map[string]bool),
		pause: backoff.Jittered{Min: t.cfg.RetryMin, Max: t.cfg.RetryMax},
		txn:   newTxn(t, at, sarama.NewConsumerGroupMetadataFromSession(s, t.group, nil)),
		log:   t.log.With("topic", at.topic, "partition", at.partition),
		next:  claim.InitialOffset(),
	}
	err := w.run(ctx, lasts)
	if err != nil && lasts.Err() == nil {
		t.fail(at, err)
	}
	leaving, done := context.WithTimeout(context.WithoutCancel(lasts), t.cfg.DrainTimeout)
	defer done()
	w.txn.leave(leaving, err)
	return nil
}

// shift is the worker of one partition in one session.
type shift struct {
	*transformer
	session sarama.ConsumerGroupSession
	claim   sarama.ConsumerGroupClaim
	txn     *txn
	log     *slog.Logger
	pause   backoff.Jittered
	known   map[string]bool         // topics of outputs that are there
	inHand  *sarama.ConsumerMessage // not transformed yet
	last    *sarama.ConsumerMessage // of the open transaction
	next    int64                   // no message before it is taken
	records int                     // in it
	bytes   int                     // of its outputs
	until   time.Time               // when it is committed at the latest
}

// run works until lasts ends, with the session. ctx outlives it by the drain's time, for a commit that
// is under way.
func (w *shift) run(ctx, lasts context.Context) error {
	if err := w.txn.take(ctx); err != nil {
		return err
	}
	if err := w.verify(ctx, w.txn.at, w.claim.InitialOffset()); err != nil {
		return err
	}
	w.judge("__consumer_offsets", "__transaction_state")
	for {
		// The user's function may end its goroutine: not sarama's, and not one for each record.
		err := aside.Do(func() error { return w.work(ctx, lasts) })
		if !errors.Is(err, aside.ErrExited) {
			return err
		}
		if err := w.wait(ctx, lasts, fmt.Errorf("%w: %w", errFunc, err)); err != nil {
			return err
		}
	}
}

// work transforms what is in hand, as often as it takes, and what comes.
func (w *shift) work(ctx, lasts context.Context) error {
	for {
		for w.inHand != nil && lasts.Err() == nil {
			if err := w.take(ctx, lasts, w.inHand); err != nil {
				return err
			}
		}
		select {
		case <-lasts.Done():
			return nil
		case <-wake(w.until):
			if err := w.commit(ctx); err != nil {
				return err
			}
		case msg, open := <-w.claim.Messages():
			if !open {
				return nil
			}
			if msg.Offset < w.next {
				return fmt.Errorf("sarama has given offset %d, and %d was to come", msg.Offset, w.next)
			}
			w.inHand, w.next = msg, msg.Offset+1
		}
	}
}

// take transforms the message in hand, and commits what is due. One that fails stays in hand.
func (w *shift) take(ctx, lasts context.Context, msg *sarama.ConsumerMessage) error {
	outputs, err := w.transform(lasts, msg)
	if err != nil {
		return w.wait(ctx, lasts, err)
	}
	w.pause.Reset()
	if w.last == nil {
		w.until = time.Now().Add(w.cfg.CommitInterval)
	}
	bounded, cancel := context.WithTimeout(lasts, w.cfg.TransactionTimeout)
	defer cancel()
	if err := w.txn.send(bounded, outputs); err != nil {
		return err
	}
	w.last, w.inHand = msg, nil
	w.records++
	for _, m := range outputs {
		w.bytes += m.ByteSize(messageVersion)
	}
	if w.records >= w.cfg.MaxRecords || w.bytes >= maxOutputBytes || !time.Now().Before(w.until) {
		return w.commit(ctx)
	}
	return nil
}

// wait pauses before the message in hand is tried again. What came before it does not wait.
func (w *shift) wait(ctx, lasts context.Context, failed error) error {
	if lasts.Err() != nil {
		return nil //nolint:nilerr // the session ends, which is no failure
	}
	if err := w.commit(ctx); err != nil {
		return err
	}
	delay := w.pause.Next()
	w.log.Error("message failed; its partition waits", "offset", w.inHand.Offset, "error", failed, "retry_in", delay)
	sleep(lasts, delay)
	return nil
}

// commit commits what is open, if anything is.
func (w *shift) commit(ctx context.Context) error {
	if w.last == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, w.cfg.TransactionTimeout)
	defer cancel()
	if err := w.txn.commit(ctx, w.last); err != nil {
		return err
	}
	if w.cfg.faults.outside {
		w.session.MarkMessage(w.last, "")
		w.session.Commit()
	}
	w.finished.Add(int64(w.records))
	w.last, w.records, w.bytes, w.until = nil, 0, 0, time.Time{}
	return nil
}

// transform calls the user's function, and makes messages of what it returns.
func (w *shift) transform(ctx context.Context, msg *sarama.ConsumerMessage) ([]*sarama.ProducerMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.TransactionTimeout/2)
	defer cancel()
	outputs, err := w.call(ctx, record(msg))
	if err != nil {
		return nil, err
	}
	messages := make([]*sarama.ProducerMessage, len(outputs))
	for i, out := range outputs {
		messages[i] = out.message()
		if err := w.check(messages[i]); err != nil {
			return nil, fmt.Errorf("%w: output %d: %w", errFunc, i, err)
		}
	}
	return messages, nil
}

// call turns a panic of the user's function into an error.
func (w *shift) call(ctx context.Context, rec consumer.Record) (outputs []Output, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: panic: %v\n%s", errFunc, p, debug.Stack())
		}
	}()
	outputs, err = w.fn(ctx, rec)
	if err != nil {
		err = fmt.Errorf("%w: %w", errFunc, err)
	}
	return outputs, err
}

// check refuses what Kafka would: of a transaction that has failed, all of it is made
// again, and every member of the group joins again.
func (w *shift) check(m *sarama.ProducerMessage) error {
	for _, topic := range w.cfg.Topics {
		if m.Topic == topic {
			return fmt.Errorf("topic %q is one of Topics; it would come back for ever", topic)
		}
	}
	if size := m.ByteSize(messageVersion); size > w.cfg.MaxMessageBytes {
		return fmt.Errorf("%d bytes for topic %q are more than MaxMessageBytes, %d", size, m.Topic, w.cfg.MaxMessageBytes)
	}
	if w.known[m.Topic] {
		return nil
	}
	if _, err := w.questions.Partitions(m.Topic); err != nil {
		return fmt.Errorf("topic %q cannot be written to: %w; create it, or allow it to be described", m.Topic, err)
	}
	w.known[m.Topic] = true
	w.judge(m.Topic)
	return nil
}
