package publisher

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"github.com/IBM/sarama"
)

// Commit commits what was published since the last commit together with the
// position, or the position alone. It blocks until every event has been
// acknowledged and the coordinator has answered; ctx, Close and the
// transaction's timeout end the wait. When it returns nil the commit is known,
// and nothing of it can be repeated or undone by what may still be on the
// network. After any error the Transactional is failed, and whether this
// transaction was committed is for the next one's Checkpoint to say.
func (t *Transactional) Commit(ctx context.Context, pos Position) error {
	p := t.publisher
	p.handover.Lock()
	defer p.handover.Unlock()
	if err := p.ended(); err != nil {
		return err
	}
	if err := t.commit(ctx, pos); err != nil {
		if !errors.Is(err, ErrClosed) {
			p.fail(err)
			return p.Err()
		}
		return err
	}
	// Nobody can be told of a failure here: the commit itself is known.
	if err := t.renew(ctx, pos); err != nil {
		p.fail(err)
	}
	t.opened.Store(0)
	return nil
}

// commit ends the transaction.
func (t *Transactional) commit(ctx context.Context, pos Position) error {
	p := t.publisher
	if err := pos.check(); err != nil {
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	t.begin()
	if err := p.inflight.wait(ctx, p.failed, p.quit, p.inflight.empty); err != nil {
		return t.explainWait(p.reason(err))
	}
	if t.events > 0 { // not of a position that is committed again
		t.taken = time.Now()
	}
	if err := t.end(ctx, func() error {
		if err := t.txn.addGroup(); err != nil {
			return err
		}
		if err := t.txn.commitOffset(pos); err != nil {
			return err
		}
		return t.txn.commit()
	}); err != nil {
		return err
	}
	t.begun, t.events, t.bytes, t.since = false, 0, 0, time.Time{}
	return nil
}

func (pos Position) check() error {
	switch {
	case pos.Order > math.MaxInt64:
		return fmt.Errorf("commit position %d: the order is beyond an offset's range", pos.Order)
	case len(pos.Meta) > maxMeta:
		return fmt.Errorf("commit position %d: its metadata has %d bytes, at most %d are kept by Kafka", pos.Order, len(pos.Meta), maxMeta)
	case !utf8.ValidString(pos.Meta):
		return fmt.Errorf("commit position %d: its metadata is no UTF-8", pos.Order)
	}
	return nil
}

// end runs the commit in its turn: it ends by itself, or by the wire's cut.
func (t *Transactional) end(ctx context.Context, commit func() error) error {
	p := t.publisher
	done := make(chan error, 1)
	ending := make(chan struct{})
	t.ending = ending
	t.inTurn(func() {
		defer close(ending)
		done <- commit()
	})
	select {
	case err := <-done:
		if err != nil {
			err = t.explain("commit a transaction", err)
		}
		return err
	case <-p.failed:
		return p.Err()
	case <-p.quit:
		return ErrClosed
	case <-ctx.Done():
		return t.explainWait(ctx.Err())
	}
}

// renew gives the next transaction an epoch of its own. Brokers cannot tell the
// transactions of one epoch apart, so what is late of this one would act on the next:
// an EndTxn or an offset that was sent twice, and a marker by which the coordinator had
// the end written, which it sends again when it loses a connection (KAFKA-19446, mended
// in 4.2 for clients that speak EndTxn v5).
//
// It also fences whoever took over meanwhile, in which case this process no
// longer owns the slot. That is harmless unless the other has committed, so the
// checkpoint is read: when it is not ours any more, nothing that is in memory here may
// be published. It may be the one before, or held back although no transaction is open: a
// group coordinator that is deposed and does not know it may confirm an offset, or a
// marker, which the next one never had (KAFKA-20634, mended in 4.3.1). Then it is committed
// again, which ends whatever this producer's id has open.
func (t *Transactional) renew(ctx context.Context, committed Position) error {
	if t.config.faults.keepProducer {
		return nil
	}
	for try := 1; ; try++ {
		t.opened.Store(int64(time.Since(t.born))) // the watch bounds this too
		found, err := t.reinitialize(ctx)
		held := errors.Is(err, sarama.ErrUnstableOffsetCommit)
		switch {
		case err != nil && (!held || try > lostTries):
			return t.explain("get a new epoch, and read the checkpoint", err)
		case !held && found == committed:
			t.last = committed
			return nil
		case !held && (found != t.last || try > lostTries):
			return fmt.Errorf("%w: %w: the checkpoint of group %q is at %d and not at %d, which was committed: "+
				"another relay with the same transactional id %q has moved it, or it was deleted",
				ErrFailed, ErrFenced, t.config.Group, found.Order, committed.Order, t.config.ID)
		}
		t.settings.Logger.Warn("the group's coordinator has lost what Kafka had confirmed of a position; it is committed again",
			"group", t.config.Group, "position", committed.Order)
		if err := t.commit(ctx, committed); err != nil {
			return err
		}
	}
}

const (
	// lostTries bounds how often a position that was confirmed and lost is committed again.
	lostTries = 3
	// heldTries bounds the looks at one that is held back though it was confirmed, some
	// seconds: brokers may answer the end of a transaction before they have applied it.
	heldTries = 10
)

// reinitialize gets a new epoch, and reads the checkpoint. The end of ctx, and Close,
// cut the wire for it.
func (t *Transactional) reinitialize(ctx context.Context) (found Position, err error) {
	done := make(chan error, 1)
	t.inTurn(func() {
		err := t.txn.initialize()
		if err == nil {
			found, _, err = t.fetch(heldTries)
		}
		done <- err
	})
	quit, ended := t.publisher.quit, ctx.Done()
	for {
		select {
		case <-quit:
			t.wire.Cut()
			quit = nil
		case <-ended:
			t.wire.Cut()
			ended = nil
		case err := <-done:
			return found, err
		}
	}
}

// letGo ends what is under way when the Transactional is closed: a commit is
// cut off, an open transaction aborted.
func (t *Transactional) letGo() {
	p := t.publisher
	if t.begun && !t.isEnding() && p.Err() == nil {
		t.abort() // what it does not reach, the timeout does
	}
	if !t.isEnding() {
		return
	}
	p.wire.Cut()
	limit := time.NewTimer(closeLimit)
	defer limit.Stop()
	select {
	case <-t.ending:
	case <-limit.C: // Close says so
	}
}

// isEnding reports whether a commit or abort is under way in its goroutine.
func (t *Transactional) isEnding() bool {
	if t.ending == nil {
		return false
	}
	select {
	case <-t.ending:
		return false
	default:
		return true
	}
}

// abort aborts the open transaction, once all that is in flight has been answered:
// what arrived behind the abort would be open for ever. It waits no longer than the
// grace of Close.
func (t *Transactional) abort() {
	p := t.publisher
	over, stop := grace()
	defer stop()
	if err := p.inflight.until(over, p.failed, nil, p.inflight.empty); err != nil {
		return
	}
	ending := make(chan struct{})
	t.ending = ending
	t.inTurn(func() {
		defer close(ending)
		if !t.txn.touched {
			return
		}
		if err := t.txn.abort(); err != nil {
			t.settings.Logger.Debug("abort a Kafka transaction", "transactional_id", t.config.ID, "error", err)
		}
	})
	select {
	case <-ending:
	case <-over:
	}
}
