//go:build e2e

package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/record"
)

const windowTopic = "shop.payment"

// below is a group whose floor has passed some days, and that has finished the
// offsets of its partition up to 50. Days tells how old the events are: 2 with
// their partition attached, 30 without.
type below struct {
	*env
	days   int
	router *consumer.Router
	class  consumer.Class
	seen   []consumer.Event // what the handler got
}

// windowPromises are the promises below the floor; each defect breaks one.
var windowPromises = map[string]struct {
	check   func(b *below) error
	class   consumer.Class
	defects map[string]consumer.Defect
}{
	"a late event is applied once":           {check: lateOnce, defects: map[string]consumer.Defect{"late unclaimed": consumer.LateUnclaimed}},
	"two late copies at once":                {check: lateAtOnce, defects: map[string]consumer.Defect{"late unclaimed": consumer.LateUnclaimed}},
	"a late event may be refused":            {check: lateRefused, class: consumer.Class{Late: consumer.LateDeadLetter}},
	"a replay is reported, not applied":      {check: replayReported, defects: map[string]consumer.Defect{"no evidence": consumer.NoEvidence}},
	"a refused event's letter is synced":     {check: refusedIsSynced},
	"a replay from nowhere is an outcome":    {check: replayFromNowhere, defects: map[string]consumer.Defect{"no evidence": consumer.NoEvidence}},
	"a repair is never late":                 {check: repairBelow, defects: map[string]consumer.Defect{"no evidence": consumer.NoEvidence}},
	"a redelivery is never late":             {check: redeliverBelow, defects: map[string]consumer.Defect{"no evidence": consumer.NoEvidence}},
	"a reprocess for others is not for us":   {check: reprocessOfOthers, defects: map[string]consumer.Defect{"no evidence": consumer.NoEvidence}},
	"a reprocess for us is applied":          {check: reprocessBelow},
	"a replay may be applied":                {check: replayApplied, class: consumer.Class{Replay: consumer.ReplayProcess}},
	"a copy of late content is a mismatch":   {check: lateMismatch},
	"a late event that fails becomes dead":   {check: lateDies},
	"a late event that fails is tried again": {check: lateFailsInABatch},
	"a late event has a result":              {check: lateResult},
	"a late event has one outside effect":    {check: lateFence},
	"an outside effect refuses a replay":     {check: replayFence},
	"a batch of everything":                  {check: mixedBatch},
	"from the future":                        {check: future, defects: map[string]consumer.Defect{"no floor": nil}},
	"copies by arrival meet over the edge":   {check: arrivalEdge, class: consumer.Class{Keyed: consumer.ByArrival}, defects: map[string]consumer.Defect{"one bucket": consumer.OneBucket}},
	"copies by arrival at once":              {check: arrivalAtOnce, class: consumer.Class{Keyed: consumer.ByArrival}},
	"an old floor and a new one at once":     {check: twoFloors},
	"a known event below the floor is known": {check: knownBelow, defects: map[string]consumer.Defect{"no claim": consumer.NoClaim}},
}

func TestBelowTheFloor(t *testing.T) {
	for name, p := range windowPromises {
		for _, days := range []int{2, 30} {
			t.Run(fmt.Sprintf("%s/%d days", name, days), func(t *testing.T) {
				t.Parallel()
				require.NoError(t, p.check(newBelow(t, nil, p.class, days)))
			})
		}
		for defect, build := range p.defects {
			if build == nil {
				continue
			}
			t.Run(name+"/catches "+defect, func(t *testing.T) {
				t.Parallel()
				err := p.check(newBelow(t, build, p.class, 30))
				require.Error(t, err, "the check does not notice this defect")
				t.Log("caught:", err)
			})
		}
	}
}

func newBelow(t *testing.T, defect consumer.Defect, class consumer.Class, days int) *below {
	t.Helper()
	b := &below{env: newEnv(t, defect), days: days, class: class}
	b.class.Pattern, b.class.Window = "*", time.Hour
	b.processor() // registers
	exec(t, b.db, `UPDATE onceward.dedup_windows SET floor = date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'`)
	exec(t, b.db, `INSERT INTO onceward.progress (consumer_group, topic, kafka_partition, low_offset, high_offset) VALUES ('billing', $1, 0, 0, 50)`, windowTopic)
	b.router = b.member()
	return b
}

