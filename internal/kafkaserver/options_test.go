package kafkaserver

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOptionsThatAreRefusedNameFieldAndValue(t *testing.T) {
	for name, c := range map[string]struct {
		opts Options
		want string
	}{
		"two brokers":      {Options{Brokers: 2}, "Brokers is 2; want 1 or 3"},
		"reserved setting": {Options{Settings: map[string]string{"listeners": "x"}}, `Settings["listeners"] is "x"`},
		"not a setting":    {Options{Settings: map[string]string{"a=b\nc": "x"}}, `Settings["a=b\nc"]`},
		"two lines":        {Options{Settings: map[string]string{"a": "b\nlisteners=x"}}, `Settings["a"]`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Start(t.Context(), c.opts)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// lines reads a properties file back.
func lines(t *testing.T, text string) map[string]string {
	t.Helper()
	read := map[string]string{}
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		require.True(t, ok, line)
		require.NotContains(t, read, name)
		read[name] = value
	}
	return read
}

func TestThreeBrokersKnowOneAnotherAndAdvertiseTheProxy(t *testing.T) {
	opts := Options{Brokers: 3, Advertise: func(_ int, address string) string { return "proxy-of-" + address }}
	brokers, reserved, err := layOut(t.Context(), "/folder", opts)
	require.NoError(t, err)
	defer func() { require.NoError(t, reserved.Release()) }()
	seen := map[string]bool{}
	var voters string
	for _, b := range brokers {
		p := lines(t, properties(b, brokers, nil))
		require.Equal(t, "2", p["min.insync.replicas"])
		require.Equal(t, "3", p["offsets.topic.replication.factor"])
		require.Equal(t, "2", p["transaction.state.log.min.isr"])
		require.Equal(t, "false", p["auto.create.topics.enable"])
		require.Contains(t, p["advertised.listeners"], "CLIENT://proxy-of-"+b.address())
		require.Contains(t, p["listeners"], "CLIENT://"+b.address())
		require.NotContains(t, p["advertised.listeners"], "INTERNAL://proxy")
		if voters == "" {
			voters = p["controller.quorum.voters"]
		}
		require.Equal(t, voters, p["controller.quorum.voters"], "brokers disagree about the voters")
		for _, unique := range []string{"node.id", "log.dirs", "listeners"} {
			require.False(t, seen[unique+p[unique]], "two brokers share %s %s", unique, p[unique])
			seen[unique+p[unique]] = true
		}
	}
	require.Len(t, strings.Split(voters, ","), 3)
}

func TestSettingsGoOnTopOfDefaults(t *testing.T) {
	b := broker{node: 1, dir: "/folder"}
	p := lines(t, properties(b, []broker{b}, map[string]string{"min.insync.replicas": "7", "note": `a\b`}))
	require.Equal(t, "7", p["min.insync.replicas"])
	require.Equal(t, `a\\b`, p["note"])
	require.Equal(t, "1", p["offsets.topic.replication.factor"])
}

func TestClusterIDsHaveKafkasForm(t *testing.T) {
	for range 1000 {
		require.Regexp(t, `^[A-Za-f][A-Za-z0-9_-]{21}$`, clusterID())
	}
}

func TestWithoutJarsTheErrorSaysWhatToRun(t *testing.T) {
	t.Setenv("TESTSERVER_CACHE", t.TempDir())
	_, err := Start(t.Context(), Options{})
	require.ErrorIs(t, err, ErrNoJars)
	require.ErrorContains(t, err, "run `make deps`")
}

func TestWithoutMavenTheErrorSaysWhatToInstall(t *testing.T) {
	t.Setenv("TESTSERVER_CACHE", t.TempDir())
	t.Setenv("PATH", t.TempDir())
	_, err := Fetch(t.Context(), "")
	require.ErrorContains(t, err, "apt-get install maven")
}

func TestPomNamesTheDefaultVersion(t *testing.T) {
	require.Contains(t, string(pom), "<kafka.version>"+DefaultVersion+"</kafka.version>")
}

// What messages and pages tell the reader to run is beside a stack.
func TestEveryProgramOfKafkaThatIsNamedIsATool(t *testing.T) {
	named := regexp.MustCompile(`kafka-[a-z-]+\.sh`)
	found := map[string]bool{}
	require.NoError(t, filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || filepath.Ext(path) != ".go" && filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, name := range named.FindAllString(string(text), -1) {
			require.Contains(t, tools, name, path)
			found[name] = true
		}
		return err
	}))
	require.Len(t, found, len(tools))
}
