package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/beginning"
	"github.com/onceward/onceward/relay/internal/retry"
	"github.com/onceward/onceward/relay/internal/state"
	"github.com/onceward/onceward/relay/internal/stream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serverNow() time.Time { return time.Now() }

func TestPermanentErrorsAreThoseThatTryingAgainCannotMend(t *testing.T) {
	wrapped := func(code string) error { return fmt.Errorf("connect: %w", &pgconn.PgError{Code: code}) }
	for _, err := range []error{
		&cdc.StartError{Code: "TABLE_MISSING"}, &FieldError{Field: "x"}, &cdc.DecodeError{Err: errors.New("x")},
		&cdc.LayoutError{}, &retry.RivalError{}, wrapped("28P01"), wrapped("42501"), wrapped("42704"), wrapped("3D000"), wrapped("58P01"),
	} {
		require.True(t, permanent(fmt.Errorf("session: %w", err)), "%v", err)
	}
	for _, err := range []error{
		wrapped("57P01"), wrapped("57P03"), wrapped("53300"), wrapped("53100"), wrapped("08006"), wrapped("40001"), wrapped(""),
		&beginning.GapError{}, publisher.ErrFailed, cdc.ErrSilent, &publisher.RouteError{}, net.ErrClosed, context.DeadlineExceeded,
	} {
		require.False(t, permanent(fmt.Errorf("session: %w", err)), "%v", err)
	}
}

// What a process remembers counts beyond the checkpoint only while nobody else had the
// slot, in the same history of the database: one that was put back has had other
// sessions of the same epochs since.
func TestWhatTheLastSessionEndedCounts(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(o *owned, kept *ledger.Checkpoint, row *outboxdb.RelayState, system *pglogrepl.IdentifySystemResult)
		want  bool
	}{
		"as it was": {func(*owned, *ledger.Checkpoint, *outboxdb.RelayState, *pglogrepl.IdentifySystemResult) {}, true},
		"the answer to a save was lost": {func(_ *owned, _ *ledger.Checkpoint, row *outboxdb.RelayState, _ *pglogrepl.IdentifySystemResult) {
			row.Tick = 10
		}, true},
		"a history with the same epochs": {func(_ *owned, _ *ledger.Checkpoint, row *outboxdb.RelayState, _ *pglogrepl.IdentifySystemResult) {
			row.Tick = 30
		}, false},
		"another session came between": {func(_ *owned, _ *ledger.Checkpoint, row *outboxdb.RelayState, _ *pglogrepl.IdentifySystemResult) {
			row.Epoch = 6
		}, false},
		"another timeline": {func(_ *owned, _ *ledger.Checkpoint, _ *outboxdb.RelayState, s *pglogrepl.IdentifySystemResult) {
			s.Timeline = 3
		}, false},
		"another system": {func(_ *owned, _ *ledger.Checkpoint, _ *outboxdb.RelayState, s *pglogrepl.IdentifySystemResult) {
			s.SystemID = "7001"
		}, false},
		"behind the checkpoint": {func(_ *owned, kept *ledger.Checkpoint, _ *outboxdb.RelayState, _ *pglogrepl.IdentifySystemResult) {
			kept.Order = 451
		}, false},
		"beyond the log": {func(o *owned, _ *ledger.Checkpoint, _ *outboxdb.RelayState, _ *pglogrepl.IdentifySystemResult) {
			o.ended.UpTo.Commit = 501
		}, false},
	} {
		o := owned{Known: beginning.Known{SystemID: "7000", Timeline: 2, Tick: 9}, epoch: 4, ended: ledger.Checkpoint{Order: 450}}
		kept, row := ledger.Checkpoint{Order: 400}, outboxdb.RelayState{Epoch: 5, Tick: 9}
		system := pglogrepl.IdentifySystemResult{SystemID: "7000", Timeline: 2, XLogPos: 500}
		c.spoil(&o, &kept, &row, &system)
		require.Equal(t, c.want, o.knowsMore(&kept, row, system), name)
	}
}

