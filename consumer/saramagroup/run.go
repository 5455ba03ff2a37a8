package saramagroup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/consumer"
)

// Handler is what Run feeds; *consumer.Router is one. Its methods are called
// concurrently, and must return soon after their context ends.
type Handler interface {
	// Group returns the name of the consumer group.
	Group() string
	// Err returns why no record can be handled, or nil.
	Err() error
	// HandleRecord delivers one record. The record is finished if and only if
	// the error is nil and the outcome acknowledges.
	HandleRecord(ctx context.Context, rec consumer.Record) (consumer.Outcome, error)
	// HandleRecords delivers records of one partition that share a transaction,
	// and returns as many deliveries.
	HandleRecords(ctx context.Context, recs []consumer.Record) []consumer.Delivery
	// Peek says when a record's event happened and whether it shares a
	// transaction with others.
	Peek(rec consumer.Record) consumer.Peek
	// SaveProgress makes marks durable behind the effects that they stand for,
	// unless the database is on another history by now: consumer.ErrHistory.
	SaveProgress(ctx context.Context, history string, marks []consumer.Mark) error
	// Progress reads them, and which history the database is on.
	Progress(ctx context.Context) (consumer.Progress, error)
	// Redrive handles dead letters again that an operator has asked for.
	Redrive(ctx context.Context, limit int) (done int, err error)
	// RecoverFences drives effects whose process died.
	RecoverFences(ctx context.Context, limit int) (done int, err error)
	// SendLetters gives dead letters to send that it has not got yet, and
	// remembers those that send returns.
	SendLetters(ctx context.Context, send func(ctx context.Context, letters []consumer.Letter) (sent []consumer.Letter, err error)) (total int, err error)
}

// shortSession is how long a session must last, or else finish a message, not
// to count as a failed one after which Run pauses: one heartbeat.
const shortSession = 3 * time.Second

// Run consumes as a member of the handler's group until ctx ends. It rides
// through outages of Kafka and PostgreSQL, see the package comment. It returns
// nil when ctx has ended and the offsets of all finished messages were
// committed as far as Kafka could be reached, and an error when going on is
// pointless. It leaves the group before it returns.
func Run(ctx context.Context, brokers []string, handler Handler, cfg Config) error {
	cfg = cfg.withDefaults()
	if len(brokers) == 0 {
		return errors.New("consume: no brokers given")
	}
	if err := handler.Err(); err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	sc, err := cfg.SaramaConfig()
	if err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := &runner{
		handler: handler, brokers: brokers, cfg: cfg, sarama: sc,
		stop:  func(err error) { stop(fatal{err}) },
		log:   cfg.Logger.With("group", handler.Group()),
		pause: backoff{min: cfg.RetryMin, max: cfg.RetryMax},
	}
	defer r.tally.observe(handler.Group(), cfg)()
	defer r.keepHouse(ctx)()
	return r.run(ctx)
}

// runner is one call of Run.
type runner struct {
	handler Handler
	brokers []string
	cfg     Config
	sarama  *sarama.Config
	stop    func(error) // ends run with the error
	log     *slog.Logger
	pause   backoff
	tally   tally
	looks   sync.WaitGroup // questions to Kafka that workers have left
}

// fatal marks the cause of a context that run has ended itself.
type fatal struct{ error }

func (r *runner) run(ctx context.Context) error {
	client, group, err := r.connect(ctx)
	switch {
	case group != nil:
	case ctx.Err() != nil:
		return failure(ctx)
	default:
		return err
	}
	var watcher sync.WaitGroup
	watcher.Go(func() { r.watch(group.Errors()) })
	err = r.consume(ctx, client, group)
	if closeErr := group.Close(); closeErr != nil {
		r.log.Warn("leaving the group failed; Kafka will notice by its session timeout", "error", closeErr)
	}
	watcher.Wait() // Close has ended the errors
	_ = client.Close()
	r.looks.Wait()
	return err
}

// connect tries until Kafka answers or ctx ends. The client is for questions: a
// connection of the group's own answers nothing while it waits for messages.
func (r *runner) connect(ctx context.Context) (sarama.Client, sarama.ConsumerGroup, error) {
	for {
		client, err := sarama.NewClient(r.brokers, r.sarama)
		if err == nil {
			var group sarama.ConsumerGroup
			if group, err = sarama.NewConsumerGroup(r.brokers, r.handler.Group(), r.sarama); err == nil {
				r.pause.reset()
				return client, group, nil
			}
			_ = client.Close()
		}
		if hopeless(err) {
			return nil, nil, fmt.Errorf("connect to Kafka: %w", err)
		}
		if !r.wait(ctx, "Kafka does not answer", err) {
			return nil, nil, err
		}
	}
}

// consume runs session after session.
func (r *runner) consume(ctx context.Context, client sarama.Client, group sarama.ConsumerGroup) error {
	for {
		m := &member{handler: r.handler, cfg: r.cfg, stop: r.stop, log: r.log, client: client, tally: &r.tally, looks: &r.looks}
		m.over = make(chan struct{})
		started := time.Now()
		err := group.Consume(ctx, r.cfg.Topics, r.hooked(m))
		if ctx.Err() != nil {
			return failure(ctx)
		}
		if hopeless(err) {
			return fmt.Errorf("consume %v as group %q: %w", r.cfg.Topics, r.handler.Group(), err)
		}
		if err == nil && (m.finished.Load() > 0 || time.Since(started) >= shortSession) {
			r.pause.reset()
			continue
		}
		if !r.wait(ctx, "no session with Kafka", err) {
			return failure(ctx)
		}
	}
}

func (r *runner) hooked(m *member) sarama.ConsumerGroupHandler {
	if r.cfg.hooks.member == nil {
		return m
	}
	return r.cfg.hooks.member(m)
}

// failure returns what was given to runner.stop, nil when the caller's own
// context ended.
func failure(ctx context.Context) error {
	if f, ok := context.Cause(ctx).(fatal); ok { //nolint:errorlint // the cause itself, not what it wraps
		return f.error
	}
	return nil
}

func (r *runner) wait(ctx context.Context, what string, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	delay := r.pause.step()
	r.log.Warn(what, "error", err, "retry_in", delay)
	return sleep(ctx, delay)
}

// watch logs what sarama reports from its own goroutines, until the group is
// closed. An offset that Kafka no longer has ends Run: to go on anywhere else
// would skip messages.
func (r *runner) watch(reports <-chan error) {
	for err := range reports {
		if errors.Is(err, sarama.ErrOffsetOutOfRange) {
			r.stop(fmt.Errorf("the messages after the committed offset of group %q are gone from Kafka (retention, or the topic was created again): %w; "+
				"compare the topic with the outbox (`outboxctl list`), replay what was lost (`outboxctl replay`), then set the group's offset by hand", r.handler.Group(), err))
			continue
		}
		r.log.Warn("Kafka reports an error", "error", err)
	}
}

// hopeless reports whether joining again cannot help before a person changes
// something.
func hopeless(err error) bool {
	var config sarama.ConfigurationError
	if errors.As(err, &config) {
		return true
	}
	for _, target := range []error{
		sarama.ErrSASLAuthenticationFailed, sarama.ErrUnsupportedSASLMechanism,
		sarama.ErrTopicAuthorizationFailed, sarama.ErrGroupAuthorizationFailed, sarama.ErrClusterAuthorizationFailed,
		sarama.ErrInconsistentGroupProtocol, sarama.ErrInvalidGroupId, sarama.ErrInvalidTopic,
		sarama.ErrInvalidSessionTimeout, sarama.ErrUnsupportedVersion,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
