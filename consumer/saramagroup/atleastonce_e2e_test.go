//go:build e2e

package saramagroup_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestAtLeastOnceOverKillAndRebalance: events without a claim, of which a process dies at
// once while it handles several, and whose partitions then move between members that live.
// Each is handled; twice only what the dead process has finished behind the offsets that it
// had committed, and nothing by a rebalance between members that finish what they have begun.
func TestAtLeastOnceOverKillAndRebalance(t *testing.T) {
	const events = 400 // of each partition
	s := newStream(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(s.cluster.Addrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer client.Close()
	produce := func(n int) {
		var records []*kgo.Record
		for i := range n {
			for partition := range int32(3) {
				rec := event(t, fmt.Sprint("o-", i%7))
				rec.Partition = partition
				records = append(records, rec)
			}
		}
		require.NoError(t, client.ProduceSync(t.Context(), records...).FirstErr())
	}
	file := filepath.Join(t.TempDir(), "effects")
	times := func() map[place]int {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all := make(map[place]int)
		for line := range strings.Lines(string(text)) {
			var at place
			_, err := fmt.Sscanln(line, &at.partition, &at.offset)
			require.NoError(t, err, line)
			all[at]++
		}
		return all
	}

	produce(events)
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), "ONCEWARD_COUNTED_BROKERS="+strings.Join(s.cluster.Addrs(), ","), countedDSN+"="+s.pool.Config().ConnString(), countedFile+"="+file)
	child.Stderr = t.Output()
	var exit *exec.ExitError
	require.ErrorAs(t, child.Run(), &exit)
	require.Equal(t, "signal: killed", exit.String())
	before, offsets, behind := times(), [3]int64{}, 0
	for partition := range int32(3) {
		offsets[partition] = max(s.committed(partition), 0)
		require.LessOrEqual(t, offsets[partition], s.row("billing", partition).High+1, "the offset follows the mark")
		for offset := range s.row("billing", partition).High + 1 {
			require.Equal(t, 1, before[place{partition, offset}], "and the mark what was handled")
		}
	}
	for at := range before {
		if at.offset >= offsets[at.partition] {
			behind++
		}
	}
	t.Logf("killed after %d events, %d of them behind the offsets %v", len(before), behind, offsets)
	require.Less(t, behind, len(before), "offsets were committed")

	member := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- counter{s.pool, file, 1, func() error { return nil }}.run(ctx, s.cluster.Addrs())
		}()
		return func() {
			cancel()
			require.NoError(t, <-ended)
		}
	}
	stop := member()
	all := func(n int) func() bool { return func() bool { return len(times()) == 3*n } }
	require.Eventually(t, func() bool { return len(times()) > len(before)+events/4 }, time.Minute, 10*time.Millisecond)
	second := member() // takes some of the partitions in the middle of the work
	require.Eventually(t, all(events), 2*time.Minute, 20*time.Millisecond)
	produce(events)
	stop() // and gives the others up
	require.Eventually(t, all(2*events), 2*time.Minute, 20*time.Millisecond)
	second()

	for at, n := range times() {
		switch {
		case before[at] > 0 && at.offset >= offsets[at.partition]:
			require.Equal(t, 2, n, "%v, finished behind the offset", at)
		default:
			require.Equal(t, 1, n, "%v", at)
		}
	}
	var claims, letters, starts int
	require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM onceward.processed_events),
		(SELECT count(*) FROM onceward.consumer_dead_letters), (SELECT count(*) FROM onceward.attempts WHERE starts > 0)`).Scan(&claims, &letters, &starts))
	require.Equal(t, []int{0, 0, 0}, []int{claims, letters, starts})
	require.Eventually(t, func() bool {
		high := int64(0)
		for partition := range int32(3) {
			high += s.row("billing", partition).High + 1
		}
		return high == 3*2*events
	}, time.Minute, 20*time.Millisecond, "the marks have passed everything")
}

// place is that of a message.
type place struct {
	partition int32
	offset    int64
}
