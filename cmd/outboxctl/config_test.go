package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/jsonschema"
	"github.com/onceward/onceward/internal/operator/settings"
	"github.com/onceward/onceward/relay"
	"github.com/onceward/onceward/relay/config"
)

const relayYAML = `name: orders
postgres: {dsn: "postgres://app:s3cr3t@127.0.0.1:5433/shop?sslmode=disable", insecure: true}
kafka: {brokers: ["127.0.0.1:1"], insecure: true}
routes: [{match: {aggregate_type: "order*"}, topic: "{namespace}.{aggregate_type}"}]
`

func configFile(t *testing.T, text string) string {
	t.Helper()
	t.Setenv(relaysVariable, "")
	require.NoError(t, os.Unsetenv(relaysVariable)) // set but empty is a value; t.Setenv brings the old one back
	path := filepath.Join(t.TempDir(), "relay.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestConfigCheck(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"fine":                {relayYAML, ""},
		"unknown key":         {relayYAML + "quue: {bytes: 1MiB}\n", "did you mean queue?"},
		"unknown variable":    {strings.ReplaceAll(relayYAML, "{namespace}", "{tenant}"), "{tenant}"},
		"not verified":        {strings.Replace(relayYAML, ", insecure: true}", "}", 1), "sslmode=verify-full"},
		"broken DSN":          {strings.Replace(relayYAML, ":5433", ":port", 1), "postgres.dsn: port: want 1 to 65535"},
		"DSN of a wrong type": {strings.Replace(relayYAML, `"postgres://`, `{url: "postgres://`, 1), ""},
		"no secret":           {relayYAML + "topics: {allow: [x]}\n", ""},
		"half a login":        {strings.Replace(relayYAML, "insecure: true}\nroutes", "insecure: true, sasl: {mechanism: PLAIN, username: u}}\nroutes", 1), "kafka.sasl.password_file: is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			path := configFile(t, tc.text)
			code, stdout, stderr := call(t, "config", "check", "--config", path, "-o", "json")
			require.NotContains(t, stdout+stderr, "s3cr3t")
			if name == "fine" || name == "no secret" {
				require.Equal(t, exitFine, code, stdout+stderr)
				require.Contains(t, stdout, `"slot": "onceward_orders"`)
				return
			}
			require.Equal(t, exitWrong, code, stdout+stderr)
			require.Contains(t, stdout, tc.want)
			_, table, _ := call(t, "config", "check", "--config", path)
			require.Contains(t, table, "! ")
		})
	}
	code, _, stderr := call(t, "config", "check", "--config", "/nowhere/relay.yaml")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "no such file")
}

// TestTheConfigurationIsLookedForWhereTheRelayDoes: in relay.yaml of the working folder, as doctor does and the
// relay itself; and where there is none, it is said how another is named.
func TestTheConfigurationIsLookedForWhereTheRelayDoes(t *testing.T) {
	t.Chdir(filepath.Dir(configFile(t, relayYAML)))
	code, stdout, stderr := call(t, "config", "check")
	require.Equal(t, exitFine, code, stderr)
	require.Contains(t, stdout, "relay.yaml is fine: relay orders")
	code, stdout, stderr = call(t, "config", "print")
	require.Equal(t, exitFine, code, stderr)
	require.Contains(t, stdout, "name: orders")
	t.Chdir(t.TempDir())
	for _, command := range [][]string{{"config", "check"}, {"config", "print"}, {"doctor"}, {"topics", "create"}} {
		code, _, stderr = call(t, command...)
		require.Equal(t, exitFailed, code, command)
		require.Contains(t, stderr, "relay.yaml: no such file or directory; name the relay's configuration with --config FILE", command)
	}
}

