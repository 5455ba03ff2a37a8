package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/process"
)

func TestCompletion(t *testing.T) {
	code, script, stderr := call(t, "completion", "bash")
	require.Equal(t, exitFine, code, stderr)
	for typed, want := range map[string]string{
		"pa": "pause partitions", "dead re": "retry redrive", "windows ad": "adopt advise", "fences re": "reconcile release", "processed forget --gr": "--group", "dead retry --al": "--all", "dead retry KEY --rea": "--reason", "replay --from x --un": "--unchecked", "nothing ": "",
	} {
		words := append([]string{"outboxctl"}, strings.Split(typed, " ")...)
		text := fmt.Sprintf("%s\nCOMP_WORDS=(%s \"\"); COMP_CWORD=%d; _outboxctl; echo \"${COMPREPLY[*]}\"", script, strings.Join(words[:len(words)-1], " ")+" '"+words[len(words)-1]+"'", len(words)-1)
		out, err := process.Run(t.Context(), process.Spec{Path: "bash", Args: []string{"-c", text}})
		require.NoError(t, err, out)
		require.Equal(t, want, strings.TrimSpace(out), typed)
	}
	_, zsh, _ := call(t, "completion", "zsh")
	require.Contains(t, zsh, "bashcompinit\n"+script)
	_, fish, _ := call(t, "completion", "fish")
	require.Contains(t, fish, "-n '__fish_use_subcommand' -f -a replay\n")
	require.Contains(t, fish, "-n '__fish_seen_subcommand_from dead; and not __fish_seen_subcommand_from list show retry redrive edit discard' -f -a retry\n")
	require.Contains(t, fish, "-n '__fish_seen_subcommand_from replay' -l unchecked\n")
	require.Contains(t, fish, "-n '__fish_seen_subcommand_from dead; and __fish_seen_subcommand_from retry' -l only\n")
}
