package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/publisher"
)

// State of a relay, as the health pages and metrics show it.
type State string

// The states; see the package comment.
const (
	StateConnecting State = "connecting"
	StateStreaming  State = "streaming"
	StateStandby    State = "standby"
	StateBackoff    State = "backoff"
	StatePaused     State = "paused"
	StateHalted     State = "halted"
	StateStopped    State = "stopped"
)

// States lists them all.
var States = []State{StateConnecting, StateStreaming, StateStandby, StateBackoff, StatePaused, StateHalted, StateStopped}

// Relay publishes one outbox. [New] makes it, one goroutine calls [Relay.Run],
// everything else is safe for concurrent use.
type Relay struct {
	cfg     Config
	log     *slog.Logger
	metrics *Metrics
	now     atomic.Pointer[condition]
	held    atomic.Pointer[map[string]string] // why, by route; nil: nothing is
	over    atomic.Bool                       // Run has returned an error
}

// condition is what the health pages show.
type condition struct {
	state State
	err   string // what ended the last session
}

// New validates the configuration, and reads the secrets' files once to see that
// they are there. It connects to nothing. log is used as it is; nil means
// slog.Default.
func New(cfg Config, log *slog.Logger) (*Relay, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.Default()
	}
	if _, err := cfg.DSN(); err != nil {
		return nil, err
	}
	if cfg.Postgres.MaintenanceDSNFile != "" {
		if _, err := cfg.maintenanceDSN(); err != nil {
			return nil, err
		}
	}
	sink, err := cfg.Publisher(log)
	if err != nil {
		return nil, err
	}
	if err := sink.Validate(); err != nil {
		return nil, err
	}
	r := &Relay{cfg: cfg, log: log.With("relay", cfg.Name), metrics: newMetrics(cfg.Name)}
	r.setState(StateConnecting, nil)
	return r, nil
}

// Metrics returns the relay's counters, to be registered by the caller.
func (r *Relay) Metrics() *Metrics { return r.metrics }

// State returns the present state.
func (r *Relay) State() State { return r.now.Load().state }

// LastError returns the text of what ended the last session, or nothing while
// it streams.
func (r *Relay) LastError() string { return r.now.Load().err }

func (r *Relay) setState(s State, err error) {
	next := &condition{state: s}
	if err != nil {
		next.err = err.Error()
	}
	r.now.Store(next)
	r.metrics.state(s)
}

// setHeld shows which routes are held, and why.
func (r *Relay) setHeld(why map[string]string) {
	if len(why) == 0 {
		r.held.Store(nil)
		return
	}
	r.held.Store(&why)
}

// Bounds of the waits between sessions.
const (
	backoffMin    = 100 * time.Millisecond
	backoffMax    = 10 * time.Second
	standbyWait   = time.Second
	steadySession = 30 * time.Second // after it, a failure counts as the first
	silenceFactor = 2                // × wal_sender_timeout; doubled by each silent session
	silenceMax    = time.Hour

	maxSilenceFactor = 1 << 16 // far beyond silenceMax
)

// Run publishes until ctx ends; then it flushes, writes a last checkpoint, gives
// the slot back and returns nil. It rides through restarts and outages of
// PostgreSQL and Kafka, and waits as a standby while another process holds the
// slot. It returns the error that trying again cannot mend; nothing is lost by
// it, and the slot's position has not moved past anything unpublished.
func (r *Relay) Run(ctx context.Context) error {
	if r.cfg.Postgres.MaintenanceDSNFile != "" {
		maintenance, stop := context.WithCancel(ctx)
		var done sync.WaitGroup
		done.Go(func() { r.maintain(maintenance) })
		defer done.Wait()
		defer stop()
	}
	err := r.publish(ctx)
	r.over.Store(err != nil)
	return err
}

// publish runs one session after the other.
func (r *Relay) publish(ctx context.Context) error {
	wait, silence := backoffMin, silenceFactor
	last := owned{memory: new(publisher.Memory)}
	var rivals rivalry
	for {
		r.setStateKeepingError(StateConnecting)
		began := time.Now()
		before := last.reached
		err := cdc.ExplainFiltered(r.session(ctx, silence, &last))
		if ctx.Err() != nil {
			r.setState(StateStopped, err)
			return r.stopped(err)
		}
		if last.first(before, last.learn(err), time.Since(began)) {
			wait = backoffMin
			if !errors.Is(err, cdc.ErrSilent) {
				// A server that is mute while it decodes may have sent something
				// before: it is given more time from session to session.
				silence = silenceFactor
			}
		}
		if rival := rivals.count(err, began, time.Now()); rival != nil {
			err = rival
		}
		pause := wait
		switch {
		case errors.Is(err, cdc.ErrSlotActive) || errors.Is(err, ErrFenced):
			if r.State() != StateStandby {
				r.log.InfoContext(ctx, "standby: another process holds the slot", "detail", err)
			}
			r.setState(StateStandby, nil)
			pause = standbyWait
		case permanent(err):
			r.setState(StateHalted, err)
			return err
		default:
			r.setState(StateBackoff, err)
			r.log.WarnContext(ctx, "session ended, trying again", "error", err, "in", wait)
			wait = min(2*wait, backoffMax)
			if errors.Is(err, cdc.ErrSilent) {
				silence = min(2*silence, maxSilenceFactor)
			}
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)): //nolint:gosec // G404: jitter needs no secrecy
		case <-ctx.Done():
			r.setState(StateStopped, nil)
			return nil
		}
	}
}

// setStateKeepingError moves from backoff or standby to connecting without
// hiding why, and leaves standby as it is: a standby that looks whether the
// slot is free is still one.
func (r *Relay) setStateKeepingError(s State) {
	if r.State() == StateStandby {
		return
	}
	r.now.Store(&condition{state: s, err: r.LastError()})
	r.metrics.state(s)
}

func (r *Relay) session(ctx context.Context, silence int, last *owned) error {
	s, err := r.openSession(ctx, silence, last)
	if err != nil {
		return err
	}
	r.metrics.sessions.Inc()
	r.setState(StateStreaming, nil)
	return s.run(ctx, last)
}

// stopped is the end of a graceful stop.
func (r *Relay) stopped(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		r.log.Info("stopped")
		return nil
	}
	return fmt.Errorf("stop: %w", err)
}
