package relay

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// minimal is the least that a relay has to be told.
func minimal() Config {
	cfg := Default()
	cfg.Name, cfg.Postgres.DSN, cfg.Kafka.Brokers = "orders", "host=db sslmode=verify-full", []string{"kafka-1:9093"}
	cfg.Routes = []RouteConfig{{Topic: "{namespace}.{aggregate_type}"}}
	return cfg
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "17": 17, "1KiB": 1024, "2 MiB": 2 << 20, "3GiB": 3 << 30, "1kB": 1000, "5MB": 5e6, "1GB": 1e9, "8B": 8} {
		var b Bytes
		require.NoError(t, b.UnmarshalText([]byte(text)), text)
		require.EqualValues(t, want, b, text)
	}
	rapid.Check(t, func(t *rapid.T) {
		var b Bytes
		if b.UnmarshalText([]byte(rapid.String().Draw(t, "text"))) == nil && b < 0 {
			t.Fatal("negative size")
		}
	})
	var b Bytes
	require.Error(t, b.UnmarshalText([]byte("9223372036854775807GiB")), "overflow")
}

func TestDSNMustVerifyTheServer(t *testing.T) {
	for dsn, ok := range map[string]bool{
		"host=db user=u sslmode=verify-full": true,
		"host=db user=u sslmode=verify-ca":   false,
		"host=db user=u sslmode=require":     false,
		"host=db user=u sslmode=prefer":      false,
		"host=db user=u":                     false,
		"host=db user=u sslmode=disable":     false,
		"host=/var/run/postgresql user=u":    true,

		"host=a,b user=u sslmode=verify-full":        true, // the primary may be either
		"host=a,b user=u sslmode=require":            false,
		"host=a,/var/run/x user=u sslmode=verify-ca": false,
	} {
		c := Config{Postgres: PostgresConfig{DSN: dsn}}
		_, err := c.DSN()
		require.Equal(t, ok, err == nil, "%s: %v", dsn, err)
		c.Postgres.Insecure = true
		_, err = c.DSN()
		require.NoError(t, err, dsn)
	}
}

func TestDSNFileIsReadEveryTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dsn")
	c := Config{Postgres: PostgresConfig{DSNFile: path, Insecure: true}}
	_, err := c.DSN()
	require.ErrorContains(t, err, "postgres.dsn_file")
	for _, dsn := range []string{"host=a user=u", "host=b user=u"} {
		require.NoError(t, os.WriteFile(path, []byte(dsn+"\n"), 0o600))
		got, err := c.DSN()
		require.NoError(t, err)
		require.Equal(t, dsn, got)
	}
	require.NoError(t, os.WriteFile(path, []byte("\n"), 0o600))
	_, err = c.DSN()
	require.ErrorContains(t, err, "is empty")
}

func TestErrorsHoldNoPassword(t *testing.T) {
	c := Config{Postgres: PostgresConfig{DSN: "host=db password=canary port=none"}}
	_, err := c.DSN()
	require.Error(t, err)
	require.NotContains(t, err.Error(), "canary")
}
