package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/letters"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
)

const somePlace = "orders.order/3@4711"

func TestWrongCallsAboutLetters(t *testing.T) {
	t.Setenv(dsnVariable, "")
	for call1, want := range map[string]string{
		"dead list --side producer":                                    `--side "producer": want outbox`,
		"dead list --side consumer --slot a":                           "--slot is only for --side outbox",
		"dead list --group g":                                          "--group is only for --side consumer",
		"dead list --older 1h":                                         "--older is only for --side consumer",
		"dead list --side consumer --state retrying":                   `--state "retrying": want open, requested, redriven`,
		"dead list --side consumer --cause broken":                     `--cause "broken": want one of malformed, mismatch`,
		"dead list --side consumer --limit 0":                          "--limit 0: want 1 to 100000",
		"dead list --side consumer --older 0s":                         `--older "0s": want an age such as 7d, 1d12h or 15m`,
		"dead list --side consumer --older -1d":                        `--older "-1d": want an age`,
		"dead list --side consumer --older 1d2d":                       `--older "1d2d": want an age`,
		"dead redrive --older 7d --reason r":                           "no database; give --dsn",
		"dead discard --side consumer --older 1d12h --reason r":        "no database; give --dsn",
		"dead list --side consumer " + somePlace:                       "outboxctl dead show --side consumer PLACE",
		"dead show --side consumer":                                    "takes one PLACE or KEY, got 0; a place looks like orders.order/3@4711",
		"dead show --side consumer a@b":                                `place "a@b": a place looks like`,
		"dead show --side consumer a/9999999999@1":                     "partition or offset is out of range",
		"dead show --side consumer a/1@9999999999999999999":            "partition or offset is out of range",
		"dead show --side consumer somewhere":                          "a key looks like payments:",
		"dead redrive --reason r":                                      "say which letters: PLACEs, KEYs",
		"dead redrive --side outbox --all --reason r":                  "dead redrive is nothing for --side outbox",
		"dead retry --side consumer --all --reason r":                  "dead retry is nothing for --side consumer",
		"dead edit --side consumer " + someKey:                         "dead edit is nothing for --side consumer",
		"dead redrive --all --group g --reason r":                      "--all goes without PLACEs, KEYs and filters; leave --all out, and all that they match is meant",
		"dead redrive --all":                                           "--reason is missing",
		"dead redrive --all --wait -1s --reason r":                     "--wait -1s: want 0 or more",
		"dead redrive " + somePlace + " --topic t --reason r":          "give PLACEs or filters, not both",
		"dead redrive " + someKey + " --type T --reason r":             "give KEYs or filters, not both",
		"dead redrive " + somePlace + " --reason r":                    "no database; give --dsn",
		"dead discard --side consumer --class c --reason r":            "--class is only for --side outbox",
		"dead discard --side consumer --wait 1s --all --reason r":      "--wait is only for --side outbox",
		"dead discard --side consumer " + somePlace + " --output no":   `--output "no"`,
		"dead redrive " + somePlace + " --aggregate-type t --reason r": "unknown flag --aggregate-type",
	} {
		t.Run(call1, func(t *testing.T) {
			code, stdout, stderr := call(t, strings.Fields(call1)...)
			require.Equal(t, exitUsage, code, stderr)
			require.Contains(t, stderr, want)
			require.Empty(t, stdout)
		})
	}
}

func TestHeaderText(t *testing.T) {
	for kept, want := range map[string]string{
		`[["idempotency-key","b3JkZXJzOjE="],["empty",null]]`: "idempotency-key=orders:1 empty=", `[["a","\u001b"]]`: `[["a","\\u001b"]]`, ``: "", `{}`: "{}", `[["a","Gw=="]]`: `a=\x1b`,
	} {
		require.Equal(t, want, headerText(json.RawMessage(kept)), kept)
	}
}

// TestWhatRefusedALetterIsWhole: it ends with the command that mends it, which a pipe and -o wide
// print whole.
func TestWhatRefusedALetterIsWhole(t *testing.T) {
	cure := "`kafka-configs.sh --bootstrap-server broker-0.kafka.example:9092 --alter --entity-type topics --entity-name payments.payment --add-config max.message.bytes=3145728`"
	detail := "refused again: " + longError + "; " + longWhy + "; raise it with " + cure
	for name, printed := range map[string]func(terminal.Screen) string{
		"relay": written(&letters.Became{Action: "retry", Letters: []letters.Outcome{{Key: longKey, Outcome: states.OutcomeFailed, Detail: detail}}}, printDecided),
		"group": written(&letters.GroupBecame{Action: "redrive", Letters: []letters.GroupOutcome{{Group: longGroup, Place: longPlace, Outcome: states.OutcomeFailed, Detail: detail}}}, printRedriven),
	} {
		require.Contains(t, printed(terminal.Screen{}), cure, name)
	}
}
