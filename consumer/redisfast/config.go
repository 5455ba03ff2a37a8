package redisfast

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Defaults and bounds of [Config].
const (
	defaultTimeout = 50 * time.Millisecond
	maxTimeout     = 5 * time.Second
	maxPrefix      = 255 // bytes
)

// Config is what [New] needs.
type Config struct {
	// Redis says where it is and how to log in: Addrs of one server, of several nodes of a
	// Cluster, or with MasterName of Sentinels; IsClusterMode for a Cluster known by one address;
	// Username and Password of an ACL user, who needs GET and SET of the keys, CLUSTER SLOTS with a Cluster, and
	// SELECT with another DB than 0; TLSConfig. Addrs is required. Timeouts, retries and ContextTimeoutEnabled are set by the
	// package, and so are what asks for more rights than that (client names, notifications of
	// maintenance).
	Redis redis.UniversalOptions
	// Prefix stands before each key, GROUP:ID. For a Redis that others use, too. At most 255
	// bytes; default empty.
	Prefix string
	// Timeout bounds each question, connecting included, and each write. 1 ms to 5 s; default 50 ms.
	// The consumer waits for it up to twice for each delivery while Redis is slow, until it is left alone.
	Timeout time.Duration
	// Logger is told, at most once a minute, that Redis fails. Default: text to stderr.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	return c
}

func (c Config) validate() error {
	switch {
	case len(c.Redis.Addrs) == 0:
		return errors.New("config: Redis.Addrs is empty; give host:port of Redis, of its Sentinels, or of nodes of the Cluster")
	case c.Timeout < time.Millisecond || c.Timeout > maxTimeout:
		return fmt.Errorf("config: Timeout %s: want 1ms to %s", c.Timeout, maxTimeout)
	case len(c.Prefix) > maxPrefix:
		return fmt.Errorf("config: Prefix of %d bytes: want at most %d", len(c.Prefix), maxPrefix)
	case c.Redis.ReadOnly || c.Redis.RouteByLatency || c.Redis.RouteRandomly:
		return errors.New("config: Redis.ReadOnly, RouteByLatency or RouteRandomly: entries are read where they were written; leave them out")
	}
	return nil
}

// options are those of the client: whatever fails fails soon, and is not tried again.
func (c Config) options() *redis.UniversalOptions {
	o := c.Redis
	o.ContextTimeoutEnabled = true
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = c.Timeout, c.Timeout, c.Timeout, c.Timeout
	o.ClientName, o.DisableIdentity = "", true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &o
}
