package relay

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/relay/internal/beginning"
	"github.com/onceward/onceward/relay/internal/scripted"
)

// What decides whether a row is written at once is neither a figure, nor a time,
// nor the try that follows a failure.
func TestHealthIsWrittenWhenItChanges(t *testing.T) {
	l := newLookout(&testRelay(t, nil).cfg, nil)
	of := func(h Health) string {
		_, key := l.row(h)
		return key
	}
	kafka := Wait{For: WaitKafka, Since: noon, Detail: "no broker"}
	down := Health{State: StateBackoff, Since: noon, Error: "no broker", Waiting: []Wait{kafka}}
	again := down
	again.State, again.Since = StateConnecting, after(7)
	require.Equal(t, of(down), of(again))
	row, _ := l.row(again)
	require.Equal(t, "backoff", row.State)
	require.Equal(t, noon, row.Since)
	require.NotEqual(t, of(down), of(Health{State: StateStreaming, Waiting: []Wait{kafka}}))
	require.NotEqual(t, of(down), of(Health{State: StateBackoff, Waiting: []Wait{{For: WaitPostgres}}}))
	halted := Health{State: StateHalted, Code: beginning.CodeSlotAdvanced}
	other := halted
	other.Code = beginning.CodeWentBack
	require.NotEqual(t, of(halted), of(other))
	next := halted
	next.Since = after(1)
	require.NotEqual(t, of(halted), of(next), "halted at another event, which has a cure of its own")

	held := func(route string, events int) Health {
		return Health{State: StateStreaming, Waiting: []Wait{{For: WaitRoute, What: route, Events: events}}}
	}
	require.Equal(t, of(held("a", 1)), of(held("a", 2)))
	require.NotEqual(t, of(held("a", 1)), of(held("b", 1)))
	require.NotEqual(t, of(held("a", 1)), of(Health{State: StateStreaming, Since: noon, Waiting: held("a", 1).Waiting}), "another session")
	pins := func(who string) Health {
		return Health{State: StateStreaming, Waiting: []Wait{{For: WaitTransaction, What: who}}}
	}
	require.Equal(t, of(pins("pid 7, active")), of(pins("pid 7, idle in transaction")))
}

// The server was away: nobody could be told so. As soon as a session has begun on it again,
// others see that the process lives and streams since then, and a row that an owner has
// removed meanwhile is there again.
func TestASessionThatBeginsAgainIsSaidAtOnce(t *testing.T) {
	db := scripted.New(t)
	db.On("HealthAllowed", func([]string) scripted.Reply { return scripted.One(true) })
	r := testRelay(t, func(cfg *Config) { cfg.Postgres.DSN = db.DSN() })
	show := func(seconds int) {
		r.lookout.show(t.Context(), r.vitals.health(after(seconds)), after(seconds))
	}
	saved := func() (n int) {
		for _, name := range scripted.Names(db.Log()) {
			if name == "SaveHealth" {
				n++
			}
		}
		return n
	}
	r.vitals.enter(StateStreaming, nil, after(1))
	show(2)
	require.Equal(t, 1, saved())

	away := r.cfg.Postgres.DSN
	r.lookout.drop(t.Context())
	r.cfg.Postgres.DSN = "postgres://127.0.0.1:1/?sslmode=disable"
	r.vitals.enter(StateBackoff, errors.New("no answer"), after(20))
	show(21)
	r.cfg.Postgres.DSN = away
	show(22)
	require.Equal(t, 1, saved(), "nothing has changed, and the pause is not over")
	r.vitals.enter(StateStreaming, nil, after(23))
	show(24)
	require.Equal(t, 2, saved())

	// Restarted so quickly that no try has failed in between.
	require.NoError(t, r.lookout.conn.PgConn().Conn().Close())
	r.vitals.enter(StateConnecting, nil, after(29))
	r.vitals.enter(StateStreaming, nil, after(30))
	show(31)
	require.Equal(t, 3, saved())

	r.lookout.drop(t.Context())
	db.On("HasHealth", func([]string) scripted.Reply { return scripted.One(false) })
	show(50)
	require.Equal(t, 4, saved(), "the row is gone")
}

// A row holds what jsonb and text can hold.
func TestHealthRowsFit(t *testing.T) {
	l := newLookout(&testRelay(t, nil).cfg, nil)
	row, _ := l.row(Health{State: StateHalted, Error: strings.Repeat("x\x00", 10_000)})
	require.LessOrEqual(t, len(row.Detail), 4096)
	require.NotContains(t, row.Detail, "\x00")
	require.JSONEq(t, "[]", string(row.Waits))
	row, _ = l.row(Health{Waiting: []Wait{{For: WaitRoute, What: "a\x00b\xff"}}})
	var waits []Wait
	require.NoError(t, json.Unmarshal(row.Waits, &waits))
	require.NotContains(t, string(row.Waits), `\u0000`, "jsonb takes no such character")
	require.LessOrEqual(t, len(processName+l.process), 63, "an application_name is not longer")
}

// A process that is halted and stopped leaves its words: whoever asks reads what it said,
// and not what an older one did. That holds while it looks whether it is mended, too.
func TestAHaltedProcessLeavesItsWords(t *testing.T) {
	start := &cdc.StartError{Code: cdc.CodeSlotLost, What: "gone", Cure: "mend it"}
	for name, c := range map[string]struct {
		state  State
		looks  bool
		leaves bool
	}{
		"halted": {StateHalted, false, true}, "halted, in a look": {StateHalted, true, true},
		"streaming": {StateStreaming, false, false}, "in backoff": {StateBackoff, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			db := scripted.New(t)
			db.On("HealthAllowed", func([]string) scripted.Reply { return scripted.One(true) })
			var said []string
			db.On("SaveHealth", func(args []string) scripted.Reply { said = args; return scripted.Reply{Changed: 1} })
			r := testRelay(t, func(cfg *Config) { cfg.Postgres.DSN = db.DSN() })
			r.vitals.enter(c.state, start, after(1))
			r.lookout.show(t.Context(), r.vitals.health(after(2)), after(2))
			require.NotEmpty(t, said)
			if c.looks {
				r.vitals.enter(StateConnecting, nil, after(10))
				r.vitals.try(WaitPostgres, "connect", after(10))
			}
			r.vitals.enter(StateStopped, nil, after(11))
			require.Equal(t, StateStopped, r.state(), "the pages and metrics say that it has ended")
			r.lookout.close(t.Context(), r.vitals.last(after(12)))
			require.Equal(t, !c.leaves, slices.Contains(scripted.Names(db.Log()), "RemoveHealth"))
			if c.leaves {
				require.Contains(t, said, "halted")
				require.Contains(t, said, cdc.CodeSlotLost)
			}
		})
	}
}

// TestPodsAreToldApart: by the end of their name, as long as it has to be.
func TestPodsAreToldApart(t *testing.T) {
	require.Equal(t, "db-1.example.com", shortHost("db-1.example.com"))
	require.Equal(t, "ip-10-0-0-1", shortHost("ip-10-0-0-1.eu-central-1.compute.internal"))
	const deployment = "payments-onceward-relay-production-7d9f8b6c5-"
	require.Equal(t, "elay-production-7d9f8b6c5-x2x4z", shortHost(deployment+"x2x4z"))
	require.NotEqual(t, shortHost(deployment+"x2x4z"), shortHost(deployment+"q9q9q"))
	require.LessOrEqual(t, len(processName+shortHost(deployment+"x2x4z")+"/4194304/ffffff"), 63, "an application_name is not longer")
}
