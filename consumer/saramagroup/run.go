package saramagroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/backoff"
)

// Handler is what Run feeds; *consumer.Router is one. Its methods are called
// concurrently, and must return soon after their context ends.
type Handler interface {
	// Group returns the name of the consumer group.
	Group() string
	// Err returns why no record can be handled, or nil.
	Err() error
	// Attend is called at the start of Run, which returns its error, and leave at the
	// end: a second Run at the same time is refused with consumer.ErrAttended.
	Attend() (leave func(), err error)
	// HandleRecord delivers one record. The record is finished if and only if
	// the error is nil and the outcome acknowledges.
	HandleRecord(ctx context.Context, rec consumer.Record) (consumer.Outcome, error)
	// HandleCautiously is HandleRecord for a record that may be what has killed a
	// process; see the package comment.
	HandleCautiously(ctx context.Context, rec consumer.Record) (consumer.Outcome, error)
	// HandleRecords delivers records of one partition that share a transaction,
	// and returns as many deliveries.
	HandleRecords(ctx context.Context, recs []consumer.Record) []consumer.Delivery
	// Peek says when a record's event happened and whether it shares a
	// transaction with others.
	Peek(rec consumer.Record) consumer.Peek
	// SaveProgress makes marks durable behind the effects that they stand for,
	// unless the database is on another history by now: consumer.ErrHistory.
	SaveProgress(ctx context.Context, history string, marks []consumer.Mark) error
	// BeginProgress is SaveProgress with the marks of a session's beginning, and
	// EndProgress says that it has ended: other sessions find Mark.Crashed until
	// then.
	BeginProgress(ctx context.Context, history string, marks []consumer.Mark) error
	EndProgress(ctx context.Context, marks []consumer.Mark) error
	// Progress reads them, and which history the database is on.
	Progress(ctx context.Context) (consumer.Progress, error)
	// Redrive handles dead letters again that an operator has asked for.
	Redrive(ctx context.Context, limit int) (done int, err error)
	// RecoverFences drives effects whose process died.
	RecoverFences(ctx context.Context, limit int) (done int, err error)
	// KeepUnreadable keeps a range of messages that cannot be read as a dead letter,
	// but for what was finished before.
	KeepUnreadable(ctx context.Context, u consumer.Unreadable) error
	// SendLetters gives dead letters to send that it has not got yet, and
	// remembers those that send returns.
	SendLetters(ctx context.Context, send func(ctx context.Context, letters []consumer.Letter) (sent []consumer.Letter,
		err error)) (total int, err error)
}

// shortSession is how long a session must last, or else finish a message, not
// to count as a failed one after which Run pauses: one heartbeat.
const shortSession = 3 * time.Second

// Run consumes as a member of the handler's group until ctx ends. It rides
// through outages of Kafka and PostgreSQL, see the package comment. It returns
// nil when ctx has ended and the offsets of all finished messages were
// committed as far as Kafka could be reached, and an error when going on is
// pointless. It leaves the group before it returns. Each Run at the same time wants
// a consumer.Processor of its own, else it is consumer.ErrAttended.
//
// What Kafka was asked for is waited for at the end, for sarama's Net.ReadTimeout
// (30s) each: the heartbeat, the fetches, the last commit, leaving. A broker that
// is stopped, or a proxy that holds, makes the end as long. A process that is killed
// meanwhile was not heard of, and the next member begins cautiously.
func Run(ctx context.Context, brokers []string, handler Handler, cfg Config) error {
	cfg = cfg.withDefaults()
	if len(brokers) == 0 {
		return errors.New("consume: no brokers given")
	}
	if err := handler.Err(); err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	if err := cfg.validate(); err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	leave, err := handler.Attend()
	if err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	defer leave()
	boundUnpacking(cfg.Logger)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := &runner{
		handler: handler, brokers: brokers, cfg: cfg,
		stop:  func(err error) { stop(fatal{err}) },
		log:   cfg.Logger.With("group", handler.Group()),
		pause: backoff.Jittered{Min: cfg.RetryMin, Max: cfg.RetryMax}, suspect: make(chan struct{}, 1),
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
	stop    func(error) // ends run with the error
	log     *slog.Logger
	pause   backoff.Jittered
	tally   tally
	looks   sync.WaitGroup         // questions to Kafka that workers have left
	suspect chan struct{}          // holds one message that is delivered cautiously, or redrives
	refused atomic.Bool            // an answer that holds a batch which unpacks to too much
	member  atomic.Pointer[member] // of the session there is
	before  atomic.Pointer[member] // of the one before it
	session atomic.Pointer[context.CancelCauseFunc]
}

// fatal marks the cause of a context that run has ended itself.
type fatal struct{ error }

// Why a session is ended early, by the context of its own.
var (
	errRefused = errors.New("an answer of Kafka was refused")
	errLogin   = errors.New("the login was refused; it is tried again with the password that is asked for anew")
)

// errShort stands for the error of a session that was over soon and has none.
var errShort = errors.New("the last one ended soon and without an error, as in a rebalance of the group")

// run is a member of the group until ctx ends, with one login after another when
// passwords change.
func (r *runner) run(ctx context.Context) error {
	for {
		client, group, err := r.connect(ctx)
		switch {
		case group != nil:
		case ctx.Err() != nil:
			return failure(ctx)
		default:
			return err
		}
		err = r.attend(ctx, client, group)
		if ctx.Err() != nil || !errors.Is(err, errLogin) {
			return err
		}
		if !r.wait(ctx, "logging in again", err) {
			return failure(ctx)
		}
	}
}

// attend consumes until the login is refused, and leaves the group.
func (r *runner) attend(ctx context.Context, client sarama.Client, group sarama.ConsumerGroup) error {
	var watcher sync.WaitGroup
	watcher.Go(func() { r.watch(group.Errors()) })
	err := r.consume(ctx, client, group)
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
		client, group, err := r.login()
		if err == nil {
			r.pause.Reset()
			return client, group, nil
		}
		if r.hopeless(err) {
			return nil, nil, fmt.Errorf("connect to Kafka: %w", err)
		}
		if !r.wait(ctx, "Kafka does not answer", err) {
			return nil, nil, err
		}
	}
}