func TestNewRefusesWhatItCanSee(t *testing.T) {
	good := minimal()
	password := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(password, []byte("secret"), 0o600))
	for want, tweak := range map[string]func(*Config){
		"name":              func(c *Config) { c.Name = "" },
		"verify-full":       func(c *Config) { c.Postgres.DSN = "host=db" },
		"kafka.brokers[0]":  func(c *Config) { c.Kafka.Brokers = []string{"kafka"} },
		"kafka.compression": func(c *Config) { c.Kafka.Compression = "zip" },
		"routes[0].topic":   func(c *Config) { c.Routes[0].Topic = "{tenant}" },
		"kafka.sasl.password_file": func(c *Config) {
			c.Kafka.SASL = SASLConfig{Mechanism: "PLAIN", Username: "u", PasswordFile: "/nowhere"}
		},
		"kafka.sasl.mechanism":                 func(c *Config) { c.Kafka.SASL = SASLConfig{Mechanism: "plain", Username: "u", PasswordFile: password} },
		"kafka.sasl.mechanism: is missing":     func(c *Config) { c.Kafka.SASL = SASLConfig{Username: "u", PasswordFile: password} },
		"kafka.sasl.username":                  func(c *Config) { c.Kafka.SASL = SASLConfig{Mechanism: "PLAIN", PasswordFile: password} },
		"kafka.sasl.password_file: is missing": func(c *Config) { c.Kafka.SASL = SASLConfig{Mechanism: "PLAIN", Username: "u"} },
		"kafka.max_message_bytes":              func(c *Config) { c.Kafka.MaxMessageBytes = 1 },
		"topics.replication_factor":            func(c *Config) { c.Topics.ReplicationFactor = -1 },
		"kafka.tls.ca_file":                    func(c *Config) { c.Kafka.TLS.CAFile = password },
		"go together":                          func(c *Config) { c.Kafka.TLS.CertFile = password },
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
		require.Equal(t, StateBackoff, r.state())
		require.Contains(t, r.lastError(), "connect to PostgreSQL")
		cancel()
		require.NoError(t, <-ended)
		require.Equal(t, StateStopped, r.state())
	})
}

func TestRunReturnsWhatAnOperatorMustMend(t *testing.T) {
	r := testRelay(t, func(c *Config) { c.ExitOnHalt = true })
	r.cfg.Postgres = PostgresConfig{DSN: "host=db sslmode=prefer"}
	err := r.Run(t.Context())
	var field *FieldError
	require.ErrorAs(t, err, &field)
	require.Equal(t, StateHalted, r.state())
	require.Equal(t, err.Error(), r.lastError())
}

// A standby that cannot look any more whether the slot is free would never take
// over: it is not ready.
func TestAStandbyThatCannotLookIsNotReady(t *testing.T) {
	r := testRelay(t, func(c *Config) { c.Postgres.DSN = "host=127.0.0.1 port=1 user=u sslmode=disable" })
	_, err := r.between(t.Context(), retry.New(), &owned{}, fmt.Errorf("%w: by PID 7", cdc.ErrSlotActive))
	require.NoError(t, err)
	require.Equal(t, StateBackoff, r.state())
	require.Contains(t, r.lastError(), "connect to PostgreSQL")
	code, _ := get(t, r.Handler(nil), "/readyz")
	require.Equal(t, 503, code)
}

