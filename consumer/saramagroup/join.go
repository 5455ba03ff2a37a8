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

	"github.com/onceward/onceward/consumer/saramagroup/internal/late"
	"github.com/onceward/onceward/internal/backoff"
	"github.com/onceward/onceward/internal/wire"
)

// shortSession is how long a session must last, or else finish a message, not
// to count as a failed one after which the joiner pauses: one heartbeat.
const shortSession = 3 * time.Second

// work is what a joiner is a member of its group for.
type work interface {
	// session returns what is done from one rebalance to the next. The client is for
	// questions: a connection of the group's own answers nothing while it waits for
	// messages.
	session(client sarama.Client) session
	// refused is told that sarama has refused an answer, which holds a batch that
	// unpacks to more than the limit.
	refused(err error)
	// outOfRange is told that Kafka has an offset no more: to go on anywhere else
	// would skip messages.
	outOfRange(err error)
}

// session is what is done from one rebalance to the next.
type session interface {
	sarama.ConsumerGroupHandler
	// close is called after the end, with what Consume of sarama has returned.
	close(err error) ending
}

// ending says what came of a session.
type ending struct {
	finished bool  // messages
	hopeful  bool  // it has found what the next one will not meet any more
	err      error // what it has failed of
}

// joiner is a member of a group, session after session, through outages of Kafka,
// until its context ends or going on is pointless.
type joiner struct {
	work    work
	group   string
	brokers []string
	cfg     Config
	stop    func(error) // ends run with the error
	log     *slog.Logger
	pause   backoff.Jittered
	current atomic.Pointer[context.CancelCauseFunc] // ends the session there is
}

// newJoiner leaves work to the caller.
func newJoiner(group string, brokers []string, cfg Config, stop func(error)) joiner {
	return joiner{group: group, brokers: brokers, cfg: cfg, stop: stop, log: cfg.Logger.With("group", group),
		pause: backoff.Jittered{Min: cfg.RetryMin, Max: cfg.RetryMax}}
}

// fatal marks the cause of a context that run has ended itself.
type fatal struct{ error }

// Why a session is ended early, by the context of its own.
var (
	errRefused = errors.New("an answer of Kafka was refused")
	errLogin   = errors.New("the login was refused; it is tried again with the password that is asked for anew")
)

// closeTimeout is for how much longer than for what is in hand Kafka is waited for at the
// end: for the last commit, and to hear that the member leaves.
const closeTimeout = 10 * time.Second

// errShort stands for the error of a session that was over soon and has none.
var errShort = errors.New("the last one ended soon and without an error, as in a rebalance of the group")

// run is a member of the group until ctx ends, with one login after another when
// passwords change.
func (j *joiner) run(ctx context.Context) error {
	for {
		client, group, release, err := j.connect(ctx)
		switch {
		case group != nil:
		case ctx.Err() != nil:
			return failure(ctx)
		default:
			return err
		}
		err = j.attend(ctx, client, group)
		release()
		if ctx.Err() != nil || !errors.Is(err, errLogin) {
			return err
		}
		if !j.wait(ctx, "logging in again", err) {
			return failure(ctx)
		}
	}
}

// attend consumes until the login is refused, and leaves the group.
func (j *joiner) attend(ctx context.Context, client sarama.Client, group sarama.ConsumerGroup) error {
	var watcher sync.WaitGroup
	watcher.Go(func() { j.watch(group.Errors()) })
	err := j.consume(ctx, client, group)
	if closeErr := group.Close(); closeErr != nil {
		j.log.Warn("leaving the group failed; Kafka will notice by its session timeout", "error", closeErr)
	}
	watcher.Wait() // Close has ended the errors
	_ = client.Close()
	return err
}

// connect tries until Kafka answers or ctx ends. The client is for questions: a
// connection of the group's own answers nothing while it waits for messages. Release is
// called when both are closed; before, their connections are cut some time after ctx.
func (j *joiner) connect(ctx context.Context) (sarama.Client, sarama.ConsumerGroup, func(), error) {
	for {
		client, group, release, err := j.login(ctx)
		if err == nil {
			j.pause.Reset()
			return client, group, release, nil
		}
		if j.hopeless(err) {
			return nil, nil, nil, fmt.Errorf("connect to Kafka: %w", err)
		}
		if !j.wait(ctx, "Kafka does not answer", err) {
			return nil, nil, nil, err
		}
	}
}

