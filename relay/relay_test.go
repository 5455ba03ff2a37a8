package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/publisher"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serverNow() time.Time { return time.Now() }

func TestPermanentErrorsAreThoseThatTryingAgainCannotMend(t *testing.T) {
	wrapped := func(code string) error { return fmt.Errorf("connect: %w", &pgconn.PgError{Code: code}) }
	for _, err := range []error{
		&cdc.StartError{Code: cdc.CodeTableMissing}, &FieldError{Field: "x"}, &cdc.DecodeError{Err: errors.New("x")},
		&publisher.RecordError{}, wrapped("28P01"), wrapped("42501"), wrapped("42704"), wrapped("3D000"), wrapped("58P01"),
	} {
		require.True(t, permanent(fmt.Errorf("session: %w", err)), "%v", err)
	}
	for _, err := range []error{
		wrapped("57P01"), wrapped("57P03"), wrapped("53300"), wrapped("08006"), wrapped("40001"), wrapped(""),
		publisher.ErrFailed, cdc.ErrSilent, &publisher.RouteError{}, net.ErrClosed, context.DeadlineExceeded,
	} {
		require.False(t, permanent(fmt.Errorf("session: %w", err)), "%v", err)
	}
}

func TestTheCheckpointIsBoundToItsServer(t *testing.T) {
	row := outboxdb.RelayState{Slot: "onceward_orders", SystemIdentifier: "7000", Timeline: 2}
	system := pglogrepl.IdentifySystemResult{SystemID: "7000", Timeline: 2, XLogPos: 500}
	require.NoError(t, checkBinding(row, system, 400, 300))
	require.NoError(t, checkBinding(row, system, 400, 400))
	for code, check := range map[string]func() error{
		"OTHER_SYSTEM": func() error {
			return checkBinding(row, pglogrepl.IdentifySystemResult{SystemID: "7001", Timeline: 2, XLogPos: 500}, 400, 300)
		},
		"OTHER_TIMELINE": func() error {
			return checkBinding(row, pglogrepl.IdentifySystemResult{SystemID: "7000", Timeline: 3, XLogPos: 500}, 400, 300)
		},
		"CHECKPOINT_BEYOND_LOG": func() error { return checkBinding(row, system, 501, 300) },
		"SLOT_ADVANCED":         func() error { return checkBinding(row, system, 400, 401) },
	} {
		err := check()
		var start *cdc.StartError
		require.ErrorAs(t, err, &start)
		require.Equal(t, code, start.Code)
		require.Contains(t, start.Cure, "onceward_orders")
		require.True(t, permanent(err))
	}
}

func TestNewRefusesWhatItCanSee(t *testing.T) {
	good, err := parse([]byte(minimal), nil)
	require.NoError(t, err)
	password := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(password, []byte("secret"), 0o600))
	for want, tweak := range map[string]func(*Config){
		"name":        func(c *Config) { c.Name = "" },
		"verify-full": func(c *Config) { c.Postgres.DSN = "host=db" },
		"Brokers[0]":  func(c *Config) { c.Kafka.Brokers = []string{"kafka"} },
		"Compression": func(c *Config) { c.Kafka.Compression = "zip" },
		"{tenant}":    func(c *Config) { c.Routes[0].Topic = "{tenant}" },
		"kafka.sasl.password_file": func(c *Config) {
			c.Kafka.SASL = SASLConfig{Mechanism: "PLAIN", Username: "u", PasswordFile: "/nowhere"}
		},
		"SASL.Mechanism":    func(c *Config) { c.Kafka.SASL = SASLConfig{Mechanism: "plain", Username: "u", PasswordFile: password} },
		"kafka.tls.ca_file": func(c *Config) { c.Kafka.TLS.CAFile = password },
		"go together":       func(c *Config) { c.Kafka.TLS.CertFile = password },
	} {
		c := good
		c.Routes = []RouteConfig{good.Routes[0]}
		tweak(&c)
		_, err := New(c, nil)
		require.ErrorContains(t, err, want)
	}
}

// A server that is away is no reason to end: the relay tries again, ever more
// slowly, and stops at once when it is told to.
func TestRunTriesAgainAndStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := testRelay(t, func(c *Config) { c.Postgres.DSN = "host=127.0.0.1 port=1 user=u sslmode=disable" })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		<-time.After(time.Minute)
		require.Equal(t, StateBackoff, r.State())
		require.Contains(t, r.LastError(), "connect to PostgreSQL")
		cancel()
		require.NoError(t, <-ended)
		require.Equal(t, StateStopped, r.State())
	})
}

func TestRunReturnsWhatAnOperatorMustMend(t *testing.T) {
	r := testRelay(t, nil)
	r.cfg.Postgres = PostgresConfig{DSN: "host=db sslmode=prefer"}
	err := r.Run(t.Context())
	var field *FieldError
	require.ErrorAs(t, err, &field)
	require.Equal(t, StateHalted, r.State())
	require.Equal(t, err.Error(), r.LastError())
}
