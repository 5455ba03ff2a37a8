package pgconf

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A keyword that the driver does not know goes to the server as a setting, which would
// refuse it only at the first connection.
func TestAMistypedKeywordIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"host=/run prt=25311 passwordd=S3CR3T":            "did you mean port, password?",
		"host=/run hots=S3CR3T":                           "did you mean host?",
		"host=/run Usre=S3CR3T":                           "did you mean user?",
		"host=/run sslmode=disable sslrootcrt=S3CR3T":     "did you mean sslrootcert?",
		"postgres:///d?host=/run&dbnam=S3CR3T":            "did you mean dbname?",
		"postgres:///d?host=/run&sslmodes=S3CR3T":         "did you mean sslmode?",
		"host=/run connect_timout=1 hostt=a ports=S3CR3T": "did you mean host, port, connect_timeout?",
	} {
		_, err := VerifiesServer("postgres.dsn", text)
		require.ErrorContains(t, err, "postgres.dsn: it has keywords that are not known and look mistyped; "+want, text)
		require.NotContains(t, err.Error(), "S3CR3T")
	}
}

// A URL that lacks its colon is no keyword, though it has a = further on.
func TestAURLWithoutItsColonIsNoKeyword(t *testing.T) {
	for _, text := range []string{"postgres//user:S3CR3T@host:5432/db?sslmode=disable", "postgresql:/user:S3CR3T@host/db?sslmode=verify-full&connect_timeout=1"} {
		_, err := VerifiesServer("postgres.dsn", text)
		require.ErrorContains(t, err, "postgres.dsn: it is neither postgres://… nor host=…", text)
		require.NotContains(t, err.Error(), "S3CR3T")
	}
}

// What servers and poolers know is theirs to judge.
func TestASettingOfTheServerIsNoMistake(t *testing.T) {
	for _, name := range []string{
		"application_name", "search_path", "options", "role", "jit", "geqo", "TimeZone", "DateStyle", "work_mem", "statement_timeout",
		"lock_timeout", "client_encoding", "replication", "ssl", "app.user", "pool_mode", "client_min_messages", "hostaddr", "gssencmode",
	} {
		ok, err := VerifiesServer("postgres.dsn", "host=/run "+name+"=x")
		require.NoError(t, err, name)
		require.True(t, ok, name)
	}
}
