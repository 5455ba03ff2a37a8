package saramagroup_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/redisfast"
	"github.com/onceward/onceward/consumer/saramagroup"
)

// Of a process that counts without claims: from one message on it waits until offsets were
// committed, but with none of the first of a partition, without which none are, and at another
// it kills itself.
const (
	countedWait, countedDeath = 200, 400
	countedDSN, countedFile   = "ONCEWARD_COUNTED_DSN", "ONCEWARD_COUNTED_FILE"
	countedGroup              = "ONCEWARD_COUNTED_GROUP"
	countedRedis              = "ONCEWARD_COUNTED_REDIS" // empty: nothing is remembered
)

// countedLanes is how many deliveries of a partition run at once in that process.
const countedLanes = 4

// counted is a member in a process of its own that dies without a word.
func counted(brokers string) error {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv(countedDSN))
	if err != nil {
		return err
	}
	defer pool.Close()
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V2_8_0_0
	admin, err := sarama.NewClusterAdmin(strings.Split(brokers, ","), cfg)
	if err != nil {
		return err
	}
	var calls atomic.Int64
	var offsets sync.Once
	group := os.Getenv(countedGroup)
	then := func(offset int64) (err error) {
		switch n := calls.Add(1); {
		case n == countedDeath:
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case n >= countedWait && offset >= countedWait/4:
			offsets.Do(func() {
				for sum := int64(0); err == nil && sum < countedWait/8; {
					var answer *sarama.OffsetFetchResponse
					if answer, err = admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0, 1, 2}}); err == nil {
						sum = 0
						for _, block := range answer.Blocks[topic] {
							sum += max(block.Offset, 0)
						}
					}
				}
			})
		}
		return err
	}
	return counter{pool, group, os.Getenv(countedRedis), os.Getenv(countedFile), countedLanes, then}.run(ctx, strings.Split(brokers, ","))
}

// counter is a member whose handler writes the place of each message into a file, and calls
// then before it returns.
type counter struct {
	pool        *pgxpool.Pool
	group       string
	redis       string // that remembers what was handled; empty: none
	file        string
	concurrency int
	then        func(offset int64) error
}

func (c counter) run(ctx context.Context, brokers []string) (err error) {
	out, err := os.OpenFile(c.file, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	cfg := consumer.Config{Group: c.group, DB: c.pool, Logger: log}
	var options []consumer.AtLeastOnceOption
	if c.redis != "" {
		fast, err := redisfast.New(redisfast.Config{Redis: redis.UniversalOptions{Addrs: []string{c.redis}}, Timeout: 2 * time.Second, Logger: log})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, fast.Close()) }()
		cfg.Completed, options = fast, []consumer.AtLeastOnceOption{consumer.Remembered}
	}
	p, err := consumer.New(ctx, cfg)
	if err != nil {
		return err
	}
	r := consumer.NewRouter(p)
	r.AtLeastOnce("Paid", func(_ context.Context, ev consumer.Event) error {
		if _, err := fmt.Fprintln(out, ev.Source.Partition, ev.Source.Offset); err != nil {
			return err
		}
		return c.then(ev.Source.Offset)
	}, options...)
	return saramagroup.Run(ctx, brokers, r, saramagroup.Config{
		Topics: []string{topic}, Insecure: true, Concurrency: c.concurrency, CommitInterval: 100 * time.Millisecond, SessionTimeout: 6 * time.Second, Logger: log,
	})
}