// login asks for the password, where that is a function, and connects.
func (j *joiner) login(ctx context.Context) (sarama.Client, sarama.ConsumerGroup, func(), error) {
	s, err := j.cfg.SaramaConfig()
	if err != nil {
		return nil, nil, nil, err
	}
	release := wire.Into(s).Outlive(ctx, j.cfg.endsWithin())
	client, err := sarama.NewClient(j.brokers, s)
	if err != nil {
		release()
		return nil, nil, nil, err
	}
	group, err := sarama.NewConsumerGroup(j.brokers, j.group, s)
	if err != nil {
		_ = client.Close()
		release()
		return nil, nil, nil, err
	}
	return client, group, release, nil
}

// hopeless is hopeless, but for a password that may be another one next time.
func (j *joiner) hopeless(err error) bool { return hopeless(err) && !j.mayLogIn(err) }

func (j *joiner) mayLogIn(err error) bool {
	return j.cfg.SASL != nil && j.cfg.SASL.PasswordFunc != nil && errors.Is(err, sarama.ErrSASLAuthenticationFailed)
}

// consume runs session after session.
func (j *joiner) consume(ctx context.Context, client sarama.Client, group sarama.ConsumerGroup) error {
	for {
		s := j.work.session(client)
		started := time.Now()
		lasting, end := context.WithCancelCause(ctx)
		j.current.Store(&end)
		handler, over := late.Session(j.hooked(s), j.log, j.brokers)
		err := group.Consume(lasting, j.cfg.Topics, handler)
		over()
		cause := context.Cause(lasting)
		end(nil)
		came := s.close(err)
		if ctx.Err() != nil {
			return failure(ctx)
		}
		if errors.Is(cause, errLogin) || j.mayLogIn(err) {
			return errors.Join(errLogin, err)
		}
		if j.hopeless(err) {
			return fmt.Errorf("consume %v as group %q: %w", j.cfg.Topics, j.group, err)
		}
		failed := cmp.Or(err, cause, came.err)
		good := failed == nil && (came.finished || time.Since(started) >= shortSession)
		if good || came.hopeful {
			j.pause.Reset()
		}
		if good {
			continue
		}
		if !j.wait(ctx, "no session with Kafka", cmp.Or(failed, errShort)) {
			return failure(ctx)
		}
	}
}

// endSession ends the session there is, if any, with a last commit.
func (j *joiner) endSession(cause error) {
	if end := j.current.Load(); end != nil {
		(*end)(cause)
	}
}

func (j *joiner) hooked(s session) sarama.ConsumerGroupHandler {
	if j.cfg.hooks.member == nil {
		return s
	}
	return j.cfg.hooks.member(s)
}

// failure returns what was given to joiner.stop, nil when the caller's own
// context ended.
func failure(ctx context.Context) error {
	if f, ok := context.Cause(ctx).(fatal); ok { //nolint:errorlint // the cause itself, not what it wraps
		return f.error
	}
	return nil
}

func (j *joiner) wait(ctx context.Context, what string, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	delay := j.pause.Next()
	j.log.Warn(what, "error", err, "retry_in", delay)
	return sleep(ctx, delay)
}

// watch takes what sarama reports from its own goroutines, until the group is
// closed.
func (j *joiner) watch(reports <-chan error) {
	for err := range reports {
		var damaged sarama.PacketDecodingError
		switch {
		case errors.Is(err, sarama.ErrOffsetOutOfRange):
			j.work.outOfRange(err)
		case errors.Is(err, sarama.ErrDecompressedBatchTooLarge):
			j.work.refused(err)
		case j.mayLogIn(err):
			j.endSession(errLogin)
		case errors.As(err, &damaged):
			j.log.Error("a batch in Kafka is damaged, and the partitions of its broker stand still; "+
				"read it with kafka-dump-log, have it restored from a replica, or set the group's offset behind it by hand", "error", err)
		default:
			j.log.Warn("Kafka reports an error", "error", err)
		}
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
