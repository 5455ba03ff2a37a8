//go:build e2e

package e2e

import (
	"errors"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/houserules"
	"github.com/onceward/onceward/internal/process"
)

// cures are the commands that the sources of the relay's side print, and those of
// them that the test has found in an output, and run as they stood there.
type cures struct {
	all []houserules.Cure
	run map[string]bool
}

// ranElsewhere are cures that another test takes from what was printed and runs.
// Each is named by the beginning of its place and command.
var ranElsewhere = map[string]string{
	"relay/retention/leaf.go: outboxctl partitions maintain":                       "TestRetention (what was given up is ordered again)",
	"cdc/checkpublication.go: ":                                                    "TestStartUpDefects",
	"cdc/checks.go: ALTER TABLE onceward.{} SET LOGGED;":                           "TestStartUpDefects",
	"internal/partition/day.go: ALTER TABLE onceward.outbox DETACH":                "TestStartUpDefects",
	"cdc/checks.go: ALTER ROLE":                                                    "TestStartUpDefects",
	"cdc/checks.go: ALTER SEQUENCE":                                                "TestStartUpDefects",
	"cdc/checks.go: ALTER SYSTEM":                                                  "TestServerSettings",
	"cdc/checks.go: outboxctl migrate roles":                                       "this one: the same command is run in the cure of relay/lookout.go",
	"cdc/checks.go: GRANT":                                                         "TestStartUpDefects, TestCheckDemandsTheRelaysRights",
	"cdc/checks.go: outboxctl migrate up --side outbox":                            "TestStartUpDefects, TestSchemaBehind",
	"cdc/checksession.go: ALTER ROLE {} BYPASSRLS;":                                "TestStartUpDefects",
	"cdc/checksession.go: ALTER ROLE {} IN DATABASE":                               "TestAReadOnlyDatabaseIsNamed",
	"cdc/starterror.go: ALTER ROLE":                                                "TestStartUpDefects",
	"cdc/slot.go: SELECT":                                                          "it only looks",
	"cdc/starterror.go: SELECT":                                                    "it only looks, or reloads pg_hba.conf",
	"internal/operator/letters/relay_show.go: outboxctl":                           "cmd/outboxctl: TestWhatComesNext; replay: TestReplay",
	"cdc/checksession.go: outboxctl migrate status":                                "it only looks",
	"cdc/checksession.go: outboxctl migrate up":                                    "TestStartUpDefects, TestSchemaBehind run that of cdc/checks.go",
	"cdc/layout.go: outboxctl migrate status":                                      "it only looks",
	"internal/operator/partitions/round.go: outboxctl partitions maintain --side":  "cmd/outboxctl: TestStatusOfAConsumersDatabaseSaysSo",
	"publisher/memory.go: outboxctl list --state":                                  "it only looks",
	"publisher/memory.go: outboxctl skip --help":                                   "it only looks",
	"cdc/reader.go: outboxctl gap list":                                            "it only looks",
	"cdc/reader.go: outboxctl migrate up":                                          "TestPublicationGone",
	"relay/internal/beginning/binding.go: outboxctl adopt --by copy":               "TestStartUpDefects",
	"relay/internal/beginning/binding.go: outboxctl adopt --by dump":               "TestAdoptedDump",
	"cmd/outboxctl/adopt.go: outboxctl gap list":                                   "it only looks",
	"internal/hostile/hostile.go: outboxctl migrate up":                            "TestUpMendsWhatWasBound",
	"migrations/missing.go: ALTER TABLE":                                           "TestStartUpDefects",
	"migrations/publication.go: ":                                                  "TestUpRefusesAnotherPublication",
	"relay/retention/leaf.go: outboxctl migrate up":                                "TestRetention (the schema of the release before)",
	"migrations/outbox/00002_enqueue.sql: outboxctl partitions":                    "this one: 00005 replaces the function",
	"migrations/outbox/00009_decisions.sql: outboxctl status":                      "TestRetireRelay",
	"cdc/starterror.go: CREATE ROLE":                                               "it ends in …, the login's own attributes",
	"internal/operator/check/standbys.go: ALTER SYSTEM SET synchronized":           "it ends in …, the standbys' slots",
	"cdc/failover.go: ":                                                            "TestAwaitedStandbyIsAway",
	"cmd/outboxctl/completion.go: ":                                                "TestCompletion",
	"cmd/outboxctl/dead_order.go: outboxctl dead discard KEY":                      "this one: the same command is run in the cure of a parked kind",
	"migrations/outbox/00008_principals.sql: outboxctl":                            "it names a command without its argument",
	"outbox/result.go: outboxctl migrate roles":                                    "TestPrincipals (bound producers)",
	"internal/operator/partitions/round.go: outboxctl partitions adopt":            "TestFilledLeafAttached runs that of relay/internal/beginning/filled.go",
	"internal/operator/events/verdict.go: outboxctl partitions adopt":              "TestFilledLeafAttached runs that of relay/internal/beginning/filled.go",
	"cmd/outboxctl/list.go: outboxctl partitions status":                           "it only looks",
	"relay/internal/beginning/filled.go: outboxctl partitions adopt":               "TestFilledLeafAttached",
	"relay/internal/beginning/filled.go: outboxctl adopt --by dump":                "TestDumpRestoredInPlace",
	"cmd/outboxctl/dead_order.go: outboxctl dead retry":                            "this one: the same command is run in the cure of internal/operator/letters/relay_await.go",
	"cmd/outboxctl/partitions_adopt.go: outboxctl gap list":                        "it only looks",
	"relay/internal/state/slot.go: SELECT pg_catalog.pg_terminate_backend":         "TestStartUpDefects",
	"relay/cluster.go: outboxctl adopt --kafka":                                    "TestForeignKafka",
	"relay/cluster.go: outboxctl adopt --help":                                     "TestPrintedCommandsAreWhole",
	"internal/operator/relays/problems.go: outboxctl adopt --help":                 "TestPrintedCommandsAreWhole",
	"cmd/outboxctl/adopt_kafka.go: outboxctl gap ":                                 "TestForeignKafka",
	"internal/operator/binding/kafka.go: outboxctl adopt --help":                   "TestPrintedCommandsAreWhole",
	"internal/operator/events/verdict.go: outboxctl skip":                          "cmd/outboxctl: TestAReplayThatWaitsIsGivenUp",
	"internal/operator/status/problems.go: outboxctl skip":                         "cmd/outboxctl: TestAReplayThatWaitsIsGivenUp",
	"internal/operator/events/verdict.go: outboxctl adopt --help":                  "TestPrintedCommandsAreWhole",
	"cmd/outboxctl/adopt_kafka.go: outboxctl dead list":                            "it only looks",
	"relay/kafkatopics.go: outboxctl replay":                                       "TestReplay, by time",
	"migrations/outbox/00011_kafka.sql: outboxctl status":                          "it only looks",
	"migrations/outbox/00012_attachings.sql: outboxctl status":                     "TestRetireRelay",
	"migrations/outbox/00015_rests.sql: outboxctl status":                          "it only looks",
	"internal/operator/relays/problems.go: outboxctl retire --slot":                "TestRetireBesideTheOriginal",
	"internal/partition/day.go: outboxctl audit":                                   "it only looks; what it prints is run by TestADefaultPartitionIsTakenAway",
	"internal/partition/taken.go: outboxctl partitions":                            "TestADetachedDayIsNamed",
	"internal/operator/gaps/decide.go: outboxctl ":                                 "this one: skip of what holds a relay up, and pause",
	"relay/internal/letters/control.go: outboxctl skip":                            "relay: the letterbox tests read the note, TestJudgeOrder shows it; the command is that of a parked kind",
	"internal/operator/events/verdict.go: outboxctl status":                        "it only looks",
	"internal/operator/events/verdict.go: outboxctl partitions status":             "it only looks",
	"internal/operator/explain.go: outboxctl migrate roles --side {} --apply":      "cmd/outboxctl: TestMigrateSaysWhatTheOwnerLacks",
	"cmd/outboxctl/adopt.go: outboxctl migrate roles":                              "this one: the same command is run in the cure of relay/lookout.go",
	"cdc/starterror.go: SELECT pg_catalog.pg_terminate_backend":                    "TestAStrangerHoldsTheSlot",
	"internal/operator/events/search.go: outboxctl adopt --help":                   "TestPrintedCommandsAreWhole",
	"internal/operator/status/status.go: outboxctl windows list":                   "it only looks",
	"relay/maintenance.go: outboxctl migrate roles":                                "it only prints",
	"relay/maintenance.go: GRANT":                                                  "internal/operator/check: TestTheMaintenanceLoginIsTried",
	"cmd/outboxctl/show.go: outboxctl dead show":                                   "it only looks",
	"cmd/outboxctl/list.go: outboxctl status":                                      "it only looks",
	"relay/retention/gate.go: outboxctl status":                                    "it only looks",
	"internal/operator/kafka/compacted.go: outboxctl topics create":                "cmd/outboxctl: TestTopicsAreMadeFromRoutesAndEvents",
	"publisher/judge.go: outboxctl topics create":                                  "cmd/outboxctl: TestTopicsAreMadeFromRoutesAndEvents",
	"internal/partition/day.go: outboxctl partitions maintain --config relay.yaml": "this one: the same command is run in the cure of internal/operator/check/partitions.go",
	"relay/retention/leaf.go: outboxctl partitions adopt":                          "TestFilledLeafAttached runs that of relay/internal/beginning/filled.go",
	"relay/internal/beginning/beginner.go: outboxctl retire --slot":                "TestRetireBesideTheOriginal runs that of internal/operator/relays/problems.go",
	"relay/internal/stream/repair.go: outboxctl dead list":                         "it only looks",
	"relay/internal/stream/held.go: outboxctl list --state":                        "it only looks",
	"migrations/outbox/00010_waiting.sql: outboxctl status":                        "it only looks",
	"relay/internal/beginning/binding.go: outboxctl adopt --help":                  "TestPrintedCommandsAreWhole",
	"internal/operator/relays/problems.go: outboxctl skip --help":                  "TestPrintedCommandsAreWhole",
	"internal/operator/events/verdict.go: outboxctl resume":                        "this one: the same command is run in the cure of a paused route",
	"internal/operator/relays/problems.go: outboxctl resume":                       "this one: the same command is run in the cure of a paused route",
	"cmd/outboxctl/dead_show.go: outboxctl status":                                 "it only looks",
	"cmd/outboxctl/gap.go: outboxctl replay":                                       "TestReplay, by key",
	"internal/operator/relays/skip.go: outboxctl replay":                           "TestReplay, by key",
	"internal/operator/relays/skip.go: outboxctl dead show":                        "it only looks",
	"migrations/missing.go: outboxctl migrate up":                                  "cmd/outboxctl: TestATableIsGone",
	"relay/retention/gate.go: outboxctl adopt":                                     "TestStartUpDefects and TestAdoptedDump, as that of relay/internal/beginning/binding.go",
}