// TestConfigCheckOfBadFiles: the files of relay/config say what is to be said of them.
func TestConfigCheckOfBadFiles(t *testing.T) {
	configFile(t, "") // without the environment's database
	files, err := filepath.Glob("../../relay/config/testdata/bad/*.yaml")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 25)
	for _, path := range files {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		code, stdout, stderr := call(t, "config", "check", "--config", path)
		require.Equal(t, exitWrong, code, "%s: %s", path, stderr)
		wants := regexp.MustCompile(`(?m)^# want: (.*)$`).FindAllStringSubmatch(string(text), -1)
		for _, want := range wants {
			require.Contains(t, stdout, "! "+want[1]+"\n", path)
		}
		require.Equal(t, len(wants), strings.Count(stdout, "! "), stdout)
	}
}

// The file of a secret that is not here is no reason to refuse a configuration.
func TestConfigCheckWithoutSecrets(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "password")
	path := configFile(t, strings.Replace(relayYAML, "insecure: true}\nroutes", "insecure: true, sasl: {mechanism: PLAIN, username: u, password_file: "+gone+"}}\nroutes", 1))
	code, stdout, stderr := call(t, "config", "check", "--config", path)
	require.Equal(t, exitFine, code, stdout+stderr)
	require.Contains(t, stdout, "is fine: relay orders, slot onceward_orders")
	require.Contains(t, stdout, "note: read kafka.sasl.password_file "+gone+": no such file or directory; what it holds is not checked\n")
	_, stdout, _ = call(t, "config", "check", "--config", path, "--output", "json")
	require.Contains(t, stdout, `"notes": [`)
	require.Contains(t, stdout, `"problems": []`)
}

// TestReplayToATopicThatIsNotAllowed: the relay would hold it; who orders it with the
// relay's configuration is told at once, also where Kafka is not asked.
func TestReplayToATopicThatIsNotAllowed(t *testing.T) {
	path := configFile(t, relayYAML+"topics: {allow: [\"orders.*\"]}\n")
	for _, unchecked := range [][]string{nil, {"--unchecked"}} {
		args := append([]string{"replay", someKey, "--config", path, "--topic", "audit", "--reason", "r", "--yes"}, unchecked...)
		code, _, stderr := call(t, args...)
		require.Equal(t, exitUsage, code, stderr)
		require.Contains(t, stderr, "not in the allow-list")
		args[5] = "orders.repair"
		_, _, stderr = call(t, args...)
		require.NotContains(t, stderr, "allow-list")
	}
}

// What is printed is a configuration: read again, it is the same but for the
// secret.
func TestConfigPrintIsWhatTheRelaySees(t *testing.T) {
	path := configFile(t, relayYAML+"checkpoint_interval: 250ms\nqueue: {bytes: 1MiB}\n")
	code, stdout, stderr := call(t, "config", "print", "--config", path)
	require.Equal(t, exitFine, code, stderr)
	require.NotContains(t, stdout, "s3cr3t")
	require.Contains(t, stdout, "dsn: host=127.0.0.1 port=5433 user=app dbname=shop password=***")
	require.Contains(t, stdout, "checkpoint_interval: 250ms")
	want, err := config.Load(path, nil)
	require.NoError(t, err)
	again := configFile(t, stdout)
	got, err := config.Load(again, nil)
	require.NoError(t, err, stdout)
	got.Postgres.DSN = want.Postgres.DSN
	require.Equal(t, flat(want), flat(got))

	text, err := os.ReadFile("../../docs/relay.schema.json")
	require.NoError(t, err)
	schema, err := jsonschema.Parse(text)
	require.NoError(t, err)
	document, err := yaml.Parser().Unmarshal([]byte(stdout))
	require.NoError(t, err)
	require.Empty(t, schema.Check(document), "an editor takes it, too")

	code, stdout, _ = call(t, "config", "print", "--config", path, "--output", "json")
	require.Equal(t, exitFine, code)
	require.NotContains(t, stdout, "s3cr3t")
	require.Contains(t, stdout, `"queue": {`)

	t.Setenv(relaysVariable, "postgres://other:s3cr3t@127.0.0.1/fromenv")
	_, stdout, _ = call(t, "config", "print", "--config", path)
	require.Contains(t, stdout, "dbname=fromenv")
	require.NotContains(t, stdout, "s3cr3t")
}

// flat makes empty and missing lists equal.
func flat(cfg relay.Config) any { return settings.Shown(cfg) }
