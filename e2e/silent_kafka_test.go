//go:build e2e

package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/kafkaproxy"
)

// health is what /readyz says.
type health struct {
	State   string       `json:"state"`
	Code    string       `json:"code"`
	Error   string       `json:"error"`
	Waiting []healthWait `json:"waiting"`
	Status  int          `json:"-"`
}

type healthWait struct {
	For    string    `json:"for"`
	What   string    `json:"what"`
	Since  time.Time `json:"since"`
	Detail string    `json:"detail"`
	Events int       `json:"events"`
}

var servedAt = regexp.MustCompile(`serving health and metrics.*address=(\S+)`)

// adminURL returns where the relay serves its pages.
func adminURL(t *testing.T, r *relayProcess) string {
	t.Helper()
	var address string
	eventually(t, "the relay serves its pages", 30*time.Second, func() bool {
		if m := servedAt.FindStringSubmatch(r.log()); m != nil {
			address = m[1]
		}
		return address != ""
	})
	return "http://" + address
}

func readPage(t *testing.T, url string) (int, string) {
	t.Helper()
	answer, err := http.Get(url)
	require.NoError(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(body)
}

func readyz(t *testing.T, r *relayProcess) (h health) {
	t.Helper()
	status, body := readPage(t, adminURL(t, r)+"/readyz")
	require.NoError(t, json.Unmarshal([]byte(body), &h), body)
	h.Status = status
	return h
}

// waitsFor returns what of a kind waits, by /readyz.
func waitsFor(t *testing.T, r *relayProcess, kind string) *healthWait {
	t.Helper()
	for _, w := range readyz(t, r).Waiting {
		if w.For == kind {
			return &w
		}
	}
	return nil
}

// status runs outboxctl status with the operator's rights, and returns its exit
// code and what it printed.
func statusOf(t *testing.T, w *environment) (int, string) {
	t.Helper()
	out, code := asked(t, w.dsn(operatorLogin), "status")
	return code, out
}

// TestSilentKafka: Kafka acknowledges nothing while an event waits, and is away
// when a relay starts. Log, /readyz, metrics and status say so within fifteen
// seconds, and that it is over.
func TestSilentKafka(t *testing.T) {
	for _, mode := range []string{"idempotent", "exactly-once"} {
		t.Run(mode, func(t *testing.T) { silentKafka(t, mode) })
	}
	t.Run("refuses at start", func(t *testing.T) {
		w := newEnvironment(t, versions[1])
		network := kafkaproxy.New()
		t.Cleanup(func() { require.NoError(t, network.Close()) })
		link, err := network.AddPlain(t.Context(), kafka(t).Addrs()[0])
		require.NoError(t, err)
		link.Refuse(true)
		prepared(w)
		silentStart(t, w, func(config string) string { return strings.ReplaceAll(config, kafka(t).Addrs()[0], link.Addr()) }, link.Heal)
	})
	t.Run("mute at start", func(t *testing.T) {
		w := newEnvironment(t, versions[0])
		prepared(w)
		resume := stall(t)
		silentStart(t, w, func(config string) string { return config }, resume)
	})
}

// prepared installs what the relay and writeOne need.
func prepared(w *environment) {
	w.t.Helper()
	w.install()
	w.createTopic(nil)
	w.execute(oneAggregate + `; GRANT ALL ON counters, business TO PUBLIC`)
}

func silentKafka(t *testing.T, mode string) {
	w := newEnvironment(t, versions[1])
	prepared(w)
	r := w.newRelay(w.config(`admin: {listen: "127.0.0.1:0"}`), "")
	r.env = append(r.env, "ONCEWARD_KAFKA_MODE="+mode, "ONCEWARD_TOPICS_CREATE=true", "ONCEWARD_TOPICS_REPLICATION_FACTOR=1")
	r.start()
	eventually(t, "the relay streams", time.Minute, func() bool { return sessions(r) == 1 })
	caughtUp(t, w, r)
	require.Empty(t, readyz(t, r).Waiting)
	code, out := statusOf(t, w)
	require.Zero(t, code, out)
	require.Contains(t, out, "streaming")
	resume := stall(t)
	began := time.Now()
	key := writeOne(t, w)
	eventually(t, "/readyz says it", 15*time.Second, func() bool { return waitsFor(t, r, "kafka") != nil })
	h, wait := readyz(t, r), waitsFor(t, r, "kafka")
	require.Equal(t, 200, h.Status, "a relay that streams and waits is ready")
	require.Equal(t, "streaming", h.State)
	require.WithinDuration(t, began, wait.Since, 2*time.Second)
	require.Contains(t, wait.Detail, w.brokers[0])
	if mode == "idempotent" {
		require.Contains(t, wait.Detail, key)
		require.Contains(t, wait.Detail, w.topic())
	}
	_, metrics := readPage(t, adminURL(t, r)+"/metrics")
	require.Contains(t, metrics, `onceward_waiting{for="kafka",relay="`+w.name+`"} 1`)
	eventually(t, "the log says it", time.Until(began.Add(15*time.Second)), func() bool { return r.logs("waiting: Kafka takes no events") })
	eventually(t, "status says it", time.Until(began.Add(15*time.Second)), func() bool {
		code, out = statusOf(t, w)
		return code == 3 && strings.Contains(out, "waits for kafka since")
	})
	require.NotContains(t, out, "start the relay")
	said := time.Since(began)
	resume()
	eventually(t, "the log says that it is over", 30*time.Second, func() bool { return r.logs("no longer waiting: Kafka takes no events") })
	caughtUp(t, w, r)
	eventually(t, "status is well again", 30*time.Second, func() bool { code, out = statusOf(t, w); return code == 0 })
	require.Empty(t, readyz(t, r).Waiting)
	r.stop()
	require.Zero(t, scalar[int](w, `SELECT count(*) FROM onceward.relay_health`), "a process that has ended as it should takes its row along")
	t.Logf("%s: all four said it within %s", mode, said.Round(time.Millisecond))
}

// silentStart starts a relay that cannot reach Kafka, until heal.
func silentStart(t *testing.T, w *environment, lead func(string) string, heal func()) {
	path := w.config(`admin: {listen: "127.0.0.1:0"}`)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte(lead(string(text))), 0o600))
	r := w.newRelay(path, "")
	began := time.Now()
	r.start()
	within := func(what string, yes func() bool) {
		t.Helper()
		eventually(t, what, time.Until(began.Add(20*time.Second)), yes)
	}
	within("/readyz says it", func() bool { return waitsFor(t, r, "kafka") != nil })
	require.Equal(t, 503, readyz(t, r).Status)
	within("the log says it", func() bool { return r.logs("waiting: Kafka takes no events") })
	var out string
	within("status says it", func() bool {
		var code int
		code, out = statusOf(t, w)
		return code == 3 && strings.Contains(out, "waits for kafka since")
	})
	require.NotContains(t, out, "start the relay")
	heal()
	eventually(t, "it streams", 2*time.Minute, func() bool { return sessions(r) == 1 })
	eventually(t, "the log says that it is over", 30*time.Second, func() bool { return r.logs("no longer waiting: Kafka takes no events") })
	require.Equal(t, 1, strings.Count(r.log(), "waiting: Kafka takes no events")-strings.Count(r.log(), "no longer waiting: Kafka"), "once, through all tries")
	r.stop()
}
