//go:build e2e

package saramagroup_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onceward/onceward/internal/redisserver"
	"github.com/onceward/onceward/outbox"
)

// TestAtLeastOnceOverKillAndRebalance: events without a claim, in both modes, of which a process
// dies at once while it handles several, and whose partitions then move between members that
// live. Each is handled; twice only what the dead process has finished behind the offsets that it
// had committed, and with a memory only those of them that it had not written there; nothing by
// a rebalance between members that finish what they have begun.
func TestAtLeastOnceOverKillAndRebalance(t *testing.T) {
	const events = 400 // of each partition
	s := newStream(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(s.cluster.Addrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer client.Close()
	fast := redisserver.Start(t)
	ids := make(map[place]uuid.UUID)
	produce := func() {
		var records []*kgo.Record
		for i := range events {
			for partition := range int32(3) {
				rec := event(t, fmt.Sprint("o-", i%7))
				rec.Partition = partition
				records = append(records, rec)
			}
		}
		require.NoError(t, client.ProduceSync(t.Context(), records...).FirstErr())
		for _, rec := range records {
			key, err := outbox.ParseKey(string(rec.Headers[0].Value))
			require.NoError(t, err)
			ids[place{rec.Partition, rec.Offset}] = key.UUID()
		}
	}
	modes := []*countingGroup{
		{stream: s, group: "none", file: filepath.Join(t.TempDir(), "effects")},
		{stream: s, group: "redis", redis: fast.Address(), file: filepath.Join(t.TempDir(), "effects")},
	}
	produce()
	for _, c := range modes {
		c.killed()
		c.again = c.behind
	}
	known := redis.NewClient(&redis.Options{Addr: fast.Address()})
	defer known.Close()
	modes[1].again = nil
	for _, at := range modes[1].behind {
		n, err := known.Exists(t.Context(), "redis:"+ids[at].String()).Result()
		require.NoError(t, err)
		if n == 0 {
			modes[1].again = append(modes[1].again, at)
		}
	}
	t.Logf("of %d behind the offset %d were not in Redis: %v", len(modes[1].behind), len(modes[1].again), modes[1].again)
	require.LessOrEqual(t, len(modes[1].again), 3*countedLanes, "one for each delivery that ran at once")
	require.Greater(t, len(modes[1].behind), len(modes[1].again), "the others are not handled again")

	var first, second []func()
	for _, c := range modes {
		first = append(first, c.member())
	}
	for _, c := range modes {
		require.Eventually(t, func() bool { return len(c.times()) > len(c.before)+events/4 }, time.Minute, 10*time.Millisecond)
		second = append(second, c.member()) // takes some of the partitions in the middle of the work
	}
	all := func(n int) {
		for _, c := range modes {
			require.Eventually(t, func() bool { return len(c.times()) == 3*n }, 2*time.Minute, 20*time.Millisecond)
		}
	}
	all(events)
	produce()
	for _, stop := range first {
		stop() // and gives the others up
	}
	all(2 * events)
	for _, stop := range second {
		stop()
	}
	for _, c := range modes {
		for at, n := range c.times() {
			want := 1
			if slices.Contains(c.again, at) {
				want = 2
			}
			require.Equal(t, want, n, "%s: %v", c.group, at)
		}
		require.Eventually(t, func() bool {
			high := int64(0)
			for partition := range int32(3) {
				high += s.row(c.group, partition).High + 1
			}
			return high == 3*2*events
		}, time.Minute, 20*time.Millisecond, "the marks have passed everything")
	}
	var claims, letters, starts int
	require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM onceward.processed_events),
		(SELECT count(*) FROM onceward.consumer_dead_letters), (SELECT count(*) FROM onceward.attempts WHERE starts > 0)`).Scan(&claims, &letters, &starts))
	require.Equal(t, []int{0, 0, 0}, []int{claims, letters, starts})
}

// place is that of a message.
type place struct {
	partition int32
	offset    int64
}

// countingGroup is one that counts in one of the modes.
type countingGroup struct {
	*stream
	group, redis, file string
	before             map[place]int // what the process had handled that was killed
	behind             []place       // those of them behind the offsets that it had committed
	again              []place       // those of them that are handled twice
}

// times is how often each message was handled.
func (c *countingGroup) times() map[place]int {
	text, err := os.ReadFile(c.file)
	require.NoError(c.t, err)
	all := make(map[place]int)
	for line := range strings.Lines(string(text)) {
		var at place
		_, err := fmt.Sscanln(line, &at.partition, &at.offset)
		require.NoError(c.t, err, line)
		all[at]++
	}
	return all
}

// killed runs a process that dies in the middle.
func (c *countingGroup) killed() {
	child := exec.CommandContext(c.t.Context(), os.Args[0])
	child.Env = append(os.Environ(), "ONCEWARD_COUNTED_BROKERS="+strings.Join(c.cluster.Addrs(), ","), countedDSN+"="+c.pool.Config().ConnString(), countedFile+"="+c.file,
		countedGroup+"="+c.group, countedRedis+"="+c.redis)
	child.Stderr = c.t.Output()
	var exit *exec.ExitError
	require.ErrorAs(c.t, child.Run(), &exit)
	require.Equal(c.t, "signal: killed", exit.String())
	c.before = c.times()
	var offsets [3]int64
	for partition := range int32(3) {
		high := c.row(c.group, partition).High
		offsets[partition] = max(c.committed(c.group, partition), 0)
		require.LessOrEqual(c.t, offsets[partition], high+1, "the offset follows the mark")
		for offset := range high + 1 {
			require.Equal(c.t, 1, c.before[place{partition, offset}], "and the mark what was handled")
		}
	}
	for at := range c.before {
		if at.offset >= offsets[at.partition] {
			c.behind = append(c.behind, at)
		}
	}
	c.t.Logf("%s: killed after %d events, %d of them behind the offsets %v", c.group, len(c.before), len(c.behind), offsets)
	require.Less(c.t, len(c.behind), len(c.before), "offsets were committed")
}

// member is one that ends well.
func (c *countingGroup) member() (stop func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- counter{c.pool, c.group, c.redis, c.file, 1, func(int64) error { return nil }}.run(ctx, c.cluster.Addrs())
	}()
	return func() {
		cancel()
		require.NoError(c.t, <-ended)
	}
}
