package main

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/houserules"
	"github.com/onceward/onceward/internal/secret/canary"
	"github.com/onceward/onceward/internal/terminal/manual/manualtest"
	"github.com/onceward/onceward/relay"
)

func call(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(append([]string{"relay"}, args...), environ, &out, &errs)
	return code, out.String(), errs.String()
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "relay.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

const nowhere = `name: orders
postgres: {dsn: "postgres://u:canary@127.0.0.1:1/d", insecure: true}
kafka: {brokers: ["127.0.0.1:1"], insecure: true}
routes: [{topic: t}]
`

func TestWrongUsageEndsWith2(t *testing.T) {
	for _, args := range [][]string{{"chek"}, {"run", "--confg", "x"}, {"run", "extra"}, {"check", "extra"}, {"--nonsense"}} {
		code, _, stderr := call(t, nil, args...)
		require.Equal(t, 2, code, args)
		require.Contains(t, stderr, "relay: ")
		require.NotContains(t, stderr, "relay: relay")
	}
	for args, want := range map[string]string{
		"run extra":       `relay: run takes no argument, got "extra"`,
		"check -o":        "relay: check: -o/--output: its value is missing",
		"check --confg x": "relay: check: unknown flag --confg; did you mean --config?",
		"--nonsense":      "relay: unknown flag --nonsense",
	} {
		_, _, stderr := call(t, nil, strings.Fields(args)...)
		require.Equal(t, want+"\n", stderr)
	}
}

// TestPagesCallWhatIsThere: every call of relay in the pages is understood. The file that
// it names is replaced: by one that leads nowhere, and for run by one that is not there.
func TestPagesCallWhatIsThere(t *testing.T) {
	calls, err := houserules.PageCalls(t.Context(), filepath.Join("..", ".."))
	require.NoError(t, err)
	found := 0
	for _, c := range calls {
		if c.Args[0] != "relay" {
			continue
		}
		found++
		file, want := []string{"--config", filepath.Join(t.TempDir(), "relay.yaml")}, 1
		switch c.Args[1] {
		case "check":
			file, want = []string{"--config", writeConfig(t, nowhere)}, 3
		case "man":
			file, want = nil, 0
		}
		code, stdout, stderr := call(t, nil, slices.Concat(c.Args[1:], file)...)
		require.Equal(t, want, code, "%s: %s%s", c, stdout, stderr)
	}
	require.Greater(t, found, 10, "they are found")
}

func TestWrongConfigurationEndsWith1AndNamesTheKey(t *testing.T) {
	code, _, stderr := call(t, nil, "run", "--config", writeConfig(t, nowhere+"quue: {}"))
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "did you mean queue?")
	code, _, stderr = call(t, []string{"ONCEWARD_POSTGRES_DNS=x"}, "run", "--config", writeConfig(t, nowhere))
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "did you mean ONCEWARD_POSTGRES_DSN?")
	for _, command := range []string{"run", "check"} { // and not on the file
		_, _, stderr = call(t, []string{"ONCEWARD_TOPICS_PARTITIONS=many"}, command, "--config", writeConfig(t, nowhere))
		require.Equal(t, "relay: environment variable ONCEWARD_TOPICS_PARTITIONS: topics.partitions: want a number\n", stderr)
	}
	code, _, stderr = call(t, nil, "run", "--config", writeConfig(t, nowhere), "--set", "queue.byts=1")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "did you mean queue.bytes?")
}

// What ends a relay is in its log in the log's form, too, before the line for people.
func TestTheReasonOfTheEndIsInTheLog(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, taken.Close()) })
	config := nowhere + "admin: {listen: \"" + taken.Addr().String() + "\"}\n"
	code, _, stderr := call(t, nil, "run", "--config", writeConfig(t, config))
	require.Equal(t, 1, code)
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	var last struct{ Level, Msg, Code, Error string }
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-2]), &last), stderr)
	require.Equal(t, "ERROR", last.Level)
	require.Contains(t, last.Error, "config: admin.listen: cannot listen: ")
	require.Contains(t, last.Error, "address already in use")
	require.Equal(t, "CONFIG", last.Code, "and not that of the database, which does not answer either")
}

func TestDurationsOfTheLogHaveAUnit(t *testing.T) {
	var out strings.Builder
	newLogger(relay.LogConfig{Level: "info", Format: "json"}, &out).Info("again", "in", 6400*time.Millisecond, "try", 2)
	require.Contains(t, out.String(), `"in_seconds":6.4,"try":2`)
}

