package saramagroup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/IBM/sarama"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup/internal/unpacked"
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

// Run consumes as a member of the handler's group until ctx ends. It rides
// through outages of Kafka and PostgreSQL, see the package comment. It returns
// nil when ctx has ended and the offsets of all finished messages were
// committed as far as Kafka could be reached, and an error when going on is
// pointless. It leaves the group before it returns. Each Run at the same time wants
// a consumer.Processor of its own, else it is consumer.ErrAttended.
//
// A Kafka that is silent at the end, stopped or behind a network that holds, is waited for
// until 10 seconds after DrainTimeout, in all: for the heartbeat, the fetches, the last
// commit, leaving. Then the connections are closed, and Run returns as soon as sarama has seen
// that, mostly within 3 seconds. By default a process needs 20 seconds to end, and 10 more
// where its database may be silent too, which is asked two questions within DrainTimeout each.
// What was not committed is delivered again, as duplicates, and the partitions are given to
// others when SessionTimeout is over. A process that is killed before that was not heard of,
// and the next member begins cautiously.
func Run(ctx context.Context, brokers []string, handler Handler, cfg Config) error {
	cfg = cfg.withDefaults()
	if len(brokers) == 0 {
		return errors.New("consume: no brokers given")
	}
	if err := handler.Err(); err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	if err := cfg.validate(drains); err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	leave, err := handler.Attend()
	if err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	defer leave()
	unpacked.Bound(cfg.Logger)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := &runner{
		joiner: newJoiner(handler.Group(), brokers, cfg, func(err error) { stop(fatal{err}) }), handler: handler,
		suspect: make(chan struct{}, 1),
	}
	defer r.tally.observe(handler.Group(), cfg)()
	defer r.keepHouse(ctx)()
	defer r.looks.Wait() // no client is open any more
	r.work = r
	return r.run(ctx)
}

// runner is one call of Run.
type runner struct {
	joiner
	handler Handler
	tally   tally
	looks   sync.WaitGroup         // questions to Kafka that workers have left
	suspect chan struct{}          // holds one message that is delivered cautiously, or redrives
	blocked atomic.Bool            // an answer was refused that holds a batch which unpacks to too much
	member  atomic.Pointer[member] // of the session there is
	before  atomic.Pointer[member] // of the one before it
}

// session implements work.
func (r *runner) session(client sarama.Client) session {
	m := &member{
		handler: r.handler, cfg: r.cfg, stop: r.stop, log: r.log, client: client, tally: &r.tally, looks: &r.looks,
		refused: &r.blocked,
		over:    make(chan struct{}), suspect: r.suspect,
	}
	r.before.Store(r.member.Swap(m))
	return joined{m}
}

// joined is a member as its joiner sees it.
type joined struct{ *member }

// close implements session.
func (m joined) close(error) ending {
	return ending{finished: m.finished.Load() > 0, hopeful: len(m.stretches) > 0}
}

// refused implements work: the session ends, and the next one looks for the batch to
// blame; see member.probe.
func (r *runner) refused(err error) {
	r.log.Warn("a batch unpacks to more than the limit, and nothing of its broker can be read; joining again, to find it and to go on behind it", "error", err)
	r.blocked.Store(true)
	r.endSession(errRefused)
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
		"then set the group's offset by hand", r.group, err))
}