// login asks for the password, where that is a function, and connects.
func (r *runner) login() (sarama.Client, sarama.ConsumerGroup, error) {
	s, err := r.cfg.SaramaConfig()
	if err != nil {
		return nil, nil, err
	}
	client, err := sarama.NewClient(r.brokers, s)
	if err != nil {
		return nil, nil, err
	}
	group, err := sarama.NewConsumerGroup(r.brokers, r.handler.Group(), s)
	if err != nil {
		_ = client.Close()
		return nil, nil, err
	}
	return client, group, nil
}

// hopeless is hopeless, but for a password that may be another one next time.
func (r *runner) hopeless(err error) bool { return hopeless(err) && !r.mayLogIn(err) }

func (r *runner) mayLogIn(err error) bool {
	return r.cfg.SASL != nil && r.cfg.SASL.PasswordFunc != nil && errors.Is(err, sarama.ErrSASLAuthenticationFailed)
}

// consume runs session after session.
func (r *runner) consume(ctx context.Context, client sarama.Client, group sarama.ConsumerGroup) error {
	for {
		m := &member{
			handler: r.handler, cfg: r.cfg, stop: r.stop, log: r.log, client: client, tally: &r.tally, looks: &r.looks,
			refused: &r.refused,
			over:    make(chan struct{}), suspect: r.suspect,
		}
		started := time.Now()
		session, end := context.WithCancelCause(ctx)
		r.session.Store(&end)
		r.before.Store(r.member.Swap(m))
		err := group.Consume(session, r.cfg.Topics, r.hooked(m))
		cause := context.Cause(session)
		end(nil)
		if ctx.Err() != nil {
			return failure(ctx)
		}
		if errors.Is(cause, errLogin) || r.mayLogIn(err) {
			return errors.Join(errLogin, err)
		}
		if r.hopeless(err) {
			return fmt.Errorf("consume %v as group %q: %w", r.cfg.Topics, r.handler.Group(), err)
		}
		good := err == nil && cause == nil && (m.finished.Load() > 0 || time.Since(started) >= shortSession)
		if good || len(m.stretches) > 0 {
			r.pause.Reset()
		}
		if good {
			continue
		}
		if !r.wait(ctx, "no session with Kafka", cmp.Or(err, cause, errShort)) {
			return failure(ctx)
		}
	}
}

// endSession ends the session there is, if any, with a last commit.
func (r *runner) endSession(cause error) {
	if end := r.session.Load(); end != nil {
		(*end)(cause)
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
	delay := r.pause.Next()
	r.log.Warn(what, "error", err, "retry_in", delay)
	return sleep(ctx, delay)
}

// watch takes what sarama reports from its own goroutines, until the group is
// closed. An offset that Kafka no longer has ends Run: to go on anywhere else
// would skip messages. An answer that was refused ends the session, whose next
// one looks for the batch to blame; see member.probe.
func (r *runner) watch(reports <-chan error) {
	for err := range reports {
		var damaged sarama.PacketDecodingError
		switch {
		case errors.Is(err, sarama.ErrOffsetOutOfRange):
			r.outOfRange(err)
		case errors.Is(err, sarama.ErrDecompressedBatchTooLarge):
			r.log.Warn("a batch unpacks to more than the limit, and nothing of its broker can be read; joining again, to find it and to go on behind it", "error", err)
			r.refused.Store(true)
			r.endSession(errRefused)
		case r.mayLogIn(err):
			r.endSession(errLogin)
		case errors.As(err, &damaged):
			r.log.Error("a batch in Kafka is damaged, and the partitions of its broker stand still; "+
				"read it with kafka-dump-log, have it restored from a replica, or set the group's offset behind it by hand", "error", err)
		default:
			r.log.Warn("Kafka reports an error", "error", err)
		}
	}
}

// outOfRange judges that Kafka has an offset no more. In a topic that was made anew it is
// of before, and the next session reads that from its beginning. The report may come when
// the next session is there already, which does not know what the topic was: the one before
// is asked as well. Where nobody can tell, a later session is told again.
func (r *runner) outOfRange(err error) {
	for _, m := range []*member{r.member.Load(), r.before.Load()} {
		if m == nil {
			continue
		}
		anew, askErr := m.madeAnew()
		if askErr != nil {
			r.log.Warn("an offset is out of range, and nobody can tell whether the topics are still the same; joining again", "error", askErr)
		}
		if anew || askErr != nil {
			m.end()
			return
		}
	}
	r.stop(fmt.Errorf("the messages after the committed offset of group %q are gone from Kafka (retention, or the topic was created again): %w; "+
		"compare the topic with the outbox (`outboxctl list`), replay what was lost (`outboxctl replay KEY --config FILE --reason \"…\"`), "+
		"then set the group's offset by hand", r.handler.Group(), err))
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

// sleep waits for d and reports whether ctx is still alive then.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
