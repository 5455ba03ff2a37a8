package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/terminal/manual/manualtest"
)

const someKey = "payments:0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a"

// call runs the program and returns its exit code and both outputs.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"outboxctl"}, args...), strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

func TestWrongCalls(t *testing.T) {
	long := strings.Repeat("x", maxReason+1)
	t.Setenv(dsnVariable, "")
	for call1, want := range map[string]string{
		"":                                     "outboxctl: a command is missing; want one of migrate, status, doctor, list, show, replay, dead, gap, adopt, retire, pause, resume, skip, processed, fences, windows, partitions, topics, audit, config, completion, man",
		"migrat up":                            `unknown command "migrat"; did you mean "migrate"?`,
		"migrate":                              "a command is missing; want one of up, down, status, roles",
		"migrate upp --side outbox":            `unknown command "upp"; did you mean "up"?`,
		"migrate up":                           "--side is missing; want outbox",
		"migrate up --side producer":           `side "producer": want outbox`,
		"migrate up --side outbox":             "no database; give --dsn",
		"migrate up --sied outbox":             "unknown flag --sied; did you mean --side?",
		"migrate up --side outbox extra":       `takes no argument, got "extra"`,
		"migrate up --side consumer --relay r": "only the outbox side has a publication",
		"migrate up --side outbox --relay A-B": `relay name "A-B": want 1 to 54`,
		"migrate down --side outbox":           "add --yes to do it, or --dry-run",
		"migrate up --side":                    "outboxctl: migrate up: --side: its value is missing\n",
		"status --dns x":                       "unknown flag --dns; did you mean --dsn?",
		"status --relay x":                     "unknown flag --relay\nRun `outboxctl status --help` to see",
		"status -o":                            "outboxctl: status: -o/--output: its value is missing\n",
		"status -z":                            "outboxctl: status: unknown flag -z\n",
		"dead list --limit x":                  `dead list: --limit "x": want a whole number`,
		"status -o xml":                        `outboxctl: -o/--output "xml": want table, wide or json`,
		"status --output xml":                  `--output "xml": want table, wide or json`,
		"status here":                          `takes no argument, got "here"`,
		"status --dsn x --dsn-file y":          "give one of them",
		"status --watch --every 1ms":           "--every 1ms: want 100ms or more",
		"status --every 1s":                    "--every goes with --watch",
		"status --watch":                       "no database; give --dsn",
		"show":                                 "show takes one KEY, got 0; a key looks like payments:",
		"show a b":                             "show takes one KEY, got 2",
		"show payments":                        "no colon found",
		"show help":                            `key "help": separator`,
		"show payments:0199F3C4-7b1e-7c3a-9a51-3f0c2d1e4b5a":               "want 36 lower-case characters",
		"show " + someKey + " --topic orders":                              "--brokers and --topic go together",
		"show " + someKey + " --output json":                               "no database; give --dsn",
		"show --playload " + someKey:                                       "did you mean --payload?",
		"show " + someKey + " --config x --brokers y --topic z":            "leave --brokers out",
		"migrate roles --side outbox":                                      "give one of --print and --apply",
		"migrate roles --side outbox --print --apply":                      "give one of --print and --apply",
		"migrate roles --print":                                            "--side is missing",
		"migrate roles --print --side producer":                            `side "producer": want outbox`,
		"migrate roles --print --side outbox --prefix a'b":                 `role prefix "a'b"`,
		"migrate roles --print --side outbox --namespace a":                "name it by --producer",
		"migrate roles --print --producer a":                               "give --producer a one of --namespace",
		"migrate roles --print --producer a --namespace n --remove":        "give --producer a one of --namespace",
		"migrate roles --print --producer a --namespace N":                 "namespace",
		"migrate roles --print --producer onceward_relay --remove":         "none of the roles onceward_*",
		"migrate roles --print --side consumer --producer a --namespace n": "only the outbox side has producers",
		"migrate roles --apply --side outbox":                              "no database; give --dsn",
		"partitions":                                                       "want one of status, maintain",
		"partitions maintain --ahead 0":                                    "--ahead 0: want at least 1 day",
		"partitions maintain --keep -1":                                    "--keep -1: want at least 1 day",
		"partitions status now":                                            `takes no argument, got "now"`,
		"partitions status --side both":                                    `--side "both"`,
		"partitions maintain --side consumer --keep 3":                     "--keep is only for --side outbox",
		"partitions maintain --side consumer --ahead 0":                    "--ahead 0: want at least 1 day",
		"audit billing":                        `takes no argument, got "billing"; to name a group: --group`,
		"audit -o yaml":                        `--output "yaml"`,
		"list --state gone":                    `--state "gone": want one of pending, waiting, published, dead, gap, given-up, before`,
		"list --limit 0":                       "--limit 0: want 1 to 100000",
		"list --stuck 0s":                      `--stuck "0s": want an age such as 7d, 1d12h or 15m`,
		"list --stuck 1m --state dead":         "--stuck is about what is pending or waiting",
		"list --stuck yesterday":               `--stuck "yesterday": want an age`,
		"list " + someKey:                      "outboxctl show KEY",
		"replay":                               "say which events: KEYs, or filters",
		"replay " + someKey + " --reason r":    "cannot be told without Kafka; give --config, or --brokers with --topic, or --unchecked",
		"replay --dead --reason r --brokers b": "cannot be told without Kafka",
		"replay --dead --reason r --brokers b --config c":           "leave --brokers out",
		"replay " + someKey + " --unchecked":                        "--reason is missing; it is kept",
		"replay " + someKey + " --unchecked --reason r":             "no database; give --dsn",
		"replay " + someKey + " --type T --unchecked":               "give KEYs or filters, not both",
		"replay somewhere":                                          "a key looks like payments:",
		"replay --from noon":                                        `--from "noon": want a time such as`,
		"replay --from 2026-11-21 --to 2026-11-21":                  "--from 2026-11-21 is not before --to 2026-11-21",
		"replay --dead --topic a/b":                                 `--topic "a/b": want 1 to 249`,
		"replay --dead --topic __consumer_offsets":                  "no internal topic",
		"replay --dead --rate 0":                                    "--rate 0: want 1 to 100000",
		"replay --dead --after 7/x":                                 "--after 7/x: want SEQ/ID, as an interrupted replay printed it",
		"replay --dead --reprocess=":                                `--reprocess "": want the name of a consumer group`,
		"replay --dead --output no":                                 `--output "no"`,
		"dead":                                                      "want one of list, show, retry, redrive, edit, discard",
		"dead list --state gone":                                    `--state "gone": want open, retrying`,
		"dead list --limit 0":                                       "--limit 0: want 1 to 100000",
		"dead list " + someKey:                                      "outboxctl dead show KEY",
		"dead list --output no":                                     `--output "no"`,
		"dead show":                                                 "dead show takes one KEY, got 0",
		"dead retry --reason r":                                     "say which letters: KEYs, filters",
		"dead retry --all --type T --reason r":                      "--all goes without KEYs and filters",
		"dead retry --all":                                          "--reason is missing",
		"dead retry --all --wait -1s --reason r":                    "--wait -1s: want 0 or more",
		"dead discard " + someKey + " --reason " + long:             "--reason: longer than 1000 bytes",
		"dead edit " + someKey:                                      "say what to change: --payload-file",
		"dead edit " + someKey + " --null-payload":                  "--reason is missing",
		"dead edit a b":                                             "dead edit takes one KEY, got 2",
		"dead edit " + someKey + " --null-payload --payload-file f": "give one of --payload-file and --null-payload",
		"pause now":                                                 `outboxctl: pause takes no argument, got "now"; to name a relay: --relay`,
		"pause --relay a --slot b":                                  "--relay and --slot: give one of them",
		"pause --route x --force":                                   "--force goes with --config",
		"resume --route x --config y":                               "unknown flag --config",
		"pause --route=":                                            `--route "" is empty`,
		"resume --route=":                                           `--route "" is empty`,
		"pause --route a;b":                                         `--route "a;b" has a character at byte 1 that is not in [a-zA-Z0-9._-]; want a topic`,
		"pause --route __x":                                         `--route "__x" belongs to Kafka itself`,
		"resume --output no":                                        `--output "no"`,
		"skip " + someKey:                                           "--reason is missing",
		"skip --reason r":                                           "skip takes one KEY, got 0",
		"man status":                                                `takes no argument, got "status"`,
		"completion":                                                "want bash, zsh or fish",
		"completion tcsh":                                           `completion "tcsh": want bash, zsh or fish`,
		"config":                                                    "want one of check, print",
		"config check --config=":                                    "--config is empty",
		"config print --config x --output no":                       `--output "no"`,
		"config check --config x y":                                 `takes no argument, got "y"`,
	} {
		t.Run(call1, func(t *testing.T) {
			code, stdout, stderr := call(t, strings.Fields(call1)...)
			require.Equal(t, exitUsage, code, stderr)
			require.Contains(t, stderr, want)
			require.Empty(t, stdout)
		})
	}
}