func TestVersions(t *testing.T) {
	code, stdout, _ := call(t, nil, "--version")
	require.Zero(t, code)
	require.Regexp(t, `^relay version dev \(.*go1\..*\), needs schema of side outbox [0-9]+\n$`, stdout)
}

func TestManPage(t *testing.T) {
	code, page, stderr := call(t, nil, "man")
	require.Zero(t, code, stderr)
	var environ []string
	var out bytes.Buffer
	app := &cli.App{Name: "relay", Commands: []*cli.Command{runCommand(environ, nil), checkCommand(environ, &out), manCommand()}}
	manualtest.Holds(t, page, app)
	code, _, _ = call(t, nil, "man", "extra")
	require.Equal(t, 2, code)
}

func TestCheckEndsWith3AndShowsNoPassword(t *testing.T) {
	for _, format := range []string{"table", "json"} {
		code, stdout, stderr := call(t, nil, "check", "--config", writeConfig(t, nowhere), "--output", format)
		require.Equal(t, 3, code, stderr)
		require.Contains(t, stdout, "connection refused")
		require.NotContains(t, stdout+stderr, "canary")
	}
	code, _, stderr := call(t, nil, "check", "--config", writeConfig(t, nowhere), "--output", "xml")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "want table, wide or json")
}

// TestNoCommandPrintsAPassword hands connection strings to `relay check` and `relay
// run`, at every place where they may be given, rightly or by mistake. What can be
// connected with is left to the test of a live rotation, in package relay.
func TestNoCommandPrintsAPassword(t *testing.T) {
	for i, text := range canary.Strings() {
		quoted := strconv.Quote(text)
		inline := writeConfig(t, strings.Replace(nowhere, `"postgres://u:canary@127.0.0.1:1/d"`, quoted, 1))
		calls := [][]string{{"check", "--config", inline}, {text}, {"check", text}, {"run", text}, {"check", "--config", inline, "--set", text}, {"run", "--config", inline, "--set", "postgres.dsn=" + text}}
		if _, err := pgconn.ParseConfig(text); err != nil {
			calls = append(calls, []string{"run", "--config", inline})
		}
		if i%5 == 0 {
			calls = append(calls, []string{"help", text}, []string{"check", "--config", text}, []string{"check", "--config", inline, "--output", text})
		}
		for _, args := range calls {
			_, stdout, stderr := call(t, nil, args...)
			require.NotContains(t, stdout+stderr, canary.Word, "%q", args)
		}
	}
	for _, text := range canary.Misplaced() {
		config := writeConfig(t, strings.Replace(nowhere, `dsn: "postgres://u:canary@127.0.0.1:1/d"`, "dsn_file: "+strconv.Quote(text), 1))
		for _, command := range []string{"check", "run"} {
			_, stdout, stderr := call(t, nil, command, "--config", config)
			require.NotContains(t, stdout+stderr, canary.Word, "%s %q", command, text)
		}
	}
}

func TestHelpNamesTheCommands(t *testing.T) {
	code, stdout, _ := call(t, nil)
	require.Equal(t, 0, code)
	for _, want := range []string{"run", "check"} {
		require.Contains(t, stdout, want)
	}
}

// refusing is a server that refuses every login, which only an operator can mend.
func refusing(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			backend := pgproto3.NewBackend(conn, conn)
			if _, err := backend.ReceiveStartupMessage(); err == nil {
				backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01", Message: "password authentication failed"})
				_ = backend.Flush()
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return listener.Addr().String()
}

func TestExitOnHaltEndsWith1(t *testing.T) {
	config := strings.ReplaceAll(nowhere, "127.0.0.1:1/d", refusing(t)+"/d?sslmode=disable") + `admin: {listen: "off"}` + "\n"
	for _, args := range [][]string{{"--exit-on-halt"}, {"--set", "exit_on_halt=true"}} {
		code, _, stderr := call(t, nil, append([]string{"run", "--config", writeConfig(t, config)}, args...)...)
		require.Equal(t, 1, code, stderr)
		require.Contains(t, stderr, `"level":"ERROR"`, "the reason is part of the log")
		require.Contains(t, stderr, `"code":"LOGIN_REFUSED"`)
		require.Contains(t, stderr, "relay: connect to PostgreSQL: LOGIN_REFUSED")
	}
}
