package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/v2"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/houserules"
	"github.com/onceward/onceward/internal/jsonschema"
)

func schema(t *testing.T) jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "relay.schema.json"))
	require.NoError(t, err)
	s, err := jsonschema.Parse(text)
	require.NoError(t, err)
	return s
}

// judged by the schema, and by [Check].
func judged(t *testing.T, path string) (bySchema []string, report Report) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	if document, err := yaml.Parser().Unmarshal(text); err == nil {
		bySchema = schema(t).Check(document)
	}
	_, report, err = Check(path, nil)
	require.NoError(t, err)
	return bySchema, report
}

// TestEveryBadFileIsRefused: each of testdata/bad says in its first lines what Check has
// against it, each thing once and nothing else, and whether the schema is blind to it.
func TestEveryBadFileIsRefused(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	require.NoError(t, err)
	seen := 0
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			var want []string
			blind := false
			for line := range strings.Lines(string(text)) {
				if problem, ok := strings.CutPrefix(strings.TrimSpace(line), "# want: "); ok {
					want = append(want, problem)
				}
				blind = blind || strings.HasPrefix(line, "# blind: ")
			}
			require.NotEmpty(t, want)
			bySchema, report := judged(t, path)
			require.ElementsMatch(t, want, report.Problems)
			for _, problem := range report.Problems {
				require.NotRegexp(t, goNames, strings.TrimPrefix(problem, "parse YAML"), "names of Go")
				require.NotRegexp(t, `mean \S*insecure`, problem)
			}
			require.Equal(t, blind, len(bySchema) == 0, "the schema says %v", bySchema)
			if !blind {
				seen++
			}
		})
	}
	require.GreaterOrEqual(t, len(files), 25)
	require.GreaterOrEqual(t, seen, 22, "the schema sees too little")
}

// goNames are fields of Go, types in quotes, and functions of its library.
var goNames = regexp.MustCompile(`\b[A-Z]\w*(\.|\[\d+\])[A-Z]|\b(Brokers|Routes|Topics|SASL|TLS)\b|'(bool|int|int64|string)'|strconv|time: |mapstructure`)

// TestEveryGoodFileIsTaken: also the one of the README.
func TestEveryGoodFileIsTaken(t *testing.T) {
	files, err := filepath.Glob("testdata/good/*.yaml")
	require.NoError(t, err)
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)
	snippet := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(readme)
	require.NotNil(t, snippet)
	require.Contains(t, string(snippet[1]), "routes:")
	require.Contains(t, string(snippet[1]), "# yaml-language-server: $schema=https://raw.githubusercontent.com/onceward/onceward/main/docs/relay.schema.json\n")
	path := filepath.Join(t.TempDir(), "relay.yaml")
	require.NoError(t, os.WriteFile(path, snippet[1], 0o600))
	for _, path := range append(files, path) {
		bySchema, report := judged(t, path)
		require.Empty(t, bySchema, path)
		require.Empty(t, report.Problems, path)
	}
}

// settingInText is a key of the configuration with its value, as a sentence has it.
var settingInText = regexp.MustCompile(`^((?:gap|exit_on_halt|[a-z_]+(?:\.[a-z_]+)+)): (\S+)$`)

// TestThePagesConfigureWhatIsThere: every part of a configuration in the pages is taken
// beside the smallest one, by the schema and by Check, and every setting in a sentence.
func TestThePagesConfigureWhatIsThere(t *testing.T) {
	root := filepath.Join("..", "..")
	blocks, err := houserules.Blocks(root)
	require.NoError(t, err)
	path, found := filepath.Join(t.TempDir(), "relay.yaml"), 0
	for _, b := range blocks {
		if b.Language != "yaml" {
			continue
		}
		found++
		k := koanf.New(".")
		if !strings.Contains(b.Text, "\nname: ") { // it is not whole by itself
			require.NoError(t, k.Load(rawbytes.Provider([]byte(minimal)), yaml.Parser()))
		}
		require.NoError(t, k.Load(rawbytes.Provider([]byte(b.Text)), yaml.Parser()), b.Page)
		text, err := k.Marshal(yaml.Parser())
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		bySchema, report := judged(t, path)
		require.Empty(t, bySchema, b.Page)
		require.Empty(t, report.Problems, b.Page)
	}
	require.GreaterOrEqual(t, found, 3)

	require.NoError(t, os.WriteFile(path, []byte(minimal), 0o600))
	spans, err := houserules.Spans(root)
	require.NoError(t, err)
	for _, s := range spans {
		if setting := settingInText.FindStringSubmatch(s.Text); setting != nil {
			found++
			_, report, err := Check(path, nil, setting[1]+"="+setting[2])
			require.NoError(t, err)
			require.Empty(t, report.Problems, s.Page)
		}
	}
	require.Greater(t, found, 20, "they are found")
}

