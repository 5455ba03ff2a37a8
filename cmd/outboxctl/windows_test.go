package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/terminal"
)

func TestWrongCallsAboutTheConsumersSide(t *testing.T) {
	t.Setenv(dsnVariable, "")
	for call1, want := range map[string]string{
		"processed":                   "want one of show, forget",
		"processed show":              "processed show takes one KEY, got 0",
		"processed forget " + someKey: "--group is missing",
		"processed forget " + someKey + " --group g":  "--reason is missing",
		"processed show " + someKey:                   "no database; give --dsn",
		"fences":                                      "want one of list, show, reconcile, release",
		"fences list " + someKey:                      "outboxctl fences show KEY",
		"fences list --limit 0":                       "--limit 0: want 1 to 100000",
		"fences list --all --stale":                   "--all goes without --stale and --expired",
		"fences show":                                 "fences show takes one KEY, got 0",
		"fences reconcile " + someKey + " --reason r": "give one of --made and --not-made",
		"fences reconcile " + someKey + " --made --not-made --reason r":      "give one of --made and --not-made",
		"fences reconcile " + someKey + " --not-made --result {} --reason r": "--result and --type go with --made",
		"fences reconcile " + someKey + " --made --result ch_1 --reason r":   `--result "ch_1": want JSON`,
		"fences reconcile " + someKey + " --made":                            "--reason is missing",
		"fences release " + someKey + " --reason r":                          "no database; give --dsn",
		"windows":                                               "want one of list, set, adopt, raise, retire, advise",
		"windows list billing":                                  `takes no argument, got "billing"; to name a group: --group`,
		"windows advise billing":                                `takes no argument, got "billing"; to name a group: --group`,
		"windows list --output no":                              `--output "no"`,
		"windows set billing":                                   "takes GROUP and CLASS, got 1 argument",
		"windows set billing * --reason r":                      "say what to change: --window, --late or --replay",
		"windows set billing * --window 30s":                    `--window "30s": want a length such as 7d`,
		"windows set billing * --window 4000d":                  "from 1m to 3660d",
		"windows set billing * --window d":                      `--window "d"`,
		"windows set billing * --window 1d2d":                   `--window "1d2d"`,
		"windows set billing * --window week":                   `--window "week"`,
		"windows set billing * --window 1m1us":                  "in whole milliseconds",
		"windows set billing * --late park":                     `--late "park": want process or dead-letter`,
		"windows set billing * --replay park":                   `--replay "park": want dead-letter or process`,
		"windows set billing * --window 7d":                     "--reason is missing",
		"windows adopt":                                         "takes one GROUP, got 0",
		"windows adopt reports":                                 "--from is missing",
		"windows adopt reports --from noon":                     `--from "noon": want a time such as`,
		"windows adopt reports --from 2026-11-01 --window x":    `--window "x"`,
		"windows adopt reports --from 2026-11-01":               "--reason is missing",
		"windows raise billing":                                 "takes GROUP and CLASS, got 1 argument",
		"windows raise billing *":                               "--reason is missing",
		"windows retire":                                        "takes one GROUP, got 0",
		"windows retire billing --class * --topic t --reason r": "--class and --topic: give one of them",
		"windows retire billing":                                "--reason is missing",
		"windows retire billing --reason r":                     "no database; give --dsn",
	} {
		t.Run(call1, func(t *testing.T) {
			code, stdout, stderr := call(t, strings.Fields(call1)...)
			require.Equal(t, exitUsage, code, stderr)
			require.Contains(t, stderr, want)
			require.Empty(t, stdout)
		})
	}
}

func TestLengths(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"7d": 7 * day, "1d12h": 36 * time.Hour, "12d3h16m16s": 12*day + 3*time.Hour + 976*time.Second, "15m": 15 * time.Minute, "1h30m": 90 * time.Minute, "1m30s": 90 * time.Second, "1d": day, "3660d": maxWindow, "10h10m": 610 * time.Minute, "20m": 20 * time.Minute,
	} {
		got, err := readWindow(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
		require.Equal(t, text, terminal.Length(got))
	}
	hours, err := readWindow("36h")
	require.NoError(t, err)
	require.Equal(t, "1d12h", terminal.Length(hours))
	require.Equal(t, "2d", terminal.Length(48*time.Hour))
	require.Equal(t, "0s", terminal.Length(0))
	require.Equal(t, "1m0.5s", terminal.Length(time.Minute+500*time.Millisecond))
}
