package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDoctorSaysWhatIsWrongAndExitsWith3(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.yaml")
	config := `name: orders
postgres: {dsn: "postgres://u:canary@127.0.0.1:1/d", insecure: true}
kafka: {brokers: ["127.0.0.1:1"], insecure: true}
routes: [{topic: t}]
`
	require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
	for _, format := range []string{"table", "json"} {
		code, out, _ := call(t, "doctor", "--config", path, "--output", format)
		require.Equal(t, exitWrong, code)
		require.Contains(t, out, "connection refused")
		require.NotContains(t, out, "canary")
	}
	code, _, stderr := call(t, "doctor", "--config", filepath.Join(t.TempDir(), "nowhere.yaml"))
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "nowhere.yaml")
}
