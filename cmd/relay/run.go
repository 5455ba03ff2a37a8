package main

import (
	"errors"
	"io"
	"log/slog"
	"runtime/debug"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/relay"
	"github.com/onceward/onceward/relay/config"
	"github.com/onceward/onceward/relay/relayprom"
)

// runCommand is `relay run`: the daemon.
func runCommand(environ []string, stderr *logWriter) *cli.Command {
	return &cli.Command{
		Name:  "run",
		Usage: "publish until told to stop",
		Description: "Follows the outbox and publishes until SIGINT or SIGTERM; then it flushes, writes a last\n" +
			"checkpoint and gives the slot back, and ends with 0, or with 1 when stop_grace was not enough.\n" +
			"A second signal ends it at once, with 130 (SIGINT) or 143 (SIGTERM). Nothing is lost by that,\n" +
			"nor by kill -9: what was not acknowledged is published again. SIGHUP is ignored: secrets are\n" +
			"read again at every connect, and another relay.yaml needs a restart.\n\n" +
			"What only an operator can mend halts it: it stays, gives the slot back, says what is wrong in\n" +
			"its log, on /readyz and in `outboxctl status`, and goes on by itself once it is mended; where\n" +
			"relay.yaml is what mends it, after a restart. With --exit-on-halt it ends with 1.\n\n" +
			"Every key with one value can be given as an environment variable, e.g. postgres.dsn as\n" +
			"ONCEWARD_POSTGRES_DSN, or by --set, e.g. --set queue.bytes=32MiB; --set wins over the\n" +
			"environment, and that over the file.",
		Flags: append(configFlags(), &cli.BoolFlag{Name: "exit-on-halt", Usage: "end with 1 when only an operator can mend what is wrong"}),
		Action: func(c *cli.Context) error {
			cfg, err := config.Load(c.Path("config"), environ, c.StringSlice("set")...)
			if err != nil {
				return err
			}
			cfg.ExitOnHalt = cfg.ExitOnHalt || c.Bool("exit-on-halt")
			log := newLogger(cfg.Log, stderr)
			r, err := relay.New(cfg, log)
			if err != nil {
				return err
			}
			metrics := relayprom.New(r)
			stderr.notify(logEvents{dropped: metrics.LogDropped, drained: func(out io.Writer, lines int64) {
				newLogger(cfg.Log, out).Warn("log lines are missing here: nobody read the log", "lines", lines)
			}})
			defer ignoreHangup(log)()
			boundMemory(environ, int64(cfg.Queue.Bytes))
			// The first to stop stops all: a relay without its health page would
			// be killed by whoever looks at it.
			group, ctx := errgroup.WithContext(c.Context)
			group.Go(func() error { return r.ServeAdmin(ctx, metrics.Handler()) })
			group.Go(func() error { return r.Run(ctx) })
			err = group.Wait()
			if err != nil { // for who reads the log as JSON; a person reads the last line
				log.Error("the relay ends", "code", endCode(r, err), "error", err)
			}
			return err
		},
	}
}

// endCode is the code of what ends the relay: that of its health speaks of the last
// session, which knows nothing of a setting such as admin.listen.
func endCode(r *relay.Relay, err error) string {
	var field *relay.FieldError
	if errors.As(err, &field) {
		return relay.CodeConfig
	}
	return r.Health().Code
}

// besideQueues is what the relay needs beside the two queues: code, the
// producer's buffers, the decoder.
const besideQueues = 26 << 20

// boundMemory makes the garbage collector work harder before the process grows
// beyond what the configured queues need (the one that is read into, and what is
// on its way to Kafka). GOMEMLIMIT, when set, is the operator's word.
func boundMemory(environ []string, queue int64) {
	for _, pair := range environ {
		if strings.HasPrefix(pair, "GOMEMLIMIT=") {
			return
		}
	}
	debug.SetMemoryLimit(besideQueues + 2*queue)
}

// configFlags are the flags that say what the configuration is.
func configFlags() []cli.Flag {
	return []cli.Flag{
		&cli.PathFlag{Name: "config", Aliases: []string{"c"}, Usage: "`FILE` with the configuration", Value: "relay.yaml"},
		&cli.StringSliceFlag{Name: "set", Usage: "`KEY=VALUE` over the file and the environment; may be repeated"},
	}
}

func newLogger(cfg relay.LogConfig, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.Level)) // validated
	if cfg.Format == "text" {
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: inSeconds}))
}

// inSeconds gives a duration its unit: JSON has none, and slog writes nanoseconds.
func inSeconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() != slog.KindDuration {
		return a
	}
	return slog.Float64(a.Key+"_seconds", a.Value.Duration().Seconds())
}
