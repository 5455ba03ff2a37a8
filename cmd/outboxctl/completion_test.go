package main

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/process"
	"github.com/onceward/onceward/internal/terminal/shell"
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
	// Keys are asked for; bash takes a colon for the end of a word, if that is left so.
	for line, want := range map[string]string{
		"outboxctl show ":                 "payments:a payments:b",
		"outboxctl show payments:":        "a b",
		"outboxctl show payments:a":       "a b",
		"outboxctl dead edit payments:":   "a b",
		"outboxctl replay x --ra":         "--rate",
		"outboxctl processed forget ":     strings.TrimSuffix(flagsOf("processed forget"), " "),
		"outboxctl show nothing:":         "",
		"wordbreaks outboxctl show pay:a": "payments:a payments:b",
	} {
		breaks, line := strings.HasPrefix(line, "wordbreaks "), strings.TrimPrefix(line, "wordbreaks ")
		words := strings.NewReplacer(":", "' ':' '", " ", "' '").Replace(line)
		if strings.HasSuffix(line, ":") {
			words = strings.TrimSuffix(words, " '") // nothing is behind it yet
			words = strings.TrimSuffix(words, "'")
		}
		text := script + `
outboxctl() { [ "$1 $2" = "completion keys" ] || return; case "$3" in *nothing*) echo none >&2 ;; *) printf 'payments:%s\n' a b ;; esac; }
COMP_WORDBREAKS=$' \t\n:'
`
		if breaks {
			text += "COMP_WORDBREAKS=' '\n"
		}
		text += fmt.Sprintf("COMP_LINE='%s'; COMP_POINT=%d; COMP_WORDS=('%s'); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _outboxctl; echo \"${COMPREPLY[*]}\"", line, len(line), words)
		out, err := process.Run(t.Context(), process.Spec{Path: "bash", Args: []string{"-c", text}})
		require.NoError(t, err, out)
		require.Equal(t, want, strings.TrimSpace(out), line)
	}
	_, zsh, _ := call(t, "completion", "zsh")
	require.Contains(t, zsh, "bashcompinit\n"+script)
	_, fish, _ := call(t, "completion", "fish")
	require.Contains(t, fish, "-n '__fish_use_subcommand' -f -a replay\n")
	require.Contains(t, fish, "-n '__fish_seen_subcommand_from dead; and not __fish_seen_subcommand_from list show retry redrive edit discard' -f -a retry\n")
	require.Contains(t, fish, "-n '__fish_seen_subcommand_from replay' -l unchecked\n")
	require.Contains(t, fish, "-n '__fish_seen_subcommand_from dead; and __fish_seen_subcommand_from retry' -l only\n")
	const asks = "-f -a '(outboxctl completion keys (commandline -cp) 2>/dev/null)'\n"
	require.Contains(t, fish, "-n '__fish_seen_subcommand_from dead; and __fish_seen_subcommand_from retry' "+asks)
	require.Contains(t, fish, "-n '__fish_seen_subcommand_from show; and not __fish_seen_subcommand_from migrate dead gap ")
	require.Equal(t, 7, strings.Count(fish, asks))
}

// flagsOf are the flags that a completion of a command offers.
func flagsOf(path string) (names string) {
	leaf, _ := shell.Find(newApp(nil, nil).Commands, strings.Split(path, " "))
	for _, f := range leaf.Flags {
		names += "--" + f.Names()[0] + " "
	}
	return names + "--help"
}

// TestKeysAreSilent: a completion says nothing where no database can be asked, and ends
// while one is silent.
func TestKeysAreSilent(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	t.Setenv(dsnVariable, "")
	begun := time.Now()
	for _, line := range []string{
		"outboxctl show ", "outboxctl show --dsn postgres://u:canary@127.0.0.1:1/d --insecure ", "outboxctl show --dsn '", "outboxctl show --nonsense ",
		"outboxctl dead show --side consumer ", "outboxctl sho", "outboxctl show --reason ", "", "outboxctl show --insecure --dsn postgres://u@" + silent.Addr().String() + "/d?connect_timeout=60 ",
	} {
		code, stdout, stderr := call(t, "completion", "keys", line)
		require.Equal(t, exitFine, code, line)
		require.Empty(t, stdout+stderr, line)
	}
	require.Less(t, time.Since(begun), 20*time.Second)
}