// A session that a command of outboxctl has fenced has no other process beside it,
// as far as is known before the slot was looked at.
func TestWhoIsFencedNamesNoOtherProcess(t *testing.T) {
	r := testRelay(t, func(c *Config) { c.Postgres.DSN = "host=127.0.0.1 port=1 user=u sslmode=disable" })
	for cause, said := range map[error]string{state.ErrFenced: "session ended, the next one begins once the slot is free", cdc.ErrSlotActive: "standby: another process holds the slot"} {
		var log strings.Builder
		r.log = slog.New(slog.NewTextHandler(&log, nil))
		_, err := r.between(t.Context(), retry.New(), &owned{}, cause)
		require.NoError(t, err)
		require.Contains(t, log.String(), said)
		require.Equal(t, errors.Is(cause, cdc.ErrSlotActive), strings.Contains(log.String(), "another process"))
	}
}

// Run does not return what an operator can mend, unless it is told to: it goes on
// trying, and says so once.
func TestAHaltedRelayGoesOnTrying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "dsn")
		require.NoError(t, os.WriteFile(file, []byte("host=db sslmode=disable"), 0o600))
		r := testRelay(t, func(c *Config) { c.Postgres.DSN, c.Postgres.DSNFile = "", file })
		require.NoError(t, os.WriteFile(file, []byte("host=127.0.0.1 port=1 sslmode=prefer"), 0o600))
		r.cfg.Postgres.Insecure = false
		var log strings.Builder
		r.log = slog.New(slog.NewTextHandler(&log, nil))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		<-time.After(time.Minute)
		h := r.Health()
		require.Equal(t, StateHalted, h.State)
		require.Equal(t, "CONFIG", h.Code)
		require.Greater(t, time.Since(h.Since), 59*time.Second, "halted all the time")
		require.NoError(t, os.WriteFile(file, []byte("host=127.0.0.1 port=1 user=u sslmode=verify-full"), 0o600))
		<-time.After(10 * time.Second)
		require.Equal(t, StateBackoff, r.state(), "it sees by itself that it was mended")
		cancel()
		require.NoError(t, <-ended)
		require.Equal(t, 1, strings.Count(log.String(), "halted: an operator is needed;"))
	})
}

// A session that ends with news, or that got further in whatever mode, is no
// reason to wait for long.
func TestWhatCountsAsTheFirstFailure(t *testing.T) {
	o := owned{reached: 200}
	require.False(t, o.first(200, false, time.Second))
	require.True(t, o.first(199, false, time.Second), "it got further")
	require.True(t, o.first(200, true, time.Second), "the next one knows better")
	require.True(t, o.first(200, false, time.Minute), "it lasted")
}

// A gap is written down by the session that follows at once; until it is, the same one
// is no news.
func TestAGapIsNews(t *testing.T) {
	var o owned
	require.True(t, o.learn(&beginning.GapError{Code: beginning.CodeWentBack, Epoch: 3}))
	require.False(t, o.learn(&beginning.GapError{Code: beginning.CodeWentBack, Epoch: 3}))
	require.True(t, o.learn(&beginning.GapError{Code: beginning.CodeWentBack, Epoch: 5}), "a twin had the slot, and this process has found it anew")
	require.False(t, o.learn(errors.New("connection lost")))
}

// What a session leaves says how far it has come, and what is read again.
func TestASessionLeavesHowFarItCame(t *testing.T) {
	var last owned
	c := newCounts("orders")
	last.keep(stream.Status{Position: 208, Owing: 3}, c)
	require.EqualValues(t, 208, last.reached)
	require.EqualValues(t, 3, c.stats().Rewound)
	require.EqualValues(t, 1, c.stats().Rewinds)
}

// A topic that refused a batch is known to the next session, once.
func TestANarrowTopicIsRemembered(t *testing.T) {
	var last owned
	last.learn(&publisher.NarrowError{Topic: "t", Err: errors.New("x")})
	last.learn(&publisher.NarrowError{Topic: "t", Err: errors.New("x")})
	last.learn(nil)
	require.Equal(t, []string{"t"}, last.narrow)
	require.True(t, last.learn(&publisher.RefusedError{Topic: "t", ID: uuid.UUID{1}, Err: errors.New("too large")}))
	require.Len(t, last.refused, 1)
}