func (b *below) processor() *consumer.Processor {
	b.t.Helper()
	p, err := consumer.New(b.t.Context(), consumer.Config{
		Group: "billing", DB: b.db, LockTimeout: 10 * time.Second, Classes: []consumer.Class{b.class}, Retry: consumer.Retry{MaxAttempts: 2},
	})
	require.NoError(b.t, err)
	return p
}

func (b *below) member() *consumer.Router {
	r := consumer.NewRouter(b.processor()).With(b.defect)
	handler := func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		b.seen = append(b.seen, ev)
		return effect("billing")(ctx, tx, ev)
	}
	r.Tx("Paid", handler)
	r.Batch("Moved", consumer.BatchOptions{}, handler)
	return r
}

// event is below the floor, at the given offset.
func (b *below) event(offset int64) consumer.Event {
	ev := newEvent(b.t)
	ev.Key = keyAt(b.t, time.Now().AddDate(0, 0, -b.days))
	ev.Source = consumer.Source{Topic: windowTopic, Offset: offset}
	return ev
}

func (b *below) deliver(ev consumer.Event, want consumer.Outcome) error {
	return deliver(b.t.Context(), b.router, ev, want)
}

func (b *below) reasons() string {
	var out string
	require.NoError(b.t, b.db.QueryRow(b.t.Context(), `SELECT COALESCE(string_agg(reason || ' ' || kafka_offset, ', ' ORDER BY kafka_offset), '') FROM onceward.consumer_dead_letters`).Scan(&out))
	return out
}

// left wants so many effects and such letters.
func (b *below) left(effects int, letters string) error {
	if n := b.effects(); n != effects {
		return fmt.Errorf("%d effects, want %d", n, effects)
	}
	if got := b.reasons(); got != letters {
		return fmt.Errorf("letters %q, want %q", got, letters)
	}
	return nil
}

func lateOnce(b *below) error {
	ev := b.event(100)
	err := b.deliver(ev, consumer.Processed)
	again := ev
	again.Source.Offset = 101
	err = errors.Join(err, b.deliver(ev, consumer.Duplicate), b.deliver(again, consumer.Duplicate))
	exec(b.t, b.db, "UPDATE onceward.progress SET high_offset = 200") // it is finished, and comes again
	batched := again
	batched.Type = "Moved"
	err = errors.Join(err, b.deliver(again, consumer.Duplicate))
	if d := b.router.HandleBatch(b.t.Context(), []consumer.Event{batched}); d[0].Outcome != consumer.DeadLettered {
		err = errors.Join(err, fmt.Errorf("in a batch, with other content: %+v", d))
	}
	exec(b.t, b.db, "DELETE FROM onceward.consumer_dead_letters WHERE reason = 'mismatch'")
	if len(b.seen) != 1 || !b.seen[0].Late || b.seen[0].Unprotected {
		err = errors.Join(err, fmt.Errorf("the handler got %+v, want it once, late", b.seen))
	}
	return errors.Join(err, b.left(1, ""))
}

func lateAtOnce(b *below) error {
	return b.atOnce(b.event(100), b.router, b.router)
}

// atOnce delivers the event through both routers, the second while the first is
// within its handler.
func (b *below) atOnce(ev consumer.Event, first, second *consumer.Router) error {
	done := make(chan struct{})
	result := make(chan error, 1)
	var calls atomic.Int32
	ctx := context.WithValue(b.t.Context(), cancelKey{}, nil)
	handler := func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if calls.Add(1) == 1 {
			go func() {
				defer close(done)
				result <- deliver(context.WithoutCancel(ctx), second, ev, consumer.Duplicate) // this handler returns before
			}()
			b.waitBlocked(ctx, done)
		}
		return effect("billing")(ctx, tx, ev)
	}
	first.Tx("Slow", handler)
	if first != second {
		second.Tx("Slow", handler)
	}
	ev.Type = "Slow"
	err := deliver(ctx, first, ev, consumer.Processed)
	return errors.Join(err, <-result, b.left(1, ""))
}

func lateRefused(b *below) error {
	ev := b.event(100)
	return errors.Join(b.deliver(ev, consumer.DeadLettered), b.deliver(ev, consumer.DeadLettered), b.left(0, "late 100"))
}

func replayReported(b *below) error {
	ev := b.event(50)
	return errors.Join(b.deliver(ev, consumer.DeadLettered), b.deliver(ev, consumer.DeadLettered), b.left(0, "replay 50"))
}

