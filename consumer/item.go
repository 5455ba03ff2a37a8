package consumer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// item is one event on its way through a delivery.
type item struct {
	ev          Event
	id          uuid.UUID // of the event, or of its replay
	tries       uuid.UUID // under which its failures, starts and breaks are counted
	fingerprint record.Fingerprint
	handler     *handler
	content     bool       // its class is keyed by content
	redrive     *requested // the letter that is handled again; nil for a delivery
	begun       bool       // it has effects that are not ended
	open        bool       // so it has, and none waits for an operator
	passed      int64      // how many marks had passed its offset when it was accepted
	delivery    Delivery   // what became of it

	// Of the transaction under way; they count when that commits.
	plan      plan
	claim     Claim
	end       ending
	parked    bool // its key is: a letter of it waits
	behind    bool // it is not applied, because its key is parked
	discarded bool // the letter at its place was
	called    bool // its handler was
	broke     bool // while its handler ran
}

// ending is what a transaction makes of an event, as a value: only [steps.write] writes it.
type ending struct {
	outcome Outcome
	err     error   // goes with the outcome
	letter  *letter // to write
	dead    bool    // its claims become those of an event that was given up
}

func (it *item) reset() {
	it.plan, it.claim, it.end = plan{}, Claim{}, ending{}
	it.parked, it.behind, it.discarded, it.called, it.broke = false, false, false, false, false
}

// byArrival reports whether the event is to be claimed under other ids than its own.
func (it *item) byArrival() bool {
	return slices.ContainsFunc(it.plan.ids, func(id uuid.UUID) bool { return id != it.id })
}

// writes reports whether more of the item is written behind its handler.
func (it *item) writes() bool {
	return it.end.letter != nil || it.redrive != nil || it.ev.Source.Topic != "" && it.byArrival()
}

// fresh reports whether the transaction under way has claimed the event, so that its handler has to run.
func (it *item) fresh() bool { return it.claim.Outcome == Processed }

// after is what became of an item whose one transaction ended with err.
func (it *item) after(err error) Delivery {
	switch {
	case errors.Is(err, ErrInProgress):
		return Delivery{Outcome: InProgress}
	case err != nil:
		return Delivery{Err: err}
	}
	return it.delivery
}

// event is the event as its handler gets it.
func (it *item) event() Event {
	ev := it.ev
	ev.Late, ev.Unprotected = it.plan.late, it.plan.again
	return ev
}

// accept makes the event one that its delivery has judged.
func (it *item) accept(judged Event) {
	it.plan.late, it.plan.again = judged.Late, judged.Unprotected
	it.claim = Claim{Outcome: Processed, Late: judged.Late, Unprotected: judged.Unprotected}
}

// refuse is what becomes of an event that is not to be applied, by what its claim has found. An event
// without Source has no place for a letter, and a replay that is meant for another group needs none: they
// are left to the caller. That of a redrive stays the letter that it is.
func (it *item) refuse(p *Processor) (ending, error) {
	if it.redrive != nil && it.claim.Outcome != Duplicate {
		return ending{}, refusedAgain(it.claim)
	}
	if it.behind {
		return asLetter(it, reasonParked, errBehind), nil
	}
	refused := it.claim.Outcome == Replay || it.claim.Outcome == FromFuture
	switch forUs := it.ev.ReplayMode != record.ReplayReprocess || it.ev.ReplayGroup == p.group; {
	case it.claim.Outcome == Mismatch && it.ev.Source.Topic == "":
		return ending{outcome: Mismatch, err: it.claim.Mismatch}, nil
	case it.claim.Outcome == Mismatch:
		return asLetter(it, reasonMismatch, it.claim.Mismatch), nil
	case refused && forUs && it.ev.Source.Topic != "":
		why, cause := it.outside(p.windows.skew)
		return asLetter(it, why, cause), nil
	}
	return ending{outcome: it.claim.Outcome}, nil
}

// outside says why an event outside the window of its class is not applied, and what to do.
func (it *item) outside(skew time.Duration) (reason, error) {
	at := outbox.IDTime(it.id).Format(time.RFC3339)
	switch {
	case it.claim.Outcome == FromFuture:
		return reasonFromFuture, fmt.Errorf("the event time %s lies more than %s ahead of the database's clock, and ahead of this program's; look at the producer's clock, and redrive the letter when the time has come",
			at, skew)
	case it.claim.Late:
		return reasonLate, fmt.Errorf("the event time %s lies below the floor of its class, and the group sees the event for the first time; redrive the letter to apply it", at)
	}
	return reasonReplay, fmt.Errorf("the event time %s lies below the floor of its class, and the group may have applied the event before; redrive the letter only if you know that it was not", at)
}

// asLetter is the ending of an event that becomes a dead letter.
func asLetter(it *item, why reason, cause error) ending {
	return ending{outcome: DeadLettered, letter: &letter{record: it.ev.Record(), event: it.ev, reason: why,
		cause: cause, parked: it.parked && why != reasonReplay}}
}