func TestHelpIsFine(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"--help"}, {"migrate", "--help"}, {"migrate", "up", "--help"}, {"show", "--help"}} {
		code, stdout, stderr := call(t, args...)
		require.Equal(t, exitFine, code, "%v: %s", args, stderr)
		require.Contains(t, stdout, "outboxctl")
	}
}

func TestVersions(t *testing.T) {
	code, stdout, _ := call(t, "--version")
	require.Equal(t, exitFine, code)
	require.Regexp(t, `^outboxctl version dev \(.*go1\..*\), schema of side outbox \d+, schema of side consumer \d+\n$`, stdout)
}

func TestDSNFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dsn")
	code, _, stderr := call(t, "status", "--dsn-file", file)
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "no such file")

	require.NoError(t, os.WriteFile(file, []byte("\n"), 0o600))
	code, _, stderr = call(t, "status", "--dsn-file", file)
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "is empty")

	require.NoError(t, os.WriteFile(file, []byte("postgres://app@127.0.0.1:1/db?sslrootcert=/nowhere/ca.pem&sslmode=verify-full\n"), 0o600))
	code, _, stderr = call(t, "status", "--dsn-file", file)
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "sslrootcert: the file cannot be read")

	require.NoError(t, os.WriteFile(file, []byte("postgres://app@127.0.0.1:1/db\n"), 0o600))
	code, _, stderr = call(t, "status", "--dsn-file", file, "--insecure")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "connect to PostgreSQL")
}

