//go:build e2e

package main

import (
	shell "os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var printedCommand = regexp.MustCompile("`outboxctl ([^`]*)`")

// pasted returns the arguments of the printed commands as a shell hands them over.
func pasted(t *testing.T, said string) (all [][]string) {
	t.Helper()
	for _, found := range printedCommand.FindAllStringSubmatch(said, -1) {
		out, err := shell.CommandContext(t.Context(), "bash", "-c", `printf '%s\0' `+found[1]).Output()
		require.NoError(t, err, found[1])
		all = append(all, strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"))
	}
	require.NotEmpty(t, all, said)
	return all
}

// Any text names a group or a fence, and what is printed about it can be pasted.
func TestPrintedCommandsMeanTheGroup(t *testing.T) {
	onConsumerInstallations(t, func(d *installation) {
		t := d.t
		const group, name = "-it's a $HOME; x", "--char'ge #1"
		first, behind := d.keep(group, "t", "handler", nil), d.keep(group, "t", "parked", nil)
		exec(t, d.pool, "UPDATE onceward.consumer_dead_letters SET state = 'parked' WHERE reason = 'parked'")
		require.Contains(t, fine(t, pasted(t, wrong(t, "dead", "redrive", behind.String(), "--reason", "r", "--yes"))[0]...), first.String())

		dead, live := newKey(t, "orders"), newKey(t, "orders")
		d.claim(dead.UUID(), group, "d")
		cure := pasted(t, wrong(t, "audit"))[0]
		require.Contains(t, fine(t, append(cure, "--yes")...), "has forgotten "+dead.String())

		exec(t, d.pool, insertFence, live.UUID(), group, name, "1 hour", "1 day")
		_, _, stderr := call(t, "fences", "reconcile", live.String(), "--not-made", "--reason", "r", "--yes")
		require.Contains(t, fine(t, append(pasted(t, stderr)[0], "--yes")...), "released")
		d.claim(live.UUID(), group, "p")
		_, _, stderr = call(t, "processed", "forget", live.String(), "--group", group, "--reason", "r", "--yes")
		require.Contains(t, fine(t, append(pasted(t, stderr)[0], "--yes")...), "recorded as made")
		forgotten := fine(t, "processed", "forget", live.String(), "--group", group, "--reason", "r", "--yes")
		require.NotEmpty(t, pasted(t, forgotten))

		exec(t, d.pool, insertWindow, group, "-*", "7 days", daysAgo(3000))
		require.Contains(t, pasted(t, wrong(t, "windows", "list")), []string{"windows", "raise", "--reason", "…", "--", group, "-*"})
	})
}
