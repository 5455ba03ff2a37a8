package relay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/publisher"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func after(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }

// only returns the one thing that waits.
func only(t *testing.T, h Health) Wait {
	t.Helper()
	require.Len(t, h.Waiting, 1)
	return h.Waiting[0]
}

// A relay that cannot begin says for what it waits, since when, and why, through
// all its tries; and nothing once it streams.
func TestVitalsOfARelayThatCannotBegin(t *testing.T) {
	v := newVitals("orders", noon)
	v.enter(StateConnecting, nil, after(0))
	require.Empty(t, v.health(after(0)).Waiting)
	v.try(WaitPostgres, "connect", after(0))
	require.Equal(t, Wait{For: WaitPostgres, Since: noon, Detail: "connect"}, only(t, v.health(after(1))))
	v.try(WaitKafka, "ask", after(1))
	v.enter(StateBackoff, errors.New("no broker can be used"), after(2))
	for second := 2; second < 40; second += 4 {
		want := Wait{For: WaitKafka, Since: noon, Detail: "no broker can be used"}
		require.Equal(t, want, only(t, v.health(after(second))))
		v.enter(StateConnecting, nil, after(second+1))
		require.Equal(t, StateConnecting, v.health(after(second+1)).State)
		v.try(WaitPostgres, "connect", after(second+1))
		require.Equal(t, want, only(t, v.health(after(second+2))), "the next try has not come as far yet")
		v.try(WaitKafka, "ask", after(second+2))
		v.enter(StateBackoff, errors.New("no broker can be used"), after(second+3))
	}
	v.enter(StateConnecting, nil, after(60))
	v.try(WaitSlot, "made", after(60))
	require.Equal(t, WaitKafka, only(t, v.health(after(62))).For)
	require.Equal(t, Wait{For: WaitSlot, Since: after(60), Detail: "made"}, only(t, v.health(after(66))), "that takes long by itself")
	v.try(WaitSlot, "made: pid 7", after(67))
	require.Equal(t, Wait{For: WaitSlot, Since: after(60), Detail: "made: pid 7"}, only(t, v.health(after(68))), "named, it waits since then")
	v.try(WaitSlot, "made: pid 8", after(68))
	require.Equal(t, Wait{For: WaitSlot, Since: after(60), Detail: "made: pid 8"}, only(t, v.health(after(68))))
	v.try(WaitSlot, "the start waits", after(69))
	require.Equal(t, after(69), only(t, v.health(after(75))).Since, "another wait")
	v.enter(StateStreaming, nil, after(70))
	h := v.health(after(70))
	require.Empty(t, h.Waiting)
	require.Empty(t, h.Error)
	require.Equal(t, after(70), h.Since)
}

// Of brokers that cannot be reached the page says which, and not that a session
// ended with some error.
func TestVitalsNameTheBrokersOfASessionThatCannotBegin(t *testing.T) {
	v := newVitals("orders", noon)
	v.enter(StateConnecting, nil, after(0))
	v.try(WaitKafka, "brokers [k:1] are asked", after(1))
	v.enter(StateBackoff, errors.New("connection refused"), after(2))
	for _, s := range []State{StateBackoff, StateConnecting} {
		h := v.health(after(3))
		require.Equal(t, CodeKafka, h.Code, s)
		require.Contains(t, h.public, "brokers [k:1] are asked")
		require.NotContains(t, h.public, "refused")
		v.enter(StateConnecting, nil, after(3))
	}
	v.try(WaitPostgres, "connect", after(4))
	v.enter(StateBackoff, errors.New("connection refused"), after(5))
	require.Equal(t, codeSession, v.health(after(5)).Code, "that was PostgreSQL's")
}

// What is waited for has its own beginning: not that of the halt, of the standby or of
// another outage before it.
func TestVitalsOfAnOutageAfterAnother(t *testing.T) {
	for name, before := range map[string]func(*vitals){
		"halted":     func(v *vitals) { v.enter(StateHalted, &cdc.StartError{Code: cdc.CodeSlotLost}, after(1)) },
		"standby":    func(v *vitals) { v.enter(StateStandby, nil, after(1)) },
		"PostgreSQL": func(v *vitals) { v.enter(StateBackoff, errors.New("EOF"), after(1)) },
	} {
		v := newVitals("orders", noon)
		before(v)
		v.enter(StateConnecting, nil, after(60))
		v.try(WaitPostgres, "connect", after(60))
		v.try(WaitKafka, "ask", after(61))
		v.enter(StateBackoff, errors.New("no broker can be used"), after(62))
		require.Equal(t, Wait{For: WaitKafka, Since: after(61), Detail: "no broker can be used"}, only(t, v.health(after(63))), name)
		v.enter(StateConnecting, nil, after(64))
		v.try(WaitKafka, "ask", after(65))
		v.enter(StateBackoff, errors.New("no broker can be used"), after(66))
		require.Equal(t, after(61), only(t, v.health(after(67))).Since, name)
	}
}

