//go:build e2e

package python_test

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/testdb"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

func installed(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := testdb.New(t, "15")
	m, err := migrations.New(migrations.Config{Pool: db, Side: migrations.Outbox})
	require.NoError(t, err)
	_, err = m.Up(t.Context())
	require.NoError(t, err)
	return db
}

// The statement of the program is that of docs/producing.md, and writes an event once.
func TestTheStatement(t *testing.T) {
	program, err := os.ReadFile("produce.py")
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^ENQUEUE = "(.*)"$`).FindSubmatch(program)
	require.NotNil(t, found)
	documented, err := os.ReadFile("../../docs/producing.md")
	require.NoError(t, err)
	require.Contains(t, string(documented), string(found[1]))

	statement, n := string(found[1]), 0
	for strings.Contains(statement, "%s") {
		n++
		statement = strings.Replace(statement, "%s", "$"+strconv.Itoa(n), 1)
	}
	db := installed(t)
	key, err := outbox.NewKey("billing")
	require.NoError(t, err)
	for _, want := range []string{"enqueued", "duplicate"} {
		var got string
		require.NoError(t, db.QueryRow(t.Context(), statement, key.String(), "invoice", "inv-7", "InvoicePaid",
			[]byte(`{"invoice": "inv-7"}`), map[string]string{"tenant": "acme"}).Scan(&got))
		require.Equal(t, want, got)
	}
}

func needsPsycopg(t *testing.T) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "python3", "-c", "import psycopg").CombinedOutput(); err != nil {
		t.Skipf("python3 with psycopg is not installed: %s", out)
	}
}

// A stranger looks from another connection at the moment in which the program says what it
// has done. Its own has run a statement before, so that without autocommit nothing was
// committed yet.
const stranger = `
import os, sys
import psycopg, produce

def look(result, key):
    with psycopg.connect(os.environ["PRODUCER_DSN"]) as other:
        events = "SELECT count(*) FROM onceward.outbox WHERE id::text = %s"
        (seen,) = other.execute(events, [key.removeprefix("billing:")]).fetchone()
    print(result, seen)

produce.print = look
sys.argv = ["produce.py", "inv-8"]
produce.main()`

// What the program says is committed.
func TestTheProgramSpeaksAfterTheCommit(t *testing.T) {
	needsPsycopg(t)
	db := installed(t)
	cmd := exec.CommandContext(t.Context(), "python3", "-c", stranger)
	cmd.Env = append(os.Environ(), "PRODUCER_DSN="+db.Config().ConnString(), "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "enqueued 1", strings.TrimSpace(string(out)))
}

// The program, run twice with the key that it has made: one event, one payment.
func TestTheProgram(t *testing.T) {
	needsPsycopg(t)
	db := installed(t)
	run := func(args ...string) []string {
		cmd := exec.CommandContext(t.Context(), "python3", append([]string{"produce.py"}, args...)...)
		cmd.Env = append(os.Environ(), "PRODUCER_DSN="+db.Config().ConnString(), "PYTHONDONTWRITEBYTECODE=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return strings.Fields(string(out))
	}
	first := run("inv-7")
	require.Equal(t, "enqueued", first[0])
	require.Equal(t, []string{"duplicate", first[1]}, run("inv-7", first[1]))
	var events, payments int
	require.NoError(t, db.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM onceward.outbox), (SELECT count(*) FROM payments)`).Scan(&events, &payments))
	require.Equal(t, []int{1, 1}, []int{events, payments})
}
