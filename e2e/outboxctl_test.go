//go:build e2e

package e2e

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/process"
)

// outboxctl runs the built command on the database of the DSN, and returns what
// it printed. It ends with 0.
func outboxctl(t *testing.T, dsn string, args ...string) string {
	t.Helper()
	out, err := process.Run(t.Context(), process.Spec{
		Path: outboxctlBinary(t), Args: args, Env: []string{"OUTBOXCTL_DSN=" + dsn, "OUTBOXCTL_INSECURE=true"},
	})
	require.NoError(t, err, "outboxctl %v: %s", args, out)
	return out
}

// outboxctlBinary builds cmd/outboxctl once.
func outboxctlBinary(t *testing.T) string {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	const name = "outboxctl"
	if shared.binaries[name] == "" {
		path := filepath.Join(shared.dir, name)
		out, err := process.Run(t.Context(), process.Spec{Path: "go", Args: []string{"build", "-o", path, "../cmd/outboxctl"}})
		if err != nil {
			t.Fatal(err, out)
		}
		shared.binaries[name] = path
	}
	return shared.binaries[name]
}

// listed is the JSON answer of outboxctl list.
type listed struct {
	Relays []struct {
		Known      bool       `json:"known"`
		SnapshotAt *time.Time `json:"snapshot_at"`
	} `json:"relays"`
	Events []struct {
		Key string `json:"key"`
	} `json:"events"`
	More bool `json:"more"`
}

// mostListed is as many as outboxctl lists at once.
const mostListed = 100_000

// list asks for all events of a state, with the operator's rights.
func list(t *testing.T, w *environment, state string) listed {
	t.Helper()
	var l listed
	out := outboxctl(t, w.dsn(operatorLogin), "list", "--state", state, "--output", "json", "--limit", strconv.Itoa(mostListed))
	require.NoError(t, json.Unmarshal([]byte(out), &l), out)
	require.False(t, l.More, "all of them were asked for")
	return l
}

// printedCommand finds the command of outboxctl in a printed cure.
var printedCommand = regexp.MustCompile(`outboxctl (migrate up [a-z0-9_ -]+)`)

// mend does what the relay printed last: its command, then its SQL.
func mend(t *testing.T, w *environment, log string) {
	t.Helper()
	const mark = "To mend it: "
	at := strings.LastIndex(log, mark)
	require.Positive(t, at, log)
	cure, _, _ := strings.Cut(log[at+len(mark):], "\n")
	cure, _, _ = strings.Cut(cure, "(or: ")
	done := false
	if command := printedCommand.FindStringSubmatch(cure); command != nil {
		outboxctl(t, w.server.DSN(w.name), strings.Fields(command[1])...)
		done = true
	}
	if statements := printedSQL.FindString(cure); statements != "" {
		w.execute(statements)
		done = true
	}
	require.True(t, done, cure)
}