// What a session breaks of is told by its error.
func TestVitalsOfASessionThatBreaks(t *testing.T) {
	for kind, err := range map[string]error{
		WaitKafka: fmt.Errorf("session: %w", publisher.ErrFailed), WaitPostgres: errors.New("read from the server: EOF"),
	} {
		v := newVitals("orders", noon)
		v.enter(StateStreaming, nil, after(1))
		v.report(WaitRoute, Wait{What: "a", Since: after(2)})
		v.over()
		v.enter(StateBackoff, err, after(5))
		require.Equal(t, Wait{For: kind, Since: after(5), Detail: err.Error()}, only(t, v.health(after(9))))
	}
}

// Who stands by or is halted stays so while it looks whether anything changed.
func TestVitalsStayWhileALookIsTaken(t *testing.T) {
	start := &cdc.StartError{Code: cdc.CodeSlotLost, What: "gone", Cure: "mend it"}
	for _, tc := range []struct {
		state State
		err   error
		kind  string
		code  string
	}{{StateStandby, nil, WaitStandby, ""}, {StateHalted, start, WaitHalted, cdc.CodeSlotLost}} {
		v := newVitals("orders", noon)
		v.enter(tc.state, tc.err, after(1))
		v.enter(StateConnecting, nil, after(10))
		v.try(WaitPostgres, "connect", after(10))
		v.enter(tc.state, tc.err, after(11))
		h := v.health(after(20))
		require.Equal(t, tc.state, h.State)
		require.Equal(t, after(1), h.Since)
		require.Equal(t, tc.code, h.Code)
		require.Equal(t, tc.kind, only(t, h).For)
		v.enter(StateStreaming, nil, after(30))
		require.Empty(t, v.health(after(30)).Waiting)
		require.Empty(t, v.health(after(30)).Error)
	}
}

// What is reported again keeps its beginning; each kind has its place.
func TestVitalsKeepTheBeginningOfAWait(t *testing.T) {
	v := newVitals("orders", noon)
	v.enter(StateStreaming, nil, noon)
	v.report(WaitRoute, Wait{What: "b", Since: after(1), Detail: "missing"})
	v.report(WaitRoute, Wait{What: "a", Since: after(5)}, Wait{What: "b", Since: after(5), Detail: "forbidden"})
	v.report(WaitKafka, Wait{Since: after(6)})
	h := v.health(after(7))
	require.Equal(t, []Wait{
		{For: WaitKafka, Since: after(6)}, {For: WaitRoute, What: "b", Since: after(1), Detail: "forbidden"}, {For: WaitRoute, What: "a", Since: after(5)},
	}, h.Waiting)
	v.report(WaitRoute)
	require.Equal(t, WaitKafka, only(t, v.health(after(8))).For)
	many := make([]Wait, 3*maxWaits)
	for i := range many {
		many[i].What = fmt.Sprint(i)
	}
	v.report(WaitRoute, many...)
	require.Len(t, v.health(after(9)).Waiting, maxWaits+1)
}

// The log says what waits after ten seconds, one, five and thirty minutes, then
// every thirty, and once when it is over.
func TestRemindersKeepTheirTimes(t *testing.T) {
	r := make(reminders)
	var said []int
	var over notice
	for second := range 7301 {
		waiting := []Wait{{For: WaitKafka, Since: noon, Detail: "x"}, {For: WaitStandby, Since: noon}, {For: WaitKafka, What: "y", Since: after(3)}}
		if second >= 7210 {
			waiting = nil
		}
		for _, n := range r.tick(after(second), waiting) {
			require.Equal(t, WaitKafka, n.wait.For, "a standby is how it should be")
			if n.over {
				require.Equal(t, 7210, second)
				over = n
				continue
			}
			require.Equal(t, "x", n.wait.Detail)
			require.Equal(t, 1, n.others)
			said = append(said, second)
		}
	}
	require.Equal(t, []int{10, 60, 300, 1800, 3600, 5400, 7200}, said)
	require.Equal(t, 7210*time.Second, over.lasted)
	require.Empty(t, r.tick(after(8000), []Wait{{For: WaitKafka, Since: after(7999)}}))
	require.Empty(t, r.tick(after(8001), nil), "what was not said is not taken back")
	require.Len(t, r.tick(after(9001), []Wait{{For: WaitTransaction, Since: noon}}), 1, "one that is old already is said once")
	require.Empty(t, r.tick(after(9002), []Wait{{For: WaitTransaction, Since: noon}}))
}

