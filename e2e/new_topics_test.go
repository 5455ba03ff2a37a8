//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

// TestNewTopicsHoldNobodyUp: two hundred events that each need a topic which is
// not there yet, and behind them one whose topic is: it does not wait for theirs,
// and they arrive by themselves.
func TestNewTopicsHoldNobodyUp(t *testing.T) {
	t.Parallel()
	for _, c := range modesAndVersions() {
		t.Run(c[0]+"/PostgreSQL"+c[1], func(t *testing.T) {
			r := newReplays(t, newEnvironment(t, c[1]), c[0])
			r.relay.stop()
			r.relay.env = append(r.relay.env, "ONCEWARD_TOPICS_PARTITIONS=1")
			r.relay.start()
			r.arrives(r.topic(), r.small("first"))
			const n = 200
			require.NoError(t, pgx.BeginFunc(t.Context(), r.app, func(tx pgx.Tx) error {
				for i := range n {
					key, err := outbox.NewKey(r.name)
					require.NoError(t, err)
					if _, err = outbox.Enqueue(t.Context(), tx, outbox.Event{Key: key, AggregateType: fmt.Sprint("new-", i), AggregateID: "a", Type: "T", Payload: []byte("{}")}); err != nil {
						return err
					}
				}
				return nil
			}))
			began := time.Now()
			key := r.small("free")
			r.arrives(r.topic(), key)
			waited := time.Since(began)
			topics := func() (made []string) {
				all, err := r.admin.ListTopics()
				require.NoError(t, err)
				for i := range n {
					if name := fmt.Sprint(r.name, ".new-", i); all[name].NumPartitions > 0 {
						made = append(made, name)
					}
				}
				return made
			}
			eventually(t, "all topics are there", time.Minute, func() bool { return len(topics()) == n })
			for i := range n {
				topic := fmt.Sprint(r.name, ".new-", i)
				eventually(t, "an event in "+topic, time.Minute, func() bool { return len(r.committed(topic)) == 1 })
			}
			t.Logf("%s: the event behind %d new topics arrived after %s, all of theirs after %s", c[0], n, waited, time.Since(began))
			require.Less(t, waited, 10*time.Second, "it waited for others' topics: one by one they take half a minute")
			r.relay.stop()
			for _, topic := range topics() {
				require.NoError(t, r.admin.DeleteTopic(topic))
			}
		})
	}
}
