package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/secret/canary"
	"github.com/onceward/onceward/internal/terminal/shell"
)

// leaves returns the paths of all commands that do something.
func leaves(commands []*cli.Command, path ...string) (out [][]string) {
	for _, c := range commands {
		here := append(slices.Clone(path), c.Name)
		if len(c.Subcommands) > 0 {
			out = append(out, leaves(c.Subcommands, here...)...)
		} else {
			out = append(out, here)
		}
	}
	return out
}

// callsWith returns calls of every command with the connection string at each place
// where it may be given, rightly or by mistake.
func callsWith(t *testing.T, text, dsnFile, config string) (calls [][]string) {
	t.Helper()
	for _, leaf := range leaves(newApp(os.Stdout, os.Stderr).Commands) {
		if leaf[0] == "completion" {
			continue
		}
		filters := []string{"--side", "outbox", "--reason", "r", "--yes", "--group", "g", "--name", "n"}
		calls = append(calls,
			append(slices.Clone(leaf), text),
			append(slices.Clone(leaf), "--insecure", "--dsn", text),
			append(slices.Clone(leaf), "--insecure", "--dsn", text, someKey),
			append(slices.Clone(leaf), "--insecure", "--dsn-file", dsnFile),
			append(slices.Clone(leaf), "--config", config),
			append(slices.Clone(leaf), someKey, "--config", config),
			append(append(slices.Clone(leaf), "--insecure", "--dsn", text), known(leaf, filters)...),
		)
	}
	return append(calls, []string{text}, []string{"dead", text}, []string{"help", text})
}

// known leaves out the flags that a command does not have.
func known(leaf, flags []string) (out []string) {
	command, _ := shell.Find(newApp(os.Stdout, os.Stderr).Commands, leaf)
	for i := 0; i < len(flags); i++ {
		takes := shell.TakesValue(command, flags[i])
		has := slices.ContainsFunc(command.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), flags[i][2:]) })
		if has {
			out = append(out, flags[i])
		}
		if flags[i] != "--yes" {
			if has && takes {
				out = append(out, flags[i+1])
			}
			i++
		}
	}
	return out
}

// variables are those that hold a connection string.
var variables = []string{dsnVariable, relaysVariable}

// unset takes them out of the environment for the test.
func unset(t *testing.T) {
	t.Helper()
	for _, variable := range variables {
		t.Setenv(variable, "") // which brings the old value back
		require.NoError(t, os.Unsetenv(variable))
	}
}

// TestNoCommandPrintsAPassword hands each form of a connection string to every
// command, as a flag, in a file, in the configuration, in the environment, and as a
// stray argument.
func TestNoCommandPrintsAPassword(t *testing.T) {
	unset(t)
	folder := t.TempDir()
	forms := canary.Strings()
	if testing.Short() {
		forms = canary.Mistakes()
	}
	calls := 0
	for i, text := range forms {
		dsnFile, config := filepath.Join(folder, "dsn"), filepath.Join(folder, "relay.yaml")
		require.NoError(t, os.WriteFile(dsnFile, []byte(text), 0o600))
		source := "dsn_file: " + dsnFile
		if i%2 == 0 {
			source = "dsn: " + strconv.Quote(text)
		}
		writeRelay(t, config, source)
		all := callsWith(t, text, dsnFile, config)
		if i%7 != 0 && i < len(forms)-len(canary.Mistakes()) { // every form to these; every command every seventh
			all = [][]string{{"status", "--insecure", "--dsn", text}, {"config", "check", "--config", config}, {"config", "print", "--config", config}, {"doctor", "--config", config}, {"show", text}}
		}
		for _, args := range all {
			_, stdout, stderr := call(t, args...)
			require.NotContains(t, stdout+stderr, canary.Word, "%q", args)
			calls++
		}
		for _, variable := range variables {
			t.Setenv(variable, text)
		}
		for _, args := range [][]string{{"status", "--insecure"}, {"list"}, {"config", "print", "--config", config}, {"doctor", "--config", config}} {
			_, stdout, stderr := call(t, args...)
			require.NotContains(t, stdout+stderr, canary.Word, "%s: %q", text, args)
		}
		unset(t)
	}
	t.Logf("%d calls", calls)
}

func writeRelay(t *testing.T, path, dsn string) {
	t.Helper()
	text := fmt.Sprintf("name: orders\npostgres: {%s, insecure: true}\nkafka: {brokers: [\"127.0.0.1:1\"], insecure: true}\nroutes: [{topic: t}]\n", dsn)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// A secret that was put where the path of its file belongs is not repeated.
func TestAMisplacedSecretIsNotPrinted(t *testing.T) {
	unset(t)
	config := filepath.Join(t.TempDir(), "relay.yaml")
	for _, text := range canary.Misplaced() {
		quoted := strconv.Quote(text)
		for _, yaml := range []string{
			"name: orders\npostgres: {dsn_file: " + quoted + "}\nkafka: {brokers: [\"k:1\"], insecure: true}\nroutes: [{topic: t}]\n",
			"name: orders\npostgres: {dsn: \"host=127.0.0.1 port=1\", insecure: true, maintenance_dsn_file: " + quoted + "}\nkafka: {brokers: [\"k:1\"], insecure: true}\nroutes: [{topic: t}]\n",
			"name: orders\npostgres: {dsn: \"host=127.0.0.1 port=1\", insecure: true}\nkafka: {brokers: [\"127.0.0.1:1\"], insecure: true, sasl: {mechanism: PLAIN, username: u, password_file: " + quoted + "}}\nroutes: [{topic: t}]\n",
			"name: orders\npostgres: {dsn: {url: " + quoted + "}}\nkafka: {brokers: [\"k:1\"], insecure: true}\nroutes: [{topic: t}]\n",
			"name: orders\npostgres: " + quoted + "\nkafka: {brokers: [\"k:1\"], insecure: true}\nroutes: [{topic: t}]\n",
			quoted, text,
		} {
			require.NoError(t, os.WriteFile(config, []byte(yaml), 0o600))
			for _, args := range [][]string{{"config", "check", "--config", config}, {"config", "print", "--config", config}, {"doctor", "--config", config}, {"show", someKey, "--config", config}} {
				_, stdout, stderr := call(t, args...)
				require.NotContains(t, stdout+stderr, canary.Word, "%q: %s", args, yaml)
			}
		}
		_, stdout, stderr := call(t, "status", "--dsn-file", text)
		require.NotContains(t, stdout+stderr, canary.Word)
	}
}