// Where secrets are not, each of their files is a note, and what is written is checked.
func TestFilesOfSecretsNeedNotBeThere(t *testing.T) {
	_, report, err := Check("testdata/good/every-kind.yaml", nil)
	require.NoError(t, err)
	require.Empty(t, report.Problems)
	require.Len(t, report.Notes, 5)
	for i, key := range []string{"postgres.dsn_file", "postgres.maintenance_dsn_file", "kafka.sasl.password_file", "kafka.tls.ca_file", "kafka.tls.cert_file"} {
		require.Regexp(t, key+".*no such file or directory; what it holds is not checked$", report.Notes[i])
	}

	// One that is there is read.
	file := filepath.Join(t.TempDir(), "file")
	for content, wants := range map[string][]string{
		"":                                    {"read postgres.dsn_file " + file + ": it is empty", "read kafka.sasl.password_file " + file + ": it is empty", "kafka.tls.ca_file: " + file + " holds no certificate"},
		"host=db":                             {"postgres.dsn_file: the connection is not sslmode=verify-full", "kafka.tls.ca_file: "},
		"host=db port=x password=S3CR3T":      {"postgres.dsn_file: port: want 1 to 65535", "kafka.tls.ca_file: "},
		"host=db sslmode=verify-full port=12": {"kafka.tls.ca_file: "},
	} {
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		config := filepath.Join(t.TempDir(), "relay.yaml")
		text := strings.NewReplacer(`postgres: {dsn: "host=db sslmode=verify-full"}`, "postgres: {dsn_file: "+file+"}",
			"{brokers:", "{tls: {ca_file: "+file+"}, sasl: {mechanism: PLAIN, username: u, password_file: "+file+"}, brokers:").Replace(minimal)
		require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
		_, report, err := Check(config, nil)
		require.NoError(t, err)
		require.Empty(t, report.Notes)
		require.Len(t, report.Problems, len(wants), report.Problems)
		for i, want := range wants {
			require.Contains(t, report.Problems[i], want)
			require.NotContains(t, report.Problems[i], "S3CR3T")
		}
	}
}

// A certificate that the DSN names is a file of a secret like the others.
func TestACertificateOfTheDSNNeedNotBeThere(t *testing.T) {
	_, report, err := Check("testdata/good/emptied-sections.yaml", []string{"ONCEWARD_POSTGRES_DSN=host=db sslmode=verify-full sslrootcert=/run/no.pem"})
	require.NoError(t, err)
	require.Empty(t, report.Problems)
	require.Len(t, report.Notes, 1)
	require.Contains(t, report.Notes[0], "postgres.dsn: sslrootcert: the file cannot be read: /run/no.pem")
}

// Check looks at the environment and the settings, too.
func TestCheckSaysAllOfTheEnvironment(t *testing.T) {
	_, report, err := Check("testdata/bad/no-dsn.yaml", []string{"ONCEWARD_POSTGRES_DNS=x", "ONCEWARD_KAFKA_MOD=x", "ONCEWARD_LOG_LEVEL=loud"}, "gap=never", "queue.byte=1")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{
		"environment variable ONCEWARD_POSTGRES_DNS is not known; did you mean ONCEWARD_POSTGRES_DSN?",
		"environment variable ONCEWARD_KAFKA_MOD is not known; did you mean ONCEWARD_KAFKA_MODE?",
		`--set "queue.byte" is not known; did you mean queue.bytes?`,
		`--set gap: "never": want one of [repair ask]`,
		`environment variable ONCEWARD_LOG_LEVEL: log.level: "loud": want one of [debug info warn error]`,
	}, report.Problems)
	_, _, err = Check("testdata/nowhere.yaml", nil)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// So few days ahead are taken, and are what others warn of.
func TestFewDaysAheadAreNoted(t *testing.T) {
	for ahead, noted := range map[string]bool{"1": true, "6": true, "7": false, "14": false} {
		_, report, err := Check("testdata/good/emptied-sections.yaml", []string{"ONCEWARD_POSTGRES_DSN=host=db sslmode=verify-full"}, "outbox.partitions.ahead="+ahead)
		require.NoError(t, err)
		require.Empty(t, report.Problems)
		if !noted {
			require.Empty(t, report.Notes, ahead)
			continue
		}
		require.Len(t, report.Notes, 1)
		require.Contains(t, report.Notes[0], "outbox.partitions.ahead: "+ahead+": ")
		require.Contains(t, report.Notes[0], "want 7 or more")
	}
}
