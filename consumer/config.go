package consumer

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/internal/consumerdb"
)

// Defaults of [Config].
const (
	// defaultLockTimeout is how long a claim waits for another one on the same
	// key: 5 s.
	defaultLockTimeout = 5 * time.Second
	// DefaultSessionTimeout is how long a transaction may sit idle before the
	// server ends it: 45 s, as Kafka's default session timeout, so that a
	// stopped process loses its claims when it loses its partitions. With the
	// default HandlerTimeout it is raised to 55 s, see Config.SessionTimeout.
	DefaultSessionTimeout = 45 * time.Second
)

// defaultHandlerTimeout is for how long a handler may run: 45 s.
const defaultHandlerTimeout = 45 * time.Second

// maxGroup is the longest name of a consumer group in bytes.
const maxGroup = 255

// sessionSlack keeps the server from ending a session whose handler is about to be
// ended.
const sessionSlack = 10 * time.Second

// maxTimeout is the longest timeout that PostgreSQL's settings can hold.
const maxTimeout = (1<<31 - 1) * time.Millisecond

// Config is what [New] needs. The zero value of an optional field means its
// default.
type Config struct {
	// Group names the consumer group. Each group applies each event once;
	// another group is another consumer. 1 to 255 bytes of text. Required.
	Group string
	// DB is the consumer's database, where the effects are. Required. It stays
	// the caller's, who closes it after the last use.
	DB *pgxpool.Pool
	// LockTimeout is how long a claim waits for another transaction that holds the
	// same key, or has locked the table, after which the delivery is [InProgress]. For
	// what the handler waits for, lock_timeout of the session holds. 1 ms to about 24
	// days; default 5 s.
	LockTimeout time.Duration
	// SessionTimeout becomes idle_in_transaction_session_timeout of the
	// transaction: after it a stopped process loses its connection and its
	// claim. It is raised to HandlerTimeout and ten seconds where it is less. 1 ms
	// to about 24 days; default 45 s, [DefaultSessionTimeout].
	SessionTimeout time.Duration
	// HandlerTimeout is for how long one call of a handler may run: then its
	// context ends, and the attempt counts as failed. A handler that does not
	// return all the same is left behind, see [Processor.StuckHandlers]. For a
	// batch it holds for each call of a handler. 1 ms to about 24 days; default
	// 45 s.
	HandlerTimeout time.Duration
	// Classes are the deduplication windows of the event types, see [ClassOf]; a
	// type without class is refused.
	// Default: one class "*" of 7 days, [DefaultWindow]. [New] registers them in the
	// database, where retention finds them.
	Classes []Class
	// Skew is how far an event time may lie ahead of the database's clock before
	// the event is [FromFuture]. 0 to 24 h; default 5
	// minutes, [DefaultSkew].
	Skew time.Duration
	// Retry says when an event whose handler fails becomes a dead letter.
	Retry Retry
	// Readers make the events of records that no relay of ours has written, in this
	// order; the first counts that takes a record for its own. [record.CloudEvents] and
	// [record.DebeziumOutbox] have one. Default: such records are malformed.
	Readers []RecordReader
	// Completed, if not nil, is asked whether a record's event was applied before the database is,
	// and told of those that were: package redisfast. Only within a session of a group
	// ([Router.BeginProgress], as saramagroup has them). Default nil: nobody is asked.
	Completed Completed
	// Handled is told of each call of a handler, also of one that failed: for how
	// long it ran; of a set, once. It must return at once and be safe for concurrent
	// use; consumerprom.Collector has one. May be nil.
	Handled func(group, eventType string, took time.Duration)
	// Logger gets one line for each dead letter. Default: text to stderr, warnings
	// and errors only; slog.New(slog.DiscardHandler) is silent.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.LockTimeout == 0 {
		c.LockTimeout = defaultLockTimeout
	}
	if c.SessionTimeout == 0 {
		c.SessionTimeout = DefaultSessionTimeout
	}
	if c.HandlerTimeout == 0 {
		c.HandlerTimeout = defaultHandlerTimeout
	}
	if c.Skew == 0 {
		c.Skew = DefaultSkew
	}
	if c.Retry.MaxAttempts == 0 {
		c.Retry.MaxAttempts = defaultMaxAttempts
	}
	if c.Retry.OnLetter == "" {
		c.Retry.OnLetter = LetterGoOn
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	return c
}

func (c Config) validate() error {
	if c.Group == "" || len(c.Group) > maxGroup {
		return fmt.Errorf("config: Group %q: want 1 to %d bytes", c.Group, maxGroup)
	}
	if !consumerdb.IsText(c.Group) {
		return fmt.Errorf("config: Group %q: want UTF-8 text without NUL", c.Group)
	}
	if c.DB == nil {
		return errors.New("config: DB is nil; give the pool of the consumer's database")
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{{"LockTimeout", c.LockTimeout}, {"SessionTimeout", c.SessionTimeout}, {"HandlerTimeout", c.HandlerTimeout}} {
		if f.value < time.Millisecond || f.value > maxTimeout {
			return fmt.Errorf("config: %s %s: want 1ms to %s", f.name, f.value, maxTimeout)
		}
	}
	if c.Skew < 0 || c.Skew > 24*time.Hour {
		return fmt.Errorf("config: Skew %s: want 0 to 24h", c.Skew)
	}
	if c.Retry.OnLetter != LetterGoOn && c.Retry.OnLetter != LetterPark {
		return fmt.Errorf("config: Retry.OnLetter %q: want %s or %s", c.Retry.OnLetter, LetterGoOn, LetterPark)
	}
	return nil
}
