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

// TestDoctorLooksWithTheRelaysLogin: with whichever the relay would have. The
// connection string of outboxctl is the operator's, who may do what the relay may not.
func TestDoctorLooksWithTheRelaysLogin(t *testing.T) {
	t.Setenv(dsnVariable, "postgres://operator:canary@127.0.0.1:2/shop")
	login := func(postgres string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "relay.yaml")
		config := "name: orders\npostgres: {" + postgres + `insecure: true}
kafka: {brokers: ["127.0.0.1:1"], insecure: true}
routes: [{topic: t}]
`
		require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
		code, out, _ := call(t, "doctor", "--config", path)
		require.Equal(t, exitWrong, code)
		require.NotContains(t, out, "canary")
		return out
	}
	file := filepath.Join(t.TempDir(), "dsn")
	require.NoError(t, os.WriteFile(file, []byte("postgres://relay:canary@127.0.0.1:1/shop"), 0o600))
	for _, named := range []string{`dsn: "postgres://relay:canary@127.0.0.1:1/shop", `, `dsn_file: "` + file + `", `} {
		out := login(named)
		require.Contains(t, out, "PostgreSQL: 127.0.0.1:1 ")
		require.NotContains(t, out, "127.0.0.1:2")
	}
	t.Setenv(relaysVariable, "postgres://relay:canary@127.0.0.1:3/shop")
	for _, named := range []string{"", `dsn: "postgres://relay:canary@127.0.0.1:1/shop", `} {
		require.Contains(t, login(named), "PostgreSQL: 127.0.0.1:3 ", "as the relay in this environment")
	}
}