// refusedIsSynced: a transaction whose claim claims nothing is bounded like any other.
func refusedIsSynced(b *below) error {
	exec(b.t, b.db, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$`)
	exec(b.t, b.db, `CREATE TABLE wrote (synced text)`)
	exec(b.t, b.db, `CREATE FUNCTION synced() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO wrote VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$`)
	exec(b.t, b.db, `CREATE TRIGGER synced AFTER INSERT ON onceward.consumer_dead_letters FOR EACH ROW EXECUTE FUNCTION synced()`)
	b.db.Reset()
	if err := b.deliver(b.event(50), consumer.DeadLettered); err != nil {
		return err
	}
	if n := count(b.t, b.db, "SELECT count(*) FROM wrote WHERE synced = 'on'"); n != 1 {
		return fmt.Errorf("%d letters were written with synchronous_commit = on, want 1", n)
	}
	return nil
}

func replayFromNowhere(b *below) error {
	ev := b.event(0)
	ev.Source = consumer.Source{}
	return errors.Join(b.deliver(ev, consumer.Replay), b.left(0, ""))
}

func repairBelow(b *below) error {
	ev := b.event(100)
	ev.RepairID = uuid.New()
	return errors.Join(b.deliver(ev, consumer.DeadLettered), b.left(0, "replay 100"))
}

func redeliverBelow(b *below) error {
	ev := b.event(100)
	ev.ReplayID, ev.ReplayMode = newEvent(b.t).Key.UUID(), record.ReplayRedeliver
	return errors.Join(b.deliver(ev, consumer.DeadLettered), b.left(0, "replay 100"))
}

func reprocessOfOthers(b *below) error {
	ev := b.event(100)
	ev.ReplayID, ev.ReplayMode, ev.ReplayGroup = newEvent(b.t).Key.UUID(), record.ReplayReprocess, "shipping"
	return errors.Join(b.deliver(ev, consumer.Replay), b.left(0, ""))
}

func reprocessBelow(b *below) error {
	ev := b.event(100)
	ev.ReplayID, ev.ReplayMode, ev.ReplayGroup = newEvent(b.t).Key.UUID(), record.ReplayReprocess, "billing"
	return errors.Join(b.deliver(ev, consumer.Processed), b.deliver(ev, consumer.Duplicate), b.left(1, ""))
}

func replayApplied(b *below) error {
	ev := b.event(50)
	err := errors.Join(b.deliver(ev, consumer.Processed), b.deliver(ev, consumer.Duplicate))
	if len(b.seen) != 1 || b.seen[0].Late || !b.seen[0].Unprotected {
		err = errors.Join(err, fmt.Errorf("the handler got %+v, want it once, unprotected", b.seen))
	}
	return errors.Join(err, b.left(1, ""))
}

func lateMismatch(b *below) error {
	ev := b.event(100)
	err := b.deliver(ev, consumer.Processed)
	ev.Payload, ev.Source.Offset = []byte("other"), 101
	return errors.Join(err, b.deliver(ev, consumer.DeadLettered), b.left(1, "mismatch 101"))
}

func lateDies(b *below) error {
	b.router.Tx("Broken", func(context.Context, pgx.Tx, consumer.Event) error { return errBroken })
	ev := b.event(100)
	ev.Type = "Broken"
	if _, err := b.router.Handle(b.t.Context(), ev); !errors.Is(err, errBroken) {
		return fmt.Errorf("first attempt: %w", err)
	}
	err := errors.Join(b.deliver(ev, consumer.DeadLettered), b.deliver(ev, consumer.DeadLettered), b.left(0, "handler 100"))
	if n := count(b.t, b.db, "SELECT count(*) FROM onceward.processed_events WHERE outcome <> 'd'"); n != 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d claims do not say dead", n, b.claims()))
	}
	return err
}

// lateFailsInABatch: what a failed attempt claimed is taken back, all of it.
func lateFailsInABatch(b *below) error {
	failures := 1
	b.router.Batch("Shaky", consumer.BatchOptions{}, func(ctx context.Context, tx pgx.Tx, ev consumer.Event) error {
		if failures++; failures <= 3 { // in the pass of all, and in the one of its own
			return errBroken
		}
		return effect("billing")(ctx, tx, ev)
	})
	evs := []consumer.Event{b.event(100), b.event(101)}
	evs[0].Type, evs[1].Type = "Shaky", "Shaky"
	evs[1].AggregateID = "another"
	if d := b.router.HandleBatch(b.t.Context(), evs); !errors.Is(d[0].Err, errBroken) || !d[1].Finished() {
		return fmt.Errorf("first attempt: %+v", d)
	}
	for _, d := range b.router.HandleBatch(b.t.Context(), evs) {
		if !d.Finished() {
			return d.Err
		}
	}
	return b.left(2, "")
}

func lateResult(b *below) error {
	ev, p := b.event(100), b.processor()
	work := func(context.Context, pgx.Tx) (string, error) { return "first", nil }
	for i, want := range []consumer.Outcome{consumer.Processed, consumer.Duplicate} {
		got, err := consumer.Do(b.t.Context(), p, ev, work)
		if err != nil || got.Outcome != want || got.Result != "first" || got.Late != (i == 0) {
			return fmt.Errorf("call %d: %+v, %w", i, got, err)
		}
	}
	if n := count(b.t, b.db, "SELECT count(*) FROM onceward.processed_events WHERE result IS NULL"); n != 0 {
		return fmt.Errorf("%d of %d claims lack the result", n, b.claims())
	}
	err := pgx.BeginFunc(b.t.Context(), b.db, func(tx pgx.Tx) error { // the same by hand
		ev := b.event(102)
		claim, err := p.Claim(b.t.Context(), tx, ev)
		if err != nil || claim.Outcome != consumer.Processed || !claim.Late {
			return fmt.Errorf("claim %+v: %w", claim, err)
		}
		if err := p.Complete(b.t.Context(), tx, ev, []byte(`"by hand"`)); err != nil {
			return err
		}
		again, err := p.Claim(b.t.Context(), tx, ev)
		if err != nil || again.Outcome != consumer.Duplicate || string(again.Result) != `"by hand"` {
			return fmt.Errorf("again %+v: %w", again, err)
		}
		return nil
	})
	if n := count(b.t, b.db, "SELECT count(*) FROM onceward.processed_events WHERE result IS NULL"); n != 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d claims lack the result by hand, which a copy may meet", n, b.claims()))
	}
	return err
}

func lateFence(b *below) error {
	calls := 0
	p := b.processor()
	charge := consumer.Effect[string]{Name: "charge", Do: func(context.Context, consumer.Call) (string, error) { calls++; return "charged", nil }}
	b.router.Func("Charge", func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Fence(ctx, p, ev, charge)
		return err
	})
	ev := b.event(100)
	ev.Type = "Charge"
	err := errors.Join(b.deliver(ev, consumer.Processed), b.deliver(ev, consumer.Duplicate))
	if calls != 1 {
		err = errors.Join(err, fmt.Errorf("%d calls", calls))
	}
	return err
}

func replayFence(b *below) error {
	p := b.processor()
	charge := consumer.Effect[string]{Name: "charge", Do: func(context.Context, consumer.Call) (string, error) { return "", errors.New("called") }}
	b.router.Func("Charge", func(ctx context.Context, ev consumer.Event) error {
		_, err := consumer.Fence(ctx, p, ev, charge)
		return err
	})
	ev := b.event(50)
	ev.Type = "Charge"
	err := errors.Join(b.deliver(ev, consumer.DeadLettered), b.left(0, "replay 50"))
	if n := count(b.t, b.db, "SELECT count(*) FROM onceward.fences"); n != 0 {
		err = errors.Join(err, fmt.Errorf("%d fences are left", n))
	}
	return err
}

func mixedBatch(b *below) error {
	at := func(offset int64) consumer.Event {
		ev := b.event(offset)
		ev.Type, ev.AggregateID = "Moved", uuid.NewString()
		return ev
	}
	now, late, lateAgain, replay, ahead := at(100), at(101), at(102), at(49), at(103)
	now.Key = newEvent(b.t).Key
	lateAgain.Key, lateAgain.AggregateID = late.Key, late.AggregateID
	ahead.Key = keyAt(b.t, time.Now().AddDate(0, 0, 1))
	evs := []consumer.Event{now, late, lateAgain, replay, ahead}
	want := [][]consumer.Outcome{
		{consumer.Processed, consumer.Processed, consumer.Duplicate, consumer.DeadLettered, consumer.DeadLettered},
		{consumer.Duplicate, consumer.Duplicate, consumer.Duplicate, consumer.DeadLettered, consumer.DeadLettered},
	}
	for round, outcomes := range want {
		for i, d := range b.router.HandleBatch(b.t.Context(), evs) {
			if d.Err != nil || d.Outcome != outcomes[i] {
				return fmt.Errorf("round %d, event %d: %s, %w", round, i, d.Outcome, d.Err)
			}
		}
	}
	if len(b.seen) != 2 || b.seen[0].Late || !b.seen[1].Late {
		return fmt.Errorf("the handler got %+v", b.seen)
	}
	return b.left(2, "replay 49, from-future 103")
}

func future(b *below) error {
	ev := b.event(100)
	ev.Key = keyAt(b.t, time.Now().Add(6*time.Minute))
	alone := ev
	alone.Source = consumer.Source{}
	soon := b.event(101)
	soon.Key = keyAt(b.t, time.Now().Add(4*time.Minute))
	return errors.Join(b.deliver(ev, consumer.DeadLettered), b.deliver(alone, consumer.FromFuture), b.deliver(soon, consumer.Processed),
		b.left(1, "from-future 100"))
}

// arrivalEdge puts the claim of a copy where one window ago, and two windows
// ago, would have put it.
func arrivalEdge(b *below) error {
	ev := b.event(10)
	if err := errors.Join(b.deliver(ev, consumer.Processed), b.deliver(ev, consumer.Duplicate)); err != nil {
		return err
	}
	for n, want := range map[int]consumer.Outcome{1: consumer.Duplicate, 2: consumer.Processed} {
		ev := b.event(10)
		if err := b.deliver(ev, consumer.Processed); err != nil {
			return err
		}
		var now time.Time
		require.NoError(b.t, b.db.QueryRow(b.t.Context(), "SELECT now()").Scan(&now))
		ids := claims.IDs(ev.Key.UUID(), time.Hour, now)
		before := claims.IDs(ev.Key.UUID(), time.Hour, now.Add(-time.Duration(n)*time.Hour))
		exec(b.t, b.db, `UPDATE onceward.processed_events SET event_id = $2 WHERE event_id = $1`, ids[0], before[0])
		exec(b.t, b.db, `UPDATE onceward.processed_events SET event_id = $2 WHERE event_id = $1`, ids[1], before[1])
		claims := b.claims()
		ev.Source.Offset++ // a copy
		if err := b.deliver(ev, want); err != nil {
			return fmt.Errorf("%d windows later: %w", n, err)
		}
		if want != consumer.Duplicate {
			continue
		}
		batched := ev
		batched.Type = "Moved" // same content but for the type: the claim is found all the same
		if d := b.router.HandleBatch(b.t.Context(), []consumer.Event{batched}); d[0].Outcome != consumer.DeadLettered {
			return fmt.Errorf("in a batch: %+v", d)
		}
		if b.claims() != claims {
			return fmt.Errorf("duplicates left %d claims, there were %d", b.claims(), claims)
		}
	}
	return b.left(4, "mismatch 11")
}

func arrivalAtOnce(b *below) error { return b.atOnce(b.event(10), b.router, b.router) }

// twoFloors: a member that still has the floor of before claims an event under
// its own id while another takes it for late.
func twoFloors(b *below) error {
	if b.days == 30 {
		return nil // nobody can claim it by an old floor: there is no partition
	}
	var floor time.Time
	require.NoError(b.t, b.db.QueryRow(b.t.Context(), "SELECT floor FROM onceward.dedup_windows").Scan(&floor))
	exec(b.t, b.db, "UPDATE onceward.dedup_windows SET floor = floor - interval '5 days'")
	old := b.member()
	exec(b.t, b.db, "UPDATE onceward.dedup_windows SET floor = $1", floor)
	return b.atOnce(b.event(100), old, b.member())
}

func knownBelow(b *below) error {
	if b.days == 30 && b.defect == nil {
		return nil // its claim is gone with its partition
	}
	exec(b.t, b.db, "UPDATE onceward.dedup_windows SET floor = floor - interval '5 days'")
	ev := b.event(10)
	ev.Key = keyAt(b.t, time.Now().AddDate(0, 0, -2))
	b.router = b.member()
	err := b.deliver(ev, consumer.Processed)
	exec(b.t, b.db, "UPDATE onceward.dedup_windows SET floor = floor + interval '5 days'")
	b.router = b.member()
	return errors.Join(err, b.deliver(ev, consumer.Duplicate), b.left(1, ""))
}
