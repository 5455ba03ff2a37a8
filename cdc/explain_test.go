package cdc

import (
	"crypto/tls"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// TestExplainConnect: what a server, or a pooler in its place, answers to a
// connection, by the codes and words that they use.
func TestExplainConnect(t *testing.T) {
	conf := &pgconn.Config{User: "relay", Database: "app"}
	for _, tc := range []struct {
		sqlState, message, code string
		passing                 bool
	}{
		{"28P01", `password authentication failed for user "relay"`, codeLogin, false},
		{"28000", `role "relay" is not permitted to log in`, codeLogin, false},
		{"28000", `no pg_hba.conf entry for host "10.0.0.1", user "relay", database "app", no encryption`, codeHBA, false},
		{"3D000", `database "app" does not exist`, codeDatabaseMissing, false},
		{"42501", `must be superuser or replication role to start walsender`, codeRole, false},              // 15
		{"42501", `permission denied to start WAL sender`, codeRole, false},                                 // 16 and newer
		{"08P01", `unsupported startup parameter: replication`, codePooler, false},                          // PgBouncer before 1.23
		{"08P01", `unsupported startup parameter: search_path`, codePooler, false},                          // on the ordinary connection
		{"53300", `number of requested standby connections exceeds max_wal_senders`, codeConnections, true}, // somebody will leave
		{"53300", `too many connections for role "relay"`, codeConnections, true},
		{"53300", `too many connections for database "app"`, codeConnections, true},
	} {
		answer := &pgconn.PgError{Code: tc.sqlState, Message: tc.message}
		err := ExplainConnect(answer, conf)
		var start *StartError
		require.ErrorAs(t, err, &start, tc.message)
		require.Equal(t, tc.code, start.Code, tc.message)
		require.Equal(t, tc.passing, start.Passing, tc.message)
		require.NotEmpty(t, start.Cure)
		require.ErrorIs(t, err, answer)
	}
	require.ErrorContains(t, ExplainConnect(&pgconn.PgError{Code: "53300", Message: `too many connections for role "relay"`}, conf), `ALTER ROLE "relay" CONNECTION LIMIT -1;`)
	refused := &pgconn.PgError{Code: "28000", Message: "no pg_hba.conf entry"}
	require.ErrorContains(t, ExplainConnect(refused, conf), "`host app relay ADDRESS")
	require.ErrorContains(t, ExplainConnect(refused, conf), "above any line that rejects it")
	require.ErrorContains(t, ExplainConnect(refused, &pgconn.Config{User: "relay", Database: "app", TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13}}), "`hostssl app relay ADDRESS")
	for _, other := range []error{io.EOF, &pgconn.PgError{Code: "57P03", Message: "the database system is starting up"}} {
		require.ErrorIs(t, ExplainConnect(other, conf), other)
		require.EqualError(t, ExplainConnect(other, conf), other.Error())
	}
}

// TestExplainFiltered: the server's words in any language; what else has this
// SQLSTATE is left alone.
func TestExplainFiltered(t *testing.T) {
	for _, message := range []string{
		`query would be affected by row-level security policy for table "outbox"`,
		`Anfrage würde von Policy für Sicherheit auf Zeilenebene für Tabelle »outbox« betroffen`,
	} {
		answer := &pgconn.PgError{Code: "42501", Message: message, Routine: "check_enable_rls"}
		err := ExplainFiltered(answer)
		var start *StartError
		require.ErrorAs(t, err, &start)
		require.Equal(t, codeRowSecurity, start.Code)
		require.False(t, start.Passing)
		require.Contains(t, start.What, "onceward.outbox")
		require.Contains(t, start.Cure, "BYPASSRLS")
		require.ErrorIs(t, err, answer)
	}
	for _, other := range []error{
		nil, io.EOF, &pgconn.PgError{Code: "42501", Message: `permission denied for table outbox`, Routine: "aclcheck_error"},
		&pgconn.PgError{Code: "42501", Message: `new row violates row-level security policy for table "outbox"`, Routine: "ExecWithCheckOptions"},
	} {
		require.Equal(t, other, ExplainFiltered(other))
		require.Equal(t, other, ExplainRefused(other))
	}
	for _, code := range []string{"42703", "42883"} {
		var start *StartError
		require.ErrorAs(t, ExplainRefused(&pgconn.PgError{Code: code, Message: "column p.attachings does not exist"}), &start)
		require.Equal(t, codeSchemaOther, start.Code)
	}
}
