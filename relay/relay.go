package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/retry"
	"github.com/onceward/onceward/relay/internal/state"
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
var States = []State{StateConnecting, StateStreaming, StateStandby, StateBackoff, StatePaused, StateHalted,
	StateStopped}

// Relay publishes one outbox. [New] makes it, one goroutine calls [Relay.Run],
// everything else is safe for concurrent use.
type Relay struct {
	cfg     Config
	log     *slog.Logger
	counts  *counts
	vitals  *vitals
	lookout *lookout
	watch   watch
	over    atomic.Bool // Run has returned an error
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
	if _, err := cfg.Publisher(log); err != nil {
		return nil, err
	}
	id := processID()
	log = log.With("relay", cfg.Name, "process", id)
	r := &Relay{cfg: cfg, log: log, counts: newCounts(cfg.Name), vitals: newVitals(cfg.Name, time.Now())}
	r.lookout = newLookout(&r.cfg, log)
	r.lookout.process = id
	r.watch = watch{cfg: &r.cfg, log: log, vitals: r.vitals}
	r.setState(StateConnecting, nil)
	return r, nil
}

// Stats returns the relay's numbers.
func (r *Relay) Stats() Stats {
	now, health := r.counts.stats(), r.Health()
	now.State, now.Waiting = health.State, health.Waiting
	if session := r.watch.session.Load(); session != nil {
		_, now.Throttled = session.trouble("")
	}
	return now
}

// state returns the present state.
func (r *Relay) state() State { return r.Health().State }

// lastError returns the text of what ended the last session, or nothing while
// it streams.
func (r *Relay) lastError() string { return r.Health().Error }

// Health returns how the relay does now, and what it waits for.
func (r *Relay) Health() Health { return r.vitals.health(time.Now()) }

// setState moves to a state. A standby and a relay that is halted stay what they
// are while the next session is opened.
func (r *Relay) setState(s State, err error) {
	r.vitals.enter(s, err, time.Now())
}

// Bounds of what a relay does between sessions, beside those of its tries.
const (
	standbyWait   = time.Second      // between two looks whether the slot is free
	steadySession = 30 * time.Second // after it, a failure counts as the first
	silenceMax    = time.Hour
)

// Run publishes until ctx ends; then it flushes, writes a last checkpoint, gives
// the slot back and returns nil, or the error of that. It rides through restarts
// and outages of PostgreSQL and Kafka, and waits as a standby while another
// process holds the slot.
//
// What trying again cannot mend halts it: it gives the slot back, says what is
// wrong and which command mends it, and looks every few seconds whether that was
// done. With [Config].ExitOnHalt it returns that error instead. Nothing is lost
// by it, and the slot's position has not moved past anything unpublished.
func (r *Relay) Run(ctx context.Context) error {
	beside, stop := context.WithCancel(context.WithoutCancel(ctx)) // a graceful stop may take its time
	var done sync.WaitGroup
	done.Go(func() { r.watch.run(beside) })
	done.Go(func() { r.lookout.run(beside, r.vitals.health) })
	maintenance, stopMaintenance := context.WithCancel(ctx)
	defer stopMaintenance()
	if r.cfg.Postgres.MaintenanceDSNFile != "" {
		done.Go(func() { maintain(maintenance, &r.cfg, r.counts, r.vitals.report, r.log) })
	}
	err := r.publish(ctx, retry.New())
	stopMaintenance()
	r.over.Store(err != nil)
	stop()
	done.Wait()
	r.lookout.close(ctx, r.vitals.last(time.Now()))
	return err
}

// publish runs one session after the other.
func (r *Relay) publish(ctx context.Context, t *retry.Tries) error {
	last := owned{memory: new(publisher.Memory)}
	for {
		r.setState(StateConnecting, nil)
		began := time.Now()
		before := last.reached
		err := r.lookout.explainKafka(ctx, &last, cdc.ExplainRefused(r.session(ctx, t, &last)))
		if ctx.Err() != nil {
			r.setState(StateStopped, err)
			return r.stopped(err)
		}
		steady := last.first(before, last.learn(err), time.Since(began))
		if rival := t.Rivals.Count(err, began, time.Now()); rival != nil {
			err = rival
		}
		t.Ended(err, steady)
		pause, err := r.between(ctx, t, &last, err)
		if err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			r.setState(StateStopped, nil)
			return r.stopped(nil)
		}
	}
}

