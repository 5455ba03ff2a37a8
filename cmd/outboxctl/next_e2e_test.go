//go:build e2e

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/events"
	"github.com/onceward/onceward/internal/operator/gaps"
	"github.com/onceward/onceward/internal/operator/letters"
)

// TestWhatComesNext: who looks at something that an operator decides about is told the
// commands, in JSON too, and each is taken as it is printed.
func TestWhatComesNext(t *testing.T) {
	onInstallations(t, func(d *installation) {
		t := d.t
		key := d.event("A", "OrderPaid", "1")
		d.letter(key, "open")
		life := decode[events.Life](t, fine(t, "show", key.String(), "-o", "json"))
		require.Len(t, life.Next, 4)
		file := filepath.Join(t.TempDir(), "payload")
		require.NoError(t, os.WriteFile(file, []byte("{}"), 0o600))
		shown := decode[letters.Shown](t, fine(t, "dead", "show", key.String(), "-o", "json"))
		require.Equal(t, life.Next[1:], shown.Next)
		said := fine(t, "show", key.String())
		for _, command := range life.Next {
			require.Contains(t, said, "`"+command+"`")
			args := strings.Fields(strings.NewReplacer(`"…"`, "told", "FILE", file).Replace(strings.TrimPrefix(command, "outboxctl ")))
			if args[1] == "show" {
				fine(t, args...)
			} else { // no relay is there to carry it out
				require.Contains(t, wrong(t, append(args, "--yes", "--wait", "100ms")...), "1 pending")
			}
		}
		exec(t, d.pool, "UPDATE onceward.dead_letters SET state = 'discarded'")
		life = decode[events.Life](t, fine(t, "show", key.String(), "-o", "json"))
		require.Equal(t, []string{"outboxctl replay --dead " + key.String() + ` --config relay.yaml --reason "…"`}, life.Next)

		gap := uuid.New().String()
		exec(t, d.pool, `INSERT INTO onceward.gaps (gap_id, slot, cause, detail, from_snapshot, to_snapshot, events, state)
			VALUES ($1, 'onceward_ctl', 'SLOT_MISSING', '', '1:1:', '1:1:', 3, 'open')`, gap)
		code, stdout, _ := call(t, "gap", "list", "-o", "json")
		require.Equal(t, exitWrong, code)
		found := decode[gaps.Report](t, stdout)
		require.Len(t, found.Problems, 1)
		require.Equal(t, []string{"outboxctl gap show " + gap}, found.Problems[0].Cures)
		require.Contains(t, wrong(t, "gap", "list"), "! "+found.Problems[0].What)
		fine(t, "gap", "show", gap)

		// Whose word it is: the last one that has a reason, since it went on.
		fine(t, "pause", "--route", "orders.a", "--reason", "of before")
		fine(t, "resume", "--route", "orders.a")
		fine(t, "pause", "--route", "orders.a", "--reason", "the topic moves")
		fine(t, "pause", "--route", "orders.a")
		for _, say := range []string{wrong(t, "status"), fine(t, "list"), fine(t, "list", "--state", "waiting")} {
			require.Regexp(t, "! relay ctl: route orders.a is paused by \\S+ since \\S+ \\S+ \\(the topic moves\\); `outboxctl resume --relay ctl --route orders.a`", say)
		}
		require.Len(t, decode[events.List](t, fine(t, "list", "-o", "json")).Problems, 1)
		require.Empty(t, decode[events.List](t, fine(t, "list", "--state", "before", "-o", "json")).Problems)
	})
}