// TestPrintedCures: every cure that a program of the relay's side prints is found
// in the output that prints it, in the state in which it does, is run as it stands
// there by the role that is told to run it, and ends the cause. A cure in the
// sources that no case runs fails the test.
func TestPrintedCures(t *testing.T) {
	t.Parallel()
	c := &cures{run: make(map[string]bool)}
	var err error
	c.all, err = houserules.Cures("..")
	require.NoError(t, err)
	for begins := range ranElsewhere {
		require.True(t, slices.ContainsFunc(c.all, func(cure houserules.Cure) bool { return strings.HasPrefix(cure.String(), begins) }), "%s is printed no more", begins)
	}
	ran := 0
	for name, scenario := range curedBy {
		t.Run(name, func(t *testing.T) {
			ran++
			scenario(t, c)
		})
	}
	if ran < len(curedBy) {
		return // -run chose some of them
	}
	var left []string
	for _, cure := range c.all {
		known := func(begins string) bool { return strings.HasPrefix(cure.String(), begins) }
		if cure.Help || c.run[cure.String()] || elsewhere(known) {
			continue
		}
		left = append(left, cure.String())
	}
	require.Empty(t, left, "cures that nobody has run")
	t.Logf("%d printed cures, of which %d were run here", len(c.all), len(c.run))
}

