package cdc

import (
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Defaults of [Config].
const (
	defaultQueueBytes     = 16 << 20
	DefaultStatusInterval = time.Second
)

// Config says what to read and from where.
type Config struct {
	// DSN of the database, as a URL or as keywords; the role needs LOGIN and
	// REPLICATION. Required.
	DSN string
	// Slot is the name of the logical replication slot,
	// [a-z0-9_]{1,63}. Required.
	Slot string
	// Publication covers the outbox with publish = 'insert'. The same rule as
	// for Slot. Required.
	Publication string
	// CreateSlot lets [EnsureSlot] create a slot that has never existed.
	CreateSlot bool
	// FailoverSlot asks for a slot that is synchronised to standbys; PostgreSQL
	// 17 and newer. [Open] alters one that is there without.
	FailoverSlot bool
	// QueueBytes bounds what was read and not yet published, in bytes. Default
	// 16 MiB. One larger row is accepted alone.
	QueueBytes int
	// StatusInterval is the time between two status updates to the server.
	// Default 1 s; it must stay below wal_sender_timeout.
	StatusInterval time.Duration
	// SilenceLimit is how long the server may send nothing before the session
	// counts as dead. A server can be busy and mute for minutes: the caller
	// doubles it after each session without progress. 0 means never.
	SilenceLimit time.Duration
	// Creating is called before the slot is made, which may take as long as the
	// oldest open transaction lives. May be nil.
	Creating func()
	// Logger, slog.Default when nil. Payloads are never logged.
	Logger *slog.Logger

	configure func(*pgconn.Config) // tests speak to a scripted server through it
}

var identifier = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// withDefaults returns the validated configuration with its defaults. The
// replication grammar is not quoted, so names are checked here.
func (c Config) withDefaults() (Config, error) {
	if c.DSN == "" {
		return c, fmt.Errorf("cdc config: DSN is empty")
	}
	for _, f := range []struct{ name, value string }{{"Slot", c.Slot}, {"Publication", c.Publication}} {
		if !identifier.MatchString(f.value) {
			return c, fmt.Errorf("cdc config: %s %q: want 1 to 63 characters of a-z, 0-9 and _", f.name, f.value)
		}
	}
	if c.QueueBytes == 0 {
		c.QueueBytes = defaultQueueBytes
	}
	if c.QueueBytes < 1<<16 {
		return c, fmt.Errorf("cdc config: QueueBytes %d: want at least 65536", c.QueueBytes)
	}
	if c.StatusInterval == 0 {
		c.StatusInterval = DefaultStatusInterval
	}
	if c.StatusInterval < 0 || c.SilenceLimit < 0 {
		return c, fmt.Errorf("cdc config: StatusInterval %s and SilenceLimit %s may not be negative", c.StatusInterval, c.SilenceLimit)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}