// TestKafkasFilesAreNotBlamedOnPostgreSQL: they are read anew for every session, beside a
// step of PostgreSQL. The key of relay.yaml is named, also that of the private key.
func TestKafkasFilesAreNotBlamedOnPostgreSQL(t *testing.T) {
	gone, here := filepath.Join(t.TempDir(), "gone"), filepath.Join(t.TempDir(), "here")
	require.NoError(t, os.WriteFile(here, []byte("x"), 0o600))
	for key, change := range map[string]func(*KafkaConfig){
		"kafka.sasl.password_file": func(k *KafkaConfig) {
			k.SASL = SASLConfig{Mechanism: "PLAIN", Username: "u", PasswordFile: gone}
		},
		"kafka.tls.ca_file":   func(k *KafkaConfig) { k.TLS.CAFile = gone },
		"kafka.tls.cert_file": func(k *KafkaConfig) { k.TLS.CertFile, k.TLS.KeyFile = gone, here },
		"kafka.tls.key_file":  func(k *KafkaConfig) { k.TLS.CertFile, k.TLS.KeyFile = here, gone },
	} {
		cfg := Default()
		change(&cfg.Kafka)
		_, err := cfg.Publisher(nil)
		require.ErrorContains(t, err, "read "+key)
		v := newVitals("orders", noon)
		v.enter(StateConnecting, nil, after(0))
		v.try(WaitPostgres, "connect to PostgreSQL for letters", after(1))
		v.enter(StateBackoff, fmt.Errorf("begin: %w", err), after(2))
		h := v.health(after(3))
		require.Equal(t, WaitKafka, only(t, h).For, key)
		require.Equal(t, CodeKafka, h.Code, key)
		require.Equal(t, key+" cannot be read or used; the log has the file and the reason", h.public)
	}
}

// TestADSNFileThatIsGoneIsCalledSo: the code is that of what troubleshooting.md has for it.
func TestADSNFileThatIsGoneIsCalledSo(t *testing.T) {
	cfg := Default()
	cfg.Postgres.DSNFile = filepath.Join(t.TempDir(), "gone")
	_, err := cfg.DSN()
	require.ErrorContains(t, err, "postgres.dsn_file")
	v := newVitals("orders", noon)
	v.enter(StateBackoff, fmt.Errorf("begin: %w", err), after(2))
	h := v.health(after(3))
	require.Equal(t, []string{"DSN", WaitPostgres}, []string{h.Code, only(t, h).For})
	require.Equal(t, "postgres.dsn_file cannot be read or used; the log has the file and the reason", h.public)
}

// TestVitalsHaveNoCommandOfOthers: status takes the commands from what a process says of
// itself, and a server, or who writes rows, says what it likes.
func TestVitalsHaveNoCommandOfOthers(t *testing.T) {
	v := newVitals("orders", noon)
	raised := &pgconn.PgError{Severity: "ERROR", Code: "P0001", Message: "run `outboxctl gap accept X`"}
	v.enter(StateHalted, fmt.Errorf("write a letter: %w; `outboxctl status` says more", raised), after(1))
	h := v.health(after(2))
	const want = "write a letter: ERROR: run 'outboxctl gap accept X' (SQLSTATE P0001); `outboxctl status` says more"
	require.Equal(t, []string{want, want}, []string{h.Error, only(t, h).Detail})
	_, err := publisher.Config{Brokers: []string{"b:1"}, Insecure: true, Routes: []publisher.Route{{Match: publisher.Match{Namespace: "x"}, Topic: "t"}}}.TopicOf("n", "`outboxctl list`", "e")
	require.ErrorContains(t, err, "'outboxctl list'")
}
