//go:build e2e

package saramagroup_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestPoisonThatKillsTheProcess (W6): an event of which the process dies becomes a
// dead letter after so many restarts as it has attempts. Those beside it, in its
// batch and in others, are applied once, and none of them makes a letter.
func TestPoisonThatKillsTheProcess(t *testing.T) {
	const events, poison = 120, 70
	_, pool := startDatabase(t, nil)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic))
	require.NoError(t, err)
	defer cluster.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	require.NoError(t, err)
	defer client.Close()
	for i := range events {
		aggregate := fmt.Sprint("o-", i%30)
		if i == poison {
			aggregate = "poison"
		}
		require.NoError(t, client.ProduceSync(t.Context(), event(t, aggregate)).FirstErr())
	}

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	done := func() bool {
		var effects int
		err := pool.QueryRow(ctx, "SELECT count(*) FROM effects").Scan(&effects)
		return err == nil && effects == events-1
	}
	deaths := 0
	for !done() {
		child := exec.CommandContext(ctx, os.Args[0])
		child.Env = append(os.Environ(), "ONCEWARD_KILLED_BROKERS="+strings.Join(cluster.ListenAddrs(), ","), "ONCEWARD_KILLED_DSN="+pool.Config().ConnString())
		child.Stderr = t.Output()
		require.NoError(t, child.Start())
		ended := make(chan error, 1)
		go func() { ended <- child.Wait() }()
		tick := time.NewTicker(50 * time.Millisecond)
		for alive := true; alive; {
			select {
			case err := <-ended:
				var exit *exec.ExitError
				require.True(t, errors.As(err, &exit) && exit.ExitCode() == 137, "%v", err)
				deaths++
				alive = false
			case <-tick.C:
				if done() {
					require.NoError(t, child.Process.Kill())
					<-ended
					alive = false
				}
			}
		}
		tick.Stop()
		require.LessOrEqual(t, deaths, 2+killedAttempts, "it dies and dies")
	}
	require.GreaterOrEqual(t, deaths, 1+killedAttempts, "the first death is not counted, because nobody expected it, nor the second, further behind than was known to be read")

	var distinct int
	var letters string
	require.NoError(t, pool.QueryRow(ctx, `SELECT (SELECT count(DISTINCT event) FROM effects),
		(SELECT string_agg(concat_ws(' ', kafka_offset, reason, attempts), ', ') FROM onceward.consumer_dead_letters)`).Scan(&distinct, &letters))
	require.Equal(t, events-1, distinct)
	require.Equal(t, fmt.Sprint(poison, " crash ", killedAttempts), letters)
	require.Zero(t, func() (n int) {
		require.NoError(t, pool.QueryRow(ctx, "SELECT count(*) FROM onceward.attempts WHERE starts > 0 AND event_id NOT IN (SELECT event_id FROM onceward.consumer_dead_letters)").Scan(&n))
		return n
	}(), "no start of another event is left")
}
