package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/jsonschema"
	"github.com/onceward/onceward/relay/config"
)

func TestTheRelayTakesTheFileThatIsWritten(t *testing.T) {
	text, err := relayConfig(relaySettings{
		Schema: "../docs/relay.schema.json", Name: relayName, DSNFile: `/a folder/with "quotes" and \/producer.dsn`, Brokers: []string{"127.0.0.1:1", "127.0.0.1:2"}, Admin: "127.0.0.1:3",
	})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "relay.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	cfg, err := config.Load(path, nil)
	require.NoError(t, err)
	require.Equal(t, `/a folder/with "quotes" and \/producer.dsn`, cfg.Postgres.DSNFile)
	require.Equal(t, []string{"127.0.0.1:1", "127.0.0.1:2"}, cfg.Kafka.Brokers)
	require.True(t, cfg.Topics.Create)
	require.Equal(t, "127.0.0.1:3", cfg.Admin.Listen)

	require.True(t, strings.HasPrefix(text, "# yaml-language-server: $schema=../docs/relay.schema.json\n"), text)
	written, err := os.ReadFile("../../../docs/relay.schema.json")
	require.NoError(t, err)
	schema, err := jsonschema.Parse(written)
	require.NoError(t, err)
	document, err := yaml.Parser().Unmarshal([]byte(text))
	require.NoError(t, err)
	require.Empty(t, schema.Check(document))
}

func TestTheSchemaIsNamedFromWhereTheFileIs(t *testing.T) {
	t.Chdir(t.TempDir())
	path, err := schemaFrom(".stack")
	require.NoError(t, err)
	require.Equal(t, "../docs/relay.schema.json", path)
}

func TestAStackWithoutProgramsSaysHowToMakeThem(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "stack")
	err := run(t.Context(), []string{"up", "-dir", dir, "-bin", t.TempDir()}, io.Discard)
	require.ErrorContains(t, err, "make build")
	require.NoDirExists(t, dir)
}

func TestOnlyUpAndDownAreCommands(t *testing.T) {
	for _, args := range [][]string{nil, {"restart"}, {"-dir", "x"}} {
		require.ErrorContains(t, run(t.Context(), args, io.Discard), "want up or down")
	}
}

func TestAFolderWithOtherThingsIsNeitherTakenNorRemoved(t *testing.T) {
	dir := t.TempDir()
	mine := filepath.Join(dir, "mine.txt")
	require.NoError(t, os.WriteFile(mine, []byte("mine"), 0o600))
	require.ErrorContains(t, run(t.Context(), []string{"up", "-dir", dir}, io.Discard), "is not empty (mine.txt)")
	require.NoError(t, run(t.Context(), []string{"down", "-dir", dir}, io.Discard))
	require.FileExists(t, mine)
}

func TestDownTidiesUpAfterServersThatAreGone(t *testing.T) {
	dir, data := t.TempDir(), t.TempDir()
	var s state
	require.NoError(t, s.add(dir, server{Name: "PostgreSQL", PID: 1, Marker: data, Dir: data, Signal: 2}))
	require.ErrorContains(t, run(t.Context(), []string{"up", "-dir", dir}, io.Discard), "make stack-down")
	require.NoError(t, run(t.Context(), []string{"down", "-dir", dir}, io.Discard))
	require.NoDirExists(t, dir)
	require.NoDirExists(t, data)
}

// A server that somebody started again by hand is another process on the same data.
func TestDataThatAreInUseAreNotRemoved(t *testing.T) {
	dir, data := t.TempDir(), t.TempDir()
	user := exec.CommandContext(t.Context(), "sh", "-c", "echo; read line; true", data)
	held, err := user.StdinPipe()
	require.NoError(t, err)
	said, err := user.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, user.Start())
	_, err = said.Read(make([]byte, 1)) // it runs: right behind its start a process has no arguments yet
	require.NoError(t, err)
	var s state
	require.NoError(t, s.add(dir, server{Name: "PostgreSQL", PID: 1, Marker: data, Dir: data, Signal: 2}))
	require.NoError(t, s.add(dir, server{Name: "Kafka", PID: user.Process.Pid, Marker: data, Dir: data, Signal: 2}))
	err = run(t.Context(), []string{"up", "-dir", dir}, io.Discard)
	require.ErrorContains(t, err, fmt.Sprintf("Kafka is running already (process %d), but PostgreSQL of this stack is gone: why is in %s;", user.Process.Pid, data))
	err = s.Servers[0].stop(t.Context())
	require.ErrorContains(t, err, fmt.Sprintf("process %d uses the data of PostgreSQL", user.Process.Pid))
	require.DirExists(t, data)
	require.NoError(t, held.Close())
	require.NoError(t, user.Wait())
	require.NoError(t, run(t.Context(), []string{"down", "-dir", dir}, io.Discard))
	require.NoDirExists(t, data)
}

func TestABrokenStateIsNamed(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(stateFile(dir), []byte("{"), 0o600))
	require.ErrorContains(t, run(t.Context(), []string{"down", "-dir", dir}, io.Discard), stateFile(dir))
}