func TestTheServerIsVerifiedUnlessToldOtherwise(t *testing.T) {
	const refused = "not sslmode=verify-full"
	for dsn, ok := range map[string]bool{
		"postgres://app@127.0.0.1:1/db":                     false,
		"postgres://app@127.0.0.1:1/db?sslmode=prefer":      false,
		"postgres://app@127.0.0.1:1/db?sslmode=disable":     false,
		"postgres://app@127.0.0.1:1/db?sslmode=verify-full": true,
		"host=/nowhere user=app dbname=db":                  true,
	} {
		code, _, stderr := call(t, "status", "--dsn", dsn)
		require.Equal(t, !ok, strings.Contains(stderr, refused), "%s: %s", dsn, stderr)
		require.Equal(t, !ok, code == exitUsage, dsn)
		_, _, stderr = call(t, "status", "--dsn", dsn, "--insecure")
		require.NotContains(t, stderr, refused, dsn)
		t.Setenv(insecureVariable, "true")
		_, _, stderr = call(t, "status", "--dsn", dsn)
		require.NotContains(t, stderr, refused, dsn)
		t.Setenv(insecureVariable, "")
	}
}

func TestManPage(t *testing.T) {
	code, page, stderr := call(t, "man")
	require.Equal(t, exitFine, code, stderr)
	manualtest.Holds(t, page, newApp(nil, nil))
	require.Contains(t, page, "\n.SH \"EXIT STATUS\"\n")
	_, again, _ := call(t, "man")
	require.Equal(t, page, again, "it has no date")
}

// A mistyped flag is never told to switch security off.
func TestNoFlagIsProposedThatIsInsecure(t *testing.T) {
	var visit func(commands []*cli.Command, path []string)
	visit = func(commands []*cli.Command, path []string) {
		for _, c := range commands {
			called := append(slices.Clone(path), c.Name)
			visit(c.Subcommands, called)
			for _, given := range []string{"insecur", "inssecure", "nsecure", "insecured"} {
				_, _, stderr := call(t, append(slices.Clone(called), "--"+given)...)
				require.NotContains(t, stderr, "mean --insecure", called)
			}
		}
	}
	visit(newApp(nil, nil).Commands, nil)
}
