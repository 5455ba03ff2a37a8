package beginning

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay/internal/state"
)

// Bounds of the wait between two looks of the barrier, and the time after which
// what it waits for is named, again and again.
const (
	barrierMin  = 20 * time.Millisecond
	barrierMax  = time.Second
	barrierTell = 5 * time.Second
)

// barrier returns a snapshot E that the slot, which is there already, complements:
// what is not visible in E commits after the slot's position and comes by the
// stream. For that it takes a transaction id X of its own and waits until every
// transaction up to X has ended, to be seen by everybody: a commit that is in the
// log already but waits for its synchronous standby would else be in neither.
// There is no deadline; what is waited for is named.
//
// What the publication is like is read in the same statement as E: rows that are
// not visible in E were sent only if it stays so.
func (s *Beginner) barrier(ctx context.Context) (end outboxdb.TakeSnapshotRow, err error) {
	xid, err := s.state.Queries.AssignTransaction(ctx)
	if err != nil {
		return end, fmt.Errorf("take a transaction id: %w", err)
	}
	const what = "the start waits for transactions that were open when it began"
	s.told.Waits(what)
	stop := s.naming(ctx, what, openTransactions)
	defer stop()
	for wait := barrierMin; ; wait = min(2*wait, barrierMax) {
		passed, err := s.state.Queries.PassedBy(ctx, xid)
		if err != nil {
			return end, fmt.Errorf("wait for open transactions: %w", err)
		}
		if passed || fault.Is(fault.NoBarrier) {
			return s.state.Snapshot(ctx, s.conf.Publication)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return end, ctx.Err()
		}
	}
}

// whom looks up whom something waits for.
type whom func(context.Context, *state.State) (string, error)

// naming says in the log and on the health pages whom something waits for, as it is
// looked up, until it is stopped. It has a connection of its own, because the session's
// may be the one that waits.
func (s *Beginner) naming(ctx context.Context, what string, look whom) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for wait := barrierTell; ; wait = 30 * time.Second {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
			who, err := lookUp(ctx, s.conf, look)
			if err != nil {
				continue // the connection that waits will tell
			}
			if who == "" { // any more, and what it waited for is done
				s.told.Names(what)
				continue
			}
			s.log.WarnContext(ctx, what, "slot", s.conf.Slot, "for", who)
			s.told.Names(what + ": " + who)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func lookUp(ctx context.Context, conf Config, look whom) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	conn, err := conf.Connect(ctx)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx) //nolint:errcheck // it was only read
	return look(ctx, state.New(conn, conf.Slot))
}

func openTransactions(ctx context.Context, s *state.State) (string, error) {
	who, err := s.Queries.OpenTransactions(ctx)
	if err != nil {
		return "", fmt.Errorf("look for open transactions: %w", err)
	}
	return strings.Join(who, "; "), nil
}

func awaitedStandbys(ctx context.Context, s *state.State) (string, error) {
	if slot, err := s.Queries.SlotHealth(ctx, s.Slot); err != nil || slot.AwaitsStandbys == "" {
		return "", err
	}
	standbys, err := cdc.AwaitedStandbys(ctx, s.Conn)
	if err != nil || standbys.Away == "" {
		return standbys.Slots, err
	}
	return standbys.Away + "; " + standbys.Cure, nil
}
