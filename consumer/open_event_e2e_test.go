//go:build e2e

package consumer_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/record"
)

// discard is what an operator does about the letter at an offset.
func (l *till) discard(ctx context.Context, offset int64) {
	l.t.Helper()
	var generation int32
	require.NoError(l.t, l.db.QueryRow(ctx, "SELECT generation FROM onceward.consumer_dead_letters WHERE kafka_offset = $1", offset).Scan(&generation))
	rows, err := consumerdb.New(l.db).DiscardGroupLetters(ctx, consumerdb.DiscardGroupLettersParams{
		ConsumerGroups: []string{"billing"}, Topics: []string{"orders"}, KafkaPartitions: []int32{0}, KafkaOffsets: []int64{offset}, Generations: []int32{generation},
		Reason: "test", Keep: pgtype.Interval{Days: 30, Valid: true},
	})
	require.NoError(l.t, err)
	require.Len(l.t, rows, 1)
}

// redrive asks for the letter at an offset to be handled again, and handles it.
func (l *till) redrive(offset int64) {
	l.t.Helper()
	exec(l.t, l.db, "UPDATE onceward.consumer_dead_letters SET state = 'requested', generation = generation + 1 WHERE kafka_offset = $1", offset)
	_, err := l.router.Redrive(l.t.Context(), 10)
	require.NoError(l.t, err)
}

// open counts the effects that nothing has ended.
func (l *till) open() int {
	return count(l.t, l.db, "SELECT count(*) FROM onceward.fences WHERE expires_at IS NULL")
}

// retire lets retention find all that it may delete.
func (l *till) retire() {
	l.t.Helper()
	exec(l.t, l.db, "UPDATE onceward.fences SET expires_at = now() - interval '1 day' WHERE expires_at IS NOT NULL")
	past := time.Now()
	_, err := consumerdb.New(l.db).DeleteFences(l.t.Context(), consumerdb.DeleteFencesParams{At: &past, ConsumerGroup: "billing", Below: uuid.Max, RowLimit: 100})
	require.NoError(l.t, err)
}

// late makes the event one that is kept as a letter with the reason late.
func (l *till) late() {
	l.t.Helper()
	exec(l.t, l.db, "DELETE FROM onceward.dedup_windows") // else what is registered counts
	var err error
	l.processor, err = consumer.New(l.t.Context(), consumer.Config{Group: "billing", DB: l.db, Retry: consumer.Retry{MaxAttempts: 3},
		Classes: []consumer.Class{{Pattern: "*", Window: time.Hour, Late: consumer.LateDeadLetter}}})
	require.NoError(l.t, err)
	l.router = consumer.NewRouter(l.processor)
	l.router.Func("Paid", l.handle)
	l.event.Key = keyAt(l.t, time.Now().Add(-2*time.Hour))
	l.fromTopic()
	exec(l.t, l.db, "UPDATE onceward.dedup_windows SET floor = now() - interval '1 hour', raised_at = now() - interval '1 day'")
	consumer.AgeFloors(l.processor, time.Minute)
	require.NoError(l.t, deliver(l.t.Context(), l.router, l.event, consumer.DeadLettered))
}

