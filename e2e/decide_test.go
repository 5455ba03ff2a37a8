//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// TestOperatorDecides: with nothing but outboxctl and the operator's rights,
// dead letters are retried, edited and discarded, a route and the relay are
// paused, and a halted relay is told to skip; each command says what the relay
// did about it.
func TestOperatorDecides(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"idempotent", "exactly-once"} {
		for _, version := range versionsOf(t.Name() + mode) {
			t.Run(mode+"/PostgreSQL"+version, func(t *testing.T) {
				r := newReplays(t, newEnvironment(t, version), mode)
				r.makeTopic(r.name+".other", nil)
				r.decideLetters()
				r.pauseAndResume()
				r.haltAndSkip()
			})
		}
	}
}

// order runs outboxctl as an operator; it is to end with the exit code.
func (r *replays) order(code int, args ...string) string {
	r.t.Helper()
	out, got := asked(r.t, r.dsn(operatorLogin), args...)
	require.Equal(r.t, code, got, "%v: %s", args, out)
	return out
}

// enqueue commits an event of any size.
func (r *replays) enqueue(aggregateType, aggregate string, payload []byte) string {
	r.t.Helper()
	key, err := outbox.NewKey(r.name)
	require.NoError(r.t, err)
	require.NoError(r.t, pgx.BeginFunc(r.t.Context(), r.app, func(tx pgx.Tx) error {
		_, err := outbox.Enqueue(r.t.Context(), tx, outbox.Event{Key: key, AggregateType: aggregateType, AggregateID: aggregate, Type: "OrderChanged", Payload: payload})
		return err
	}))
	return key.String()
}

// poison is an event that no topic takes: beyond max_message_bytes.
func (r *replays) poison(aggregate string) string {
	return r.enqueue("order", aggregate, make([]byte, 1_200_000))
}

// small is an event like any other.
func (r *replays) small(aggregate string) string {
	return r.enqueue("order", aggregate, []byte(`{"of":"`+aggregate+`"}`))
}

func (r *replays) arrives(topic, key string) (found *sarama.ConsumerMessage) {
	r.t.Helper()
	eventually(r.t, key+" arrives", 30*time.Second, func() bool {
		for _, m := range r.committed(topic) {
			if headerOf(m, outbox.HeaderKey) == key {
				found = m
			}
		}
		return found != nil
	})
	return found
}

func (r *replays) keys(topic, aggregate string) (keys []string) {
	for _, m := range r.committed(topic) {
		if string(m.Key) == aggregate {
			keys = append(keys, headerOf(m, outbox.HeaderKey))
		}
	}
	return keys
}

func (r *replays) letters(n int) {
	r.t.Helper()
	eventually(r.t, "the letters are written", 30*time.Second, func() bool {
		return scalar[int](r.environment, `SELECT count(*) FROM onceward.dead_letters WHERE state = 'open'`) == n
	})
}

