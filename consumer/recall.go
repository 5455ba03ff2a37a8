package consumer

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/onceward/onceward/internal/consumerdb"
)

// recall looks for letters of an event whose claim may be gone: it lies below the
// floor, is claimed by arrival, or is redriven, or its offset was finished, which does
// not say that it was applied. One that a redrive has applied is a duplicate. Who
// applies one of which a letter waits is the redrive or the release of that, once, one
// letter of the event at a time, and nobody after it was discarded. Where the key was
// another event's, it is a mismatch, unless its own offset was finished.
//
// Where keys are made of content, a letter says something of what arrived with it only, and
// nothing of another letter that was claimed: that has claimed all that arrived with it.
func (c claimant) recall(ctx context.Context, l *look, it *item) error {
	if it.plan.outcome != Replay && it.plan.outcome != Duplicate && !it.ev.redriven && !it.byArrival() {
		return nil
	}
	if it.redrive != nil {
		alone, err := c.q.LockEvent(ctx, consumerdb.LockEventParams{ConsumerGroup: c.processor.group,
			ClaimID: it.id.String()})
		switch {
		case err != nil:
			return fmt.Errorf("lock the event: %w", err)
		case !alone:
			return ErrInProgress
		}
	}
	letters, err := c.q.LettersOfClaim(ctx, consumerdb.LettersOfClaimParams{ClaimID: &it.id,
		ConsumerGroup: c.processor.group})
	if err != nil {
		return fmt.Errorf("look for letters of the event: %w", err)
	}
	if it.content {
		letters = slices.DeleteFunc(letters, func(letter consumerdb.LettersOfClaimRow) bool {
			speaks, failure := l.speaks(ctx, &letter, it)
			err = cmp.Or(err, failure)
			return !speaks || it.ev.claimed
		})
		if err != nil {
			return err
		}
	}
	outcome, other := it.said(letters)
	if outcome == Mismatch && it.plan.outcome == Duplicate {
		return nil // the other one may have come later
	}
	if outcome != 0 {
		it.plan = plan{outcome: outcome, other: other, known: slices.Concat(it.plan.ids, it.plan.known)}
	}
	return nil
}

// said is what letters say of an event, 0 for nothing: as a claim would that is there
// still. A letter that waits for another one, for the clock, or for somebody who looks
// at late events, has left none, so that it takes the key from nobody. One of a replay
// says nothing of the first delivery.
func (it *item) said(letters []consumerdb.LettersOfClaimRow) (outcome Outcome, other *MismatchError) {
	for _, l := range letters {
		same, applied := it.isOf(&l), l.State == stateRedriven
		why := reason(l.Reason)
		switch {
		case same && applied:
			return Duplicate, nil
		case same && !it.ev.redriven && why != reasonReplay:
			outcome, other = DeadLettered, nil
		case !same && outcome == 0 && (applied || why.claims() && !it.ev.redriven):
			outcome, other = Mismatch, &MismatchError{Key: it.ev.Key, Given: it.fingerprint, AppliedAt: l.At}
			copy(other.Stored[:], l.Fingerprint)
		}
	}
	return outcome, other
}

// isOf reports whether a letter of the id is one of this very event.
func (it *item) isOf(l *consumerdb.LettersOfClaimRow) bool {
	if l.Fingerprint != nil {
		return bytes.Equal(l.Fingerprint, it.fingerprint[:])
	}
	rec := it.ev.Record()
	return l.Namespace == it.ev.Key.Namespace() && l.EventType == it.ev.Type && bytes.Equal(l.RecordKey, rec.Key) &&
		bytes.Equal(l.RecordValue, rec.Value)
}