// TestALateLetterKeepsItsOpenEvent: the redrive of one fails behind its first
// effect. Nobody but an operator decides what becomes of the event.
func TestALateLetterKeepsItsOpenEvent(t *testing.T) {
	l := newTill(t, 3)
	l.late()
	l.fails["mail"] = errProvider
	l.redrive(7)
	require.Equal(t, 1, count(t, l.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE state = 'open' AND reason = 'late'"))
	delete(l.fails, "mail")
	l.longAgo()
	require.NoError(t, l.recover(l.router, 0))
	require.Empty(t, l.mail.calls)
	require.NotZero(t, l.open())

	l.discard(t.Context(), 7)
	require.Zero(t, l.open(), "what an operator gives up is open no more")
	require.NoError(t, l.recover(l.router, 0))
	require.Empty(t, l.mail.calls)
}

// reprocess delivers the event as a replay that is for this group alone.
func (l *till) reprocess(want consumer.Outcome) {
	l.t.Helper()
	replay := l.event
	replay.Source.Offset = 100
	replay.ReplayID, replay.ReplayMode, replay.ReplayGroup = newEvent(l.t).Key.UUID(), record.ReplayReprocess, "billing"
	replay.RecordHeaders = slices.Concat(replay.RecordHeaders, []consumer.Header{
		{Name: record.HeaderReplayID, Value: []byte(replay.ReplayID.String())}, {Name: record.HeaderReplayMode, Value: []byte(replay.ReplayMode)},
		{Name: record.HeaderReplayGroup, Value: []byte(replay.ReplayGroup)},
	})
	l.expire()
	require.NoError(l.t, deliver(l.t.Context(), l.router, replay, want))
}

// TestAReprocessLeavesTheEffectsOfALetter: the letter's redrive needs them, however
// long it takes.
func TestAReprocessLeavesTheEffectsOfALetter(t *testing.T) {
	for name, fails := range map[string]bool{"applied": false, "given up, and discarded": true} {
		l := newTill(t, 1)
		l.fails["mail"] = errProvider
		require.NoError(t, deliver(t.Context(), l.router, l.event, consumer.DeadLettered))
		if fails {
			l.reprocess(consumer.DeadLettered)
			l.discard(t.Context(), 100)
			delete(l.fails, "mail")
		} else {
			delete(l.fails, "mail")
			l.reprocess(consumer.Processed)
		}
		require.Equal(t, 3, l.open(), name)
		l.retire()
		l.expire()
		l.redrive(7)
		require.Zero(t, l.open(), name)
		require.Len(t, l.provider.calls, 1, name)
		require.Len(t, l.mail.calls, 1, name)
		require.Equal(t, 2, l.effects(), name)
	}
}

// TestALetterKeepsEffectsThatHaveEnded: also those of an event that was applied,
// for the letter of its reprocessing replay.
func TestALetterKeepsEffectsThatHaveEnded(t *testing.T) {
	l := newTill(t, 1)
	require.NoError(t, deliver(t.Context(), l.router, l.event, consumer.Processed))
	l.fails["start"] = errProvider
	l.reprocess(consumer.DeadLettered)
	l.retire()
	require.Equal(t, 3, count(t, l.db, "SELECT count(*) FROM onceward.fences"))
	l.discard(t.Context(), 100)
	l.retire()
	require.Zero(t, count(t, l.db, "SELECT count(*) FROM onceward.fences"))
}

// TestAReprocessEndsItsEffects: those of its own letter, when that is redriven.
func TestAReprocessEndsItsEffects(t *testing.T) {
	l := newTill(t, 1)
	l.fails["mail"] = errProvider
	l.reprocess(consumer.DeadLettered)
	delete(l.fails, "mail")
	l.expire()
	l.redrive(100)
	require.Zero(t, l.open())
	require.Len(t, l.mail.calls, 1)
}

// TestADiscardDuringARedriveEndsTheEvent: the effects that the redrive makes behind
// it are those of an event that was given up.
func TestADiscardDuringARedriveEndsTheEvent(t *testing.T) {
	l := newTill(t, 1)
	l.fails["charge"] = consumer.DeadLetter(errProvider)
	require.NoError(t, deliver(t.Context(), l.router, l.event, consumer.DeadLettered))
	delete(l.fails, "charge")
	l.provider.after = func(ctx context.Context, _ consumer.Call) error {
		l.discard(ctx, 7)
		return nil
	}
	l.redrive(7)
	l.provider.after = nil
	require.NotZero(t, l.open())
	l.longAgo()
	require.NoError(t, l.recover(l.router, 1))
	require.Zero(t, l.open())
	require.Len(t, l.mail.calls, 1)
}

// TestADiscardDuringARedriveOfALetterWithoutAClaim: nor does the recovery job go on with
// the effects that the redrive has begun behind it where only the letter says that the
// event was given up.
func TestADiscardDuringARedriveOfALetterWithoutAClaim(t *testing.T) {
	for _, reason := range []string{"from-future", "malformed", "parked", "late"} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			l := newTill(t, 1)
			if reason == "late" {
				l.late()
			} else {
				l.fails["start"] = consumer.DeadLetter(errProvider)
				require.NoError(t, deliver(t.Context(), l.router, l.event, consumer.DeadLettered))
				delete(l.fails, "start")
				exec(t, l.db, "UPDATE onceward.consumer_dead_letters SET reason = $1", reason)
				exec(t, l.db, "DELETE FROM onceward.processed_events")
			}
			l.provider.after = func(ctx context.Context, _ consumer.Call) error {
				l.discard(ctx, 7)
				return nil
			}
			l.fails["mail"] = errProvider
			l.redrive(7)
			l.provider.after = nil
			delete(l.fails, "mail")
			require.NotZero(t, l.open())
			l.longAgo()
			if reason == "parked" {
				parking, err := consumer.New(t.Context(), consumer.Config{Group: "billing", DB: l.db, Retry: consumer.Retry{OnLetter: consumer.LetterPark}})
				require.NoError(t, err)
				r := consumer.NewRouter(parking)
				r.Func("Paid", l.handle)
				require.NoError(t, deliver(t.Context(), r, l.event, consumer.DeadLettered))
			}
			require.NoError(t, l.recover(l.router, 1))
			require.NoError(t, l.recover(l.router, 0))
			require.Zero(t, l.open())
			require.Empty(t, l.mail.charges)
			if reason == "late" { // else a delivery applies it, for as long as it is above the floor
				require.NoError(t, deliver(t.Context(), l.router, l.event, consumer.DeadLettered))
				require.Empty(t, l.mail.charges)
			}
		})
	}
}