func (r *replays) decideLetters() {
	t := r.t
	bad, behind, other := r.poison("p"), r.small("p"), r.small("q")
	r.arrives(r.topic(), other)
	r.letters(2)
	require.Contains(t, r.order(3, "status"), r.name+" order p")
	require.Contains(t, r.order(0, "dead", "list"), bad)
	out := r.order(3, "dead", "retry", bad, "--reason", "try", "--yes", "--wait", "30s")
	require.Contains(t, out, "refused again: ")
	require.Contains(t, out, "waits on, behind a letter that was refused again")

	file := filepath.Join(t.TempDir(), "payload")
	require.NoError(t, os.WriteFile(file, []byte("edited"), 0o600))
	require.Contains(t, r.order(0, "dead", "edit", bad, "--payload-file", file, "--reason", "too large", "--yes", "--wait", "30s"), "1 done")
	require.Contains(t, r.order(0, "dead", "retry", "--class", "record", "--reason", "edited", "--yes", "--wait", "30s"), "retry of 2 letters: 2 done")
	require.Equal(t, []string{bad, behind}, r.keys(r.topic(), "p"), "in their order")
	released := r.arrives(r.topic(), bad)
	require.Equal(t, "edited", string(released.Value))
	require.Empty(t, headerOf(released, record.HeaderReplayID), "it was never published before")

	eventually(t, "a published snapshot covers it", 30*time.Second, func() bool { return strings.Contains(outboxctl(t, r.dsn(operatorLogin), "show", bad), "published: ") })
	out, err := r.ctl("again", bad)
	require.NoError(t, err, out)
	eventually(t, "the replay arrives", 30*time.Second, func() bool { return len(r.keys(r.topic(), "p")) == 3 })
	replayed := r.committed(r.topic())
	for _, m := range replayed {
		if headerOf(m, record.HeaderReplayID) != "" {
			require.Equal(t, "edited", string(m.Value), "what was published, not what the row says")
		}
	}

	bad = r.poison("p")
	behind = r.small("p")
	r.letters(2)
	require.Contains(t, r.order(0, "dead", "discard", bad, "--reason", "test data", "--yes", "--wait", "30s"), "1 done")
	require.Contains(t, r.order(0, "dead", "retry", behind, "--reason", "free", "--yes", "--wait", "30s"), "1 done")
	after := r.small("p")
	r.arrives(r.topic(), after)
	require.Equal(t, []string{behind, after}, r.keys(r.topic(), "p")[3:])
	var shown struct {
		Letters []struct {
			State string `json:"state"`
			By    string `json:"decided_by"`
			Why   string `json:"decided_why"`
		} `json:"letters"`
	}
	require.NoError(t, json.Unmarshal([]byte(r.order(0, "dead", "show", bad, "-o", "json")), &shown))
	require.Equal(t, "discarded "+operatorLogin+" test data", shown.Letters[0].State+" "+shown.Letters[0].By+" "+shown.Letters[0].Why)
}

// pauseAndResume: what rests does not pass, what does not rest does.
func (r *replays) pauseAndResume() {
	t := r.t
	require.Contains(t, r.order(0, "pause", "--route", r.topic()), "route "+r.topic()+" is paused")
	eventually(t, "the relay has heard it", 30*time.Second, func() bool {
		before := len(r.committed(r.topic()))
		r.small("s")
		r.arrives(r.name+".other", r.enqueue("other", "s", []byte("{}")))
		return len(r.committed(r.topic())) == before
	})
	held := r.small("s")
	r.arrives(r.name+".other", r.enqueue("other", "s", []byte("{}")))
	require.NotContains(t, r.keys(r.topic(), "s"), held)
	require.Contains(t, r.order(3, "status"), "route "+r.topic()+" is paused")
	r.order(0, "resume", "--route", r.topic())
	r.arrives(r.topic(), held)

	require.Contains(t, r.order(0, "pause"), "is paused")
	eventually(t, "the relay rests", 30*time.Second, func() bool { return r.relay.logs(`msg="paused by an operator"`) })
	resting := r.small("s")
	require.NotContains(t, r.keys(r.topic(), "s"), resting)
	r.order(0, "resume")
	r.arrives(r.topic(), resting)
}

// haltAndSkip: a relay whose route says halt is told to leave the event out.
func (r *replays) haltAndSkip() {
	t := r.t
	r.relay.stop()
	text, err := os.ReadFile(r.config)
	require.NoError(t, err)
	const route = `{topic: "{namespace}.{aggregate_type}"`
	require.Contains(t, string(text), route)
	require.NoError(t, os.WriteFile(r.config, []byte(strings.Replace(string(text), route, route+", poison: halt", 1)), 0o600))
	r.relay.start()
	bad, behind := r.poison("h"), r.small("h")
	eventually(t, "the relay halts at the event", 30*time.Second, func() bool { return r.relay.logs("halted: an operator has to decide") && r.relay.logs(bad) })
	require.Contains(t, r.order(0, "skip", bad, "--reason", "2 MB of logs", "--yes"), "leaves out "+bad)
	r.arrives(r.topic(), behind)
	require.Equal(t, []string{behind}, r.keys(r.topic(), "h"))
	require.Equal(t, "discarded "+operatorLogin+" 2 MB of logs", scalar[string](r.environment,
		`SELECT concat_ws(' ', state, decided_by, decided_why) FROM onceward.dead_letters WHERE namespace || ':' || letter_id = $1`, bad))
	r.arrives(r.topic(), r.small("h"))
	// Its row of before may be written after the event has passed.
	var said string
	eventually(t, "the relay says that it goes on", 30*time.Second, func() (goesOn bool) {
		var code int
		code, said = statusOf(t, r.environment)
		return code == 0
	})
	require.NotContains(t, said, "told to skip")
	r.relay.stop()
}
