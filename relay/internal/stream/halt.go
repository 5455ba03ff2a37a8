package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/publisher"
)

// halt waits for the operator's command about an event that can never become a
// record.
func (p *Pump) halt(ctx context.Context, t *decision) error {
	if err := p.letters.write(ctx); err != nil {
		return err
	}
	cause := t.cause
	if errors.Is(cause, publisher.ErrRecord) {
		cause = fmt.Errorf("event %s (aggregate %s, commit at %s) cannot be published: %w", label.Key(t.it.Row), label.Foreign(label.Clip(t.it.Row.AggregateType, label.MaxName)), t.at.Commit, cause)
	}
	return p.awaitCommand(ctx, t.step, fmt.Errorf("%w; its route has the policy halt", cause),
		fmt.Sprintf("mend the cause and start the relay again, or `outboxctl skip %s --relay %s --reason \"…\"`", label.Argument(t.it.Row.Namespace, t.it.Row.ID), p.routing.relay))
}

// awaitCommand waits for the operator's command about one event, with everything behind it.
// What was handed over before it is settled, and the session is kept. The letter
// keeps the cause, without the cure, which is no use any more.
func (p *Pump) awaitCommand(ctx context.Context, s *step, cause error, cure string) error {
	why := fmt.Errorf("%w: %s", cause, cure)
	p.log.ErrorContext(ctx, "halted: an operator has to decide about an event", "key", label.Key(s.it.Row), "position", s.at.Commit.String(), "error", why)
	p.Tell(phaseHalted, why)
	for id := s.id(); ; {
		if p.Commands().Skips(id) {
			if done, err := p.letters.skip(ctx, s, cause.Error()); done || err != nil {
				p.Tell(phaseStreams, nil)
				return err
			}
		}
		if err := p.pause(ctx); err != nil {
			return err
		}
	}
}

// haltForGood waits for the end of the process: what is wrong is mended outside, and
// what the relay knows of it would be lost with a restart of its own.
func (p *Pump) haltForGood(ctx context.Context, why error) error {
	if err := p.letters.write(ctx); err != nil {
		return err
	}
	p.log.ErrorContext(ctx, "halted until the relay is started again", "error", why)
	p.Tell(phaseHalted, why)
	for {
		if err := p.pause(ctx); err != nil {
			return err
		}
	}
}

// pause lets time pass while nothing is published. What waits is written down, and given
// up where an operator says so.
func (p *Pump) pause(ctx context.Context) error {
	if err := p.held.write(ctx); err != nil {
		return err
	}
	p.held.show(time.Now())
	if err := p.mode.settle(ctx, time.Now(), true); err != nil {
		return err
	}
	timer := time.NewTimer(pulse)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.changed: // a command
	case <-p.sink.Failed():
		return p.sink.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
	return p.releases.skipWaiting(ctx)
}
