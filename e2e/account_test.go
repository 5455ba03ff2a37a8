//go:build e2e

package e2e

import (
	"maps"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
)

// account is what the product says of every event, by key. It demands that each is
// in exactly one state.
func account(t *testing.T, w *environment) map[string]string {
	t.Helper()
	rows, err := w.pool.Query(t.Context(), `SELECT o.namespace || ':' || o.id, array(SELECT a.state FROM onceward.account(o.id, o.tx_id, o.seq) a) FROM onceward.outbox o`)
	require.NoError(t, err)
	states := map[string]string{}
	var key string
	var found []string
	_, err = pgx.ForEachRow(rows, []any{&key, &found}, func() error {
		require.Len(t, found, 1, "%s is in exactly one state", key)
		states[key] = found[0]
		return nil
	})
	require.NoError(t, err)
	return states
}

// published counts the records of each key that are in the topic.
func (w *environment) published() map[string]int {
	w.t.Helper()
	n := map[string]int{}
	for _, r := range w.committed(w.topic()) {
		n[headerOf(r, outbox.HeaderKey)]++
	}
	return n
}

// requireProven wants every event in the topic that is called published.
func requireProven(t *testing.T, inTopic map[string]int, said map[string]string) {
	t.Helper()
	for key, state := range said {
		if state == "published" {
			require.Positive(t, inTopic[key], "%s is called published and is not in the topic", key)
		}
	}
}

// requireTrue compares the account of every event with the topic, and returns how
// many are in each state, and how many records are copies. What is called
// published is in the topic; a gap is what is not proved published.
func requireTrue(t *testing.T, w *environment) (states map[string]int, copies int) {
	t.Helper()
	inTopic := w.published()
	said := account(t, w)
	requireProven(t, inTopic, said)
	states = map[string]int{}
	for key, state := range said {
		states[state]++
		if state == "before" || state == "pending" {
			require.Zero(t, inTopic[key], "%s is called %s and is in the topic", key, state)
		}
	}
	for key, n := range maps.All(inTopic) {
		if said[key] == "" { // Contains walks the whole map
			require.Fail(t, "in the topic and not in the table", key)
		}
		copies += n - 1
	}
	return states, copies
}
