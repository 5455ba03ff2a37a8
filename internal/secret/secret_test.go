package secret

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/secret/canary"
)

// The driver's own words hold the password of some of these strings: what is
// tested here has something to hide.
func TestTheDriverAloneWouldTell(t *testing.T) {
	told := 0
	for _, text := range canary.Strings() {
		if _, err := pgx.ParseConfig(text); err != nil && strings.Contains(err.Error(), canary.Word) {
			told++
		}
	}
	require.Greater(t, told, 10)
}

func TestNoParseErrorHoldsItsString(t *testing.T) {
	refused := 0
	for _, text := range canary.Strings() {
		_, err1 := pgconn.ParseConfig(text)
		_, err2 := pgx.ParseConfig(text)
		_, err3 := pgxpool.ParseConfig(text)
		for _, err := range []error{err1, err2, err3} {
			if err == nil {
				continue
			}
			refused++
			safe := ParseError("postgres.dsn", err)
			require.NotContains(t, safe.Error(), canary.Word, text)
			require.NotContains(t, safe.Error(), "127.0.0.1:1", text)
			require.Contains(t, safe.Error(), "postgres.dsn: ")
			for cause := errors.Unwrap(safe); cause != nil; cause = errors.Unwrap(cause) {
				require.NotContains(t, cause.Error(), canary.Word, text)
			}
		}
	}
	require.Greater(t, refused, 300)
	require.NoError(t, ParseError("x", nil))
}

func TestAParseErrorSaysWhatIsWrong(t *testing.T) {
	const base = "host=127.0.0.1 user=u "
	for text, want := range map[string]string{
		base + "port=x": "port: want", base + "port=1,2,3": "as many as there are hosts", base + "sslmode=nope": "sslmode: want", base + "sslmode=require sslcert=/nowhere/c sslkey=/nowhere/k": "sslkey: the file",
		base + "sslmode=verify-ca sslrootcert=/nowhere/x": "sslrootcert: the file cannot be read: (path not shown", base + "sslmode=require sslcert=c": "go together",
		base + "service=x": "service: ", base + "connect_timeout=x": "connect_timeout: ", base + "target_session_attrs=x": "target_session_attrs: ", base + "channel_binding=x": "channel_binding: ",
		base + "require_auth=x": "require_auth: ", base + "min_protocol_version=x": "protocol_version", base + "sslcertmode=x": "sslcertmode: ",
		base + "default_query_exec_mode=x": "default_query_exec_mode", base + "statement_cache_capacity=x": "capacity", base + "pool_max_conns=x": "pool_",
		"postgres://[::1": "as a URL", "nonsense": "neither",
		// What stands in the string decides nothing.
		base + "password='`: sslmode is invalid' port=x": "port: want",
	} {
		_, err := pgxpool.ParseConfig(text)
		require.Error(t, err, text)
		require.Contains(t, ParseError("f", err).Error(), want, text)
	}
}

func TestNoConnectErrorHoldsThePassword(t *testing.T) {
	tried := 0
	for _, text := range canary.Strings() {
		conf, err := pgconn.ParseConfig(text)
		if err != nil {
			continue
		}
		tried++
		conf.ConnectTimeout = time.Second
		_, err = pgconn.ConnectConfig(t.Context(), conf)
		require.Error(t, err, text)
		safe := ConnectError(err, conf)
		require.NotContains(t, safe.Error(), canary.Word, text)
		require.ErrorIs(t, safe, err)
		for _, message := range []string{"no user " + conf.User, "no database " + conf.Database, "password " + conf.Password, "host " + conf.Host} {
			require.NotContains(t, ConnectError(&pgconn.PgError{Code: "28000", Message: message}, conf).Error(), canary.Word, text)
		}
		for key := range conf.RuntimeParams {
			require.NotContains(t, ConnectError(&pgconn.PgError{Code: "42704", Message: `unrecognized configuration parameter "` + key + `"`}, conf).Error(), canary.Word, text)
		}
	}
	require.Greater(t, tried, 30)
}

func TestAConnectErrorSaysWhereAndWhy(t *testing.T) {
	conf, err := pgconn.ParseConfig("postgres://u:p@127.0.0.1:1/d?sslmode=disable")
	require.NoError(t, err)
	_, err = pgconn.ConnectConfig(t.Context(), conf)
	require.ErrorContains(t, ConnectError(err, conf), "127.0.0.1:1: connect: connection refused")
	require.NoError(t, ConnectError(nil, conf))
	require.EqualError(t, ConnectError(io.EOF, conf), "EOF")
	require.Equal(t, "app-db.x", Name("app-db.x"))
	require.Equal(t, notShown, Name("x@host/db"))
	require.Equal(t, "db.example:5432", Host("db.example:5432"))
	require.Equal(t, notShown, Host("x@host"))
}

func TestFile(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "password")
	require.NoError(t, os.WriteFile(path, []byte(" S3CR3T \r\n"), 0o600))
	text, err := File("f", path)
	require.NoError(t, err)
	require.Equal(t, " S3CR3T ", text)
	require.NoError(t, os.WriteFile(path, []byte("\n"), 0o600))
	_, err = File("f", path)
	require.EqualError(t, err, "read f "+path+": it is empty")
	_, err = File("f", filepath.Join(folder, "sub", "x"))
	require.ErrorContains(t, err, filepath.Join(folder, "sub", "x"), "a path is shown when its folder is there")
	require.ErrorIs(t, err, os.ErrNotExist)
	t.Chdir(folder)
	_, err = File("f", "./gone.dsn")
	require.ErrorContains(t, err, "read f ./gone.dsn: ")
	_, err = File("f", "gone.dsn")
	require.ErrorContains(t, err, "read f (not shown: the working folder has no file of that name, so it may be the secret itself): ")
	for _, secret := range canary.Misplaced() {
		_, err := File("postgres.dsn_file", secret)
		require.ErrorContains(t, err, "read postgres.dsn_file ")
		require.NotContains(t, err.Error(), canary.Word)
	}
}

func TestArgument(t *testing.T) {
	require.Equal(t, `"chek"`, Argument("chek"))
	for _, text := range canary.Strings() {
		require.NotContains(t, Argument(text), canary.Word, text)
	}
}

// Who checks a string where its files are not can tell that from a wrong one.
func TestAParseErrorWrapsWhatTheSystemSaid(t *testing.T) {
	_, err := pgconn.ParseConfig("host=127.0.0.1 sslmode=verify-full sslrootcert=/nowhere/x")
	require.ErrorIs(t, ParseError("f", err), os.ErrNotExist)
	_, err = pgconn.ParseConfig("host=127.0.0.1 port=x")
	require.NoError(t, errors.Unwrap(ParseError("f", err)))
}