// TestTheLastWordOnAnEffectEndsTheEvent: the handler of a newer version does not
// call an effect any more, and an operator says what became of it.
func TestTheLastWordOnAnEffectEndsTheEvent(t *testing.T) {
	for _, effect := range []string{"charge", "mail"} { // the one that keeps the event, and a later one
		for _, made := range []bool{true, false} {
			l := newTill(t, -1)
			l.fails[effect] = errProvider
			_, err := l.router.Handle(t.Context(), l.event)
			require.ErrorIs(t, err, errProvider)
			newer := consumer.NewRouter(l.processor)
			newer.Func("Paid", func(context.Context, consumer.Event) error { return consumer.ErrNothingToDo })
			require.NoError(t, deliver(t.Context(), newer, l.event, consumer.Processed))
			require.Contains(t, l.stuck(), "did not call this fence")
			require.Equal(t, 1, l.open())

			l.expire()
			l.saysOf(effect, made)
			require.Zero(t, l.open(), effect)
			l.longAgo()
			require.NoError(t, l.recover(newer, 0))
			require.NoError(t, deliver(t.Context(), newer, l.event, consumer.Duplicate))
			forgotten, err := consumerdb.New(l.db).ForgetClaims(t.Context(), consumerdb.ForgetClaimsParams{
				ConsumerGroup: "billing", Ids: []uuid.UUID{l.event.Key.UUID()}, EventID: l.event.Key.UUID(), Target: "x", Reason: "y",
			})
			require.NoError(t, err)
			require.Len(t, forgotten, 1, effect)
		}
	}
}

// TestAnEffectOfAWaitingLetterStaysStuck: that it was not made changes nothing for
// the recovery job, and it is left to an operator until the letter is redriven.
func TestAnEffectOfAWaitingLetterStaysStuck(t *testing.T) {
	l := newTill(t, 1)
	l.fails["charge"] = consumer.DeadLetter(errProvider)
	require.NoError(t, deliver(t.Context(), l.router, l.event, consumer.DeadLettered))
	delete(l.fails, "charge")
	l.longAgo()
	l.saysOf("charge", false)
	l.longAgo()
	require.NoError(t, l.recover(l.router, 0))
	require.NoError(t, deliver(t.Context(), l.router, l.event, consumer.DeadLettered))
	require.Empty(t, l.provider.calls)
	require.NotEmpty(t, l.stuck())
	l.redrive(7)
	l.once()
	require.Empty(t, l.stuck())
}

// saysOf is `outboxctl fences reconcile`.
func (l *till) saysOf(effect string, made bool) {
	l.t.Helper()
	var epoch int64
	require.NoError(l.t, l.db.QueryRow(l.t.Context(), "SELECT epoch FROM onceward.fences WHERE name = $1", effect).Scan(&epoch))
	id, q, keep := l.event.Key.UUID(), consumerdb.New(l.db), pgtype.Interval{Days: 30, Valid: true}
	var settled int64
	var err error
	if made {
		var row consumerdb.FenceMadeRow
		row, err = q.FenceMade(l.t.Context(), consumerdb.FenceMadeParams{EventID: id, ConsumerGroup: "billing", Name: effect, Epoch: epoch, Keep: keep, Target: "x", Reason: "y"})
		settled = row.Settled
	} else {
		settled, err = q.FenceNotMade(l.t.Context(), consumerdb.FenceNotMadeParams{EventID: id, ConsumerGroup: "billing", Name: effect, Epoch: epoch, Keep: keep, Target: "x", Reason: "y"})
	}
	require.NoError(l.t, err)
	require.Equal(l.t, int64(1), settled)
}

// TestOpenEventWithoutItsHandler: an open event whose handler is gone ends by one that
// gives it up, or finds nothing to do; the recovery job gives it to that.
func TestOpenEventWithoutItsHandler(t *testing.T) {
	for name, c := range map[string]struct {
		says    error
		letters int
	}{"given up": {consumer.DeadLetter(errBroken), 1}, "nothing to do": {consumer.ErrNothingToDo, 0}} {
		t.Run(name, func(t *testing.T) {
			l := newTill(t, 3)
			l.fails["book"] = errProvider
			_, err := l.router.Handle(t.Context(), l.event)
			require.Error(t, err)
			require.Equal(t, 1, l.open())
			l.longAgo()

			other := consumer.NewRouter(l.processor) // the type has no Func handler any more
			other.Tx("Paid", effect("billing"))
			require.Zero(t, must(other.RecoverFences(t.Context(), 10)))
			last := consumer.NewRouter(l.processor)
			last.Func("Paid", func(context.Context, consumer.Event) error { return c.says })
			_, err = last.RecoverFences(t.Context(), 10)
			require.NoError(t, err)
			require.Equal(t, c.letters, l.letters())
			require.Equal(t, c.letters, l.open(), "it waits with its letter")
			if c.letters > 0 {
				l.discard(t.Context(), l.event.Source.Offset)
			}
			require.Zero(t, l.open())
			require.Equal(t, 1, l.effects(), "what was charged stays; nothing else was made")
		})
	}
}