// between says what the relay is until the next session, and how long that is to
// wait. The error ends the relay.
func (r *Relay) between(ctx context.Context, t *retry.Tries, last *owned, err error) (pause time.Duration,
	fatal error) {
	if errors.Is(err, cdc.ErrSlotActive) || errors.Is(err, state.ErrFenced) {
		known, ended := r.state() == StateStandby, err
		held := func() {
			if !known {
				r.log.InfoContext(ctx, "standby: another process holds the slot", "detail", ended)
			}
			known = true
		}
		r.setState(StateStandby, nil)
		pause = retry.Jitter(retry.Min)
		if errors.Is(err, state.ErrFenced) {
			pause = retry.Jitter(standbyWait)
			r.log.InfoContext(ctx, "session ended, the next one begins once the slot is free", "detail", err)
		} else {
			held()
		}
		if err = r.standBy(ctx, held); err == nil || ctx.Err() != nil {
			return pause, nil //nolint:nilerr // the relay is to stop, or the slot is free
		}
	}
	if permanent(err) {
		return r.halt(ctx, t, last, err)
	}
	r.setState(StateBackoff, err)
	r.log.WarnContext(ctx, "session ended, trying again", "error", err, "in", t.Wait)
	return retry.Jitter(t.Again(err)), nil
}

// halt says that an operator is needed, and how long to wait before the next look
// whether what was wrong is mended.
func (r *Relay) halt(ctx context.Context, t *retry.Tries, last *owned, err error) (time.Duration, error) {
	known := r.state() == StateHalted && r.lastError() == err.Error()
	r.setState(StateHalted, err)
	if r.cfg.ExitOnHalt {
		r.log.ErrorContext(ctx, "halted: an operator is needed; the relay ends, as exit_on_halt wants it", "code", codeOf(err), "error", err)
		return 0, err
	}
	if !known {
		r.log.ErrorContext(ctx, "halted: an operator is needed; the slot is given back, and the relay goes on by itself once it is mended; a change of relay.yaml needs a restart",
			"code", codeOf(err), "error", err)
	}
	return retry.Jitter(t.Halted(err, last.took)), nil
}

// standBy waits until nobody holds the slot, and says so when somebody does. It
// looks by the one connection that is kept; the server logs nothing of it. A holder that
// is no process of a relay is what it waits for. The error says that it cannot look.
func (r *Relay) standBy(ctx context.Context, held func()) error {
	defer r.vitals.report(WaitSettings)
	defer r.vitals.report(WaitSlot)
	compared := time.Time{}
	for pause := retry.Min; ; pause = min(2*pause, standbyWait) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
		free, taken, err := r.lookout.free(ctx)
		if free || err != nil {
			return err
		}
		held()
		var waits []Wait
		if taken != nil {
			waits = []Wait{{What: r.cfg.SlotName(), Since: time.Now(), Detail: taken.Error()}}
		}
		r.vitals.report(WaitSlot, waits...)
		if time.Since(compared) >= compareEvery {
			compared = time.Now()
			r.lookout.compare(ctx, r.vitals.report)
		}
	}
}

func (r *Relay) session(ctx context.Context, t *retry.Tries, last *owned) error {
	last.took = false
	if err := r.lookout.stillOther(ctx, last); err != nil {
		return err
	}
	s, err := r.openSession(ctx, t, last)
	if err != nil {
		return err
	}
	t.Opened()
	r.counts.session()
	r.setState(StateStreaming, nil)
	defer r.watch.over()
	return s.run(ctx, last)
}

// stopped is the end of a graceful stop. One that met no session to finish cuts short what was under way.
func (r *Relay) stopped(err error) error {
	var unfinished *unfinishedError
	if err == nil || errors.Is(err, context.Canceled) && !errors.As(err, &unfinished) {
		r.log.Info("stopped")
		return nil
	}
	return fmt.Errorf("stop: %w", err)
}