func elsewhere(known func(begins string) bool) bool {
	for begins := range ranElsewhere {
		if known(begins) {
			return true
		}
	}
	return false
}

// find returns the cure as an output has it. The cure is named by its place in the
// sources and its command, as [houserules.Cure] has them.
func (c *cures) find(t *testing.T, cure, printed string) string {
	t.Helper()
	require.True(t, slices.ContainsFunc(c.all, func(known houserules.Cure) bool { return known.String() == cure }), "%s is not in the sources", cure)
	_, command, _ := strings.Cut(cure, ": ")
	pattern := strings.ReplaceAll(regexp.QuoteMeta(command), `\{\}`, "[^\\s`;,()]+")
	pattern = strings.Replace(pattern, "outboxctl ", "(?:outboxctl )?", 1)
	found := regexp.MustCompile(pattern).FindString(strings.ReplaceAll(printed, `\"`, `"`))
	require.NotEmpty(t, found, "%s is not in what was printed: %s", command, printed)
	c.run[cure] = true
	return strings.TrimPrefix(found, "outboxctl ")
}

// do runs a cure that was printed, with the rights of a login. What the reader is
// to put in its place is said by fill: KEY, GAP. It ends well.
func (c *cures) do(t *testing.T, w *environment, login, cure, printed string, fill ...string) string { //nolint:revive // argument-limit: what, where, as whom
	t.Helper()
	return c.doOn(t, w.dsn(login), cure, printed, fill...)
}

func (c *cures) doOn(t *testing.T, dsn, cure, printed string, fill ...string) string {
	t.Helper()
	command := strings.NewReplacer(append(fill, `"…"`, "told")...).Replace(c.find(t, cure, printed))
	args := strings.Fields(command)
	if slices.Contains(args, "--reason") {
		args = append(args, "--yes")
	}
	return outboxctl(t, dsn, args...)
}

// asked runs outboxctl and returns what it printed and its exit code.
func asked(t *testing.T, dsn string, args ...string) (out string, code int) {
	t.Helper()
	return exitOf(t, process.Spec{Path: outboxctlBinary(t), Args: args, Env: []string{"OUTBOXCTL_DSN=" + dsn, "OUTBOXCTL_INSECURE=true"}})
}

// relayCheck is `relay check` on a configuration.
func relayCheck(t *testing.T, config string) (out string, code int) {
	t.Helper()
	return exitOf(t, process.Spec{Path: relayBinary(t, ""), Args: []string{"check", "--config", config}})
}

func exitOf(t *testing.T, spec process.Spec) (out string, code int) {
	t.Helper()
	out, err := process.Run(t.Context(), spec)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return out, exit.ExitCode()
	}
	require.NoError(t, err)
	return out, 0
}
