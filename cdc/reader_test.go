package cdc

import (
	"context"
	"encoding/binary"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

func wal(messages ...[]byte) [][]byte {
	var out [][]byte
	for _, m := range messages {
		out = append(out, xlogData(m))
	}
	return out
}

func TestReaderDeliversAndConfirms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, nil)
		defer r.stop(t)
		r.server.stream(wal(relationMessage(outboxOID, "outbox", outboxColumns()))...)
		r.server.stream(wal(transactionOf(0x1000, 7, newTestRow(testID, 7, "x"))...)...)
		synctest.Wait()
		items, err := r.Next(t.Context(), nil)
		require.NoError(t, err)
		require.Len(t, items, 2)
		<-time.After(3 * time.Second)
		for _, s := range r.server.drain() {
			require.EqualValues(t, 0x900, s.WALFlushPosition, "read is not confirmed")
			require.EqualValues(t, 0x900, s.WALApplyPosition)
		}
		r.Confirm(0x1008)
		r.Confirm(0x1000) // lower: ignored
		<-time.After(2 * time.Second)
		all := r.server.drain()
		require.EqualValues(t, 0x1008, all[len(all)-1].WALFlushPosition)
	})
}

// A transaction after a silence is read at once, and so is the next; under a flow the reader
// rests, so that many are read together, and longer where it is late.
func TestReaderRestsUnderAFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, nil)
		defer r.stop(t)
		synctest.Wait()
		r.server.stream(wal(relationMessage(outboxOID, "outbox", outboxColumns()))...)
		commit := pglogrepl.LSN(0x1000)
		transaction := func(late time.Duration) (data [][]byte) {
			commit += 0x100
			messages := transactionOf(commit, 8, newTestRow(testID, 8, "x"))
			at := time.Now().Add(-late).UnixMicro() - postgresEpoch
			binary.BigEndian.PutUint64(messages[0][1+8:], uint64(at))
			return wal(messages...)
		}
		var batch []Item
		read := func(late time.Duration, transactions int, after time.Duration) {
			began := time.Now()
			for range transactions {
				for _, m := range transaction(late) {
					r.server.backend.Send(&pgproto3.CopyData{Data: m})
				}
			}
			go func() { _ = r.server.backend.Flush() }()
			for items := 0; items < 2*transactions; items += len(batch) { // of each a row, and its end
				var err error
				batch, err = r.Next(t.Context(), batch)
				require.NoError(t, err)
			}
			require.Equal(t, after, time.Since(began), "late by %s", late)
			synctest.Wait()
		}
		for late, rest := range map[time.Duration]time.Duration{
			0: restInterval, 40 * time.Millisecond: restInterval, 160 * time.Millisecond: 10 * time.Millisecond,
			time.Hour: restLateInterval, -time.Hour: restInterval, // clocks differ
		} {
			<-time.After(time.Second)
			read(late, 1, 0)
			read(late, 1, 0)
			read(0, 3, rest) // it has caught up
			read(0, 1, restInterval)
		}
		<-time.After(time.Second)
		for range 100 { // others write, and a server that is about to sleep says how far it is
			commit += 0x100
			r.server.stream(keepaliveData(commit, false))
			<-time.After(2 * time.Millisecond)
		}
		began := time.Now()
		for _, m := range transaction(0) {
			r.server.backend.Send(&pgproto3.CopyData{Data: m})
		}
		go func() { _ = r.server.backend.Flush() }()
		for arrived := false; !arrived; {
			var err error
			batch, err = r.Next(t.Context(), batch)
			require.NoError(t, err)
			arrived = slices.ContainsFunc(batch, func(it Item) bool { return it.Row != nil })
		}
		require.LessOrEqual(t, time.Since(began), restInterval, "what was read long ago makes nothing late")
	})
}

// What the server sent at once is taken at once, though it is decoded one by one.
func TestWhatComesTogetherIsTakenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, nil)
		defer r.stop(t)
		synctest.Wait()
		r.server.stream(wal(relationMessage(outboxOID, "outbox", outboxColumns()))...)
		<-time.After(3 * time.Second / 2) // between two status updates: each wakes who waits
		for i := range 100 {
			for _, m := range wal(transactionOf(pglogrepl.LSN(0x1000+0x100*i), 8, newTestRow(testID, 8, "x"))...) {
				r.server.backend.Send(&pgproto3.CopyData{Data: m})
			}
		}
		taken := make(chan []Item, 1)
		go func() {
			batch, _ := r.Next(t.Context(), nil)
			taken <- batch
		}()
		synctest.Wait() // it waits: who comes later takes what there is
		require.NoError(t, r.server.backend.Flush())
		require.Len(t, <-taken, 200)
	})
}

// A sink that stalls for an hour costs neither memory nor the session: the
// reader stops reading, and status updates go on with an unchanged position.
func TestReaderKeepsTheSessionWhileTheQueueIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, func(c *Config) { c.QueueBytes, c.SilenceLimit = 1<<16, 2*time.Minute })
		defer r.stop(t)
		go func() {
			r.server.stream(wal(relationMessage(outboxOID, "outbox", outboxColumns()), beginMessage(0x1000, 7))...)
			for range 1000 {
				r.server.stream(wal(insertMessage(outboxOID, outboxColumns(), newTestRow(testID, 7, string(make([]byte, 1000)))))...)
			}
			r.server.stream(wal(commitMessage(0x1000, 0x1008))...)
		}()
		<-time.After(time.Hour)
		require.LessOrEqual(t, r.QueueBytes(), 1<<16)
		statuses := r.server.drain()
		require.GreaterOrEqual(t, len(statuses), 3500, "one a second")
		for _, s := range statuses {
			require.EqualValues(t, 0x900, s.WALFlushPosition)
		}
		var batch []Item
		events, commits := 0, 0
		for commits == 0 {
			var err error
			batch, err = r.Next(t.Context(), batch)
			require.NoError(t, err)
			for _, it := range batch {
				if it.Kind == KindEvent {
					events++
				} else {
					commits++
				}
			}
		}
		require.Equal(t, 1000, events)
	})
}

func TestReaderGivesUpOnASilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, func(c *Config) { c.SilenceLimit = 2 * time.Minute })
		began := time.Now()
		require.ErrorIs(t, <-r.ended, ErrSilent)
		require.InDelta(t, 120, time.Since(began).Seconds(), 2)
		_, err := r.Next(t.Context(), nil)
		require.ErrorIs(t, err, ErrSilent)
		_ = r.Close(t.Context())
	})
}

// An idle server says nothing as long as it hears from us: quiet is not dead.
func TestReaderAsksAQuietServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWalsender(t)
		w.answers = true
		r := startOn(t, w, func(c *Config) { c.SilenceLimit = 2 * time.Minute })
		<-time.After(time.Hour)
		r.stop(t)
	})
}

func TestReaderAnswersARequestAndReportsTheIdleEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, nil)
		defer r.stop(t)
		synctest.Wait()
		r.server.drain()
		r.server.stream(keepaliveData(0x2000, true))
		synctest.Wait()
		require.Len(t, r.server.drain(), 1, "at once")
		items, err := r.Next(t.Context(), nil)
		require.NoError(t, err)
		require.Equal(t, []Item{{Kind: KindIdle, End: 0x2000}}, items)
	})
}

func TestReaderEndsWithTheServersReason(t *testing.T) {
	for name, m := range map[string]pgproto3.BackendMessage{
		"error":    &pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P01", Message: "terminating connection due to administrator command"},
		"shutdown": &pgproto3.CopyDone{},
		"garbage":  &pgproto3.CopyData{Data: []byte{'?'}},
		"empty":    &pgproto3.CopyData{},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, nil)
				r.server.send(m)
				require.Error(t, <-r.ended)
				_ = r.Close(t.Context())
			})
		})
	}
}

// A row of a table that is not the relay's ends the reader before its transaction
// does, so that the slot stays before it.
func TestReaderStopsAtAForeignRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leaf := []column{{"x", 25}}
		r := start(t, nil)
		r.server.stream(wal(relationMessage(1, "outbox_20261122", leaf), beginMessage(0x1000, 7), insertMessage(1, leaf, testRow{"x": nil}))...)
		var foreign *ForeignRowError
		require.ErrorAs(t, <-r.ended, &foreign)
		require.Equal(t, "onceward.outbox_20261122", foreign.Table)
		_ = r.Close(t.Context())
	})
}

func TestReaderStopsAtOnceAndTellsTheLastPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, nil)
		synctest.Wait()
		began := time.Now()
		r.cancel()
		require.NoError(t, <-r.ended)
		require.Zero(t, time.Since(began))
		_, err := r.Next(t.Context(), nil)
		require.ErrorIs(t, err, io.EOF)
		r.server.drain()
		r.Confirm(0x3000)
		_ = r.Close(t.Context())
		synctest.Wait()
		statuses := r.server.drain()
		require.Len(t, statuses, 1)
		require.EqualValues(t, 0x3000, statuses[0].WALFlushPosition)
	})
}

func TestOpenNamesTheSlotInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWalsender(t)
		w.refuse = &pgproto3.ErrorResponse{Severity: "ERROR", Code: "55006", Message: `replication slot "onceward_shop" is active for PID 42`}
		_, err := Open(t.Context(), w.config())
		require.ErrorIs(t, err, ErrSlotActive)
		require.ErrorContains(t, err, "PID 42")
	})
}

func TestReaderNeedsAPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWalsender(t)
		r, err := Open(t.Context(), w.config())
		require.NoError(t, err)
		require.ErrorContains(t, r.Run(t.Context()), "Resume")
		_ = r.Close(t.Context())
	})
}

func TestConfigNamesFieldAndValue(t *testing.T) {
	good := Config{DSN: "host=x", Slot: "a", Publication: "b"}
	for want, tweak := range map[string]func(*Config){
		"DSN is empty":             func(c *Config) { c.DSN = "" },
		`Slot "a b"`:               func(c *Config) { c.Slot = "a b" },
		`Publication "p'x"`:        func(c *Config) { c.Publication = "p'x" },
		"QueueBytes 5":             func(c *Config) { c.QueueBytes = 5 },
		"may not be negative":      func(c *Config) { c.SilenceLimit = -1 },
		`Slot ""`:                  func(c *Config) { c.Slot = "" },
		`Publication "p) (x 'y'"`:  func(c *Config) { c.Publication = "p) (x 'y'" },
		`StatusInterval -1ns`:      func(c *Config) { c.StatusInterval = -1 },
		`Slot "UPPER"`:             func(c *Config) { c.Slot = "UPPER" },
		`Publication "onceward-x"`: func(c *Config) { c.Publication = "onceward-x" },
	} {
		c := good
		tweak(&c)
		_, err := c.withDefaults()
		require.ErrorContains(t, err, want)
	}
	c, err := good.withDefaults()
	require.NoError(t, err)
	require.Equal(t, defaultQueueBytes, c.QueueBytes)
	require.Equal(t, DefaultStatusInterval, c.StatusInterval)
}

// What is lent comes off the queue, down to a quarter of it, and comes back at once.
func TestAQueueLends(t *testing.T) {
	const limit = 1 << 16
	q := newQueue(limit)
	fill := func() int {
		for q.push(Item{Kind: KindCommit}) {
		}
		return q.held()
	}
	item := (&Item{Kind: KindCommit}).size()
	q.lend(limit / 2)
	require.InDelta(t, limit/2, fill(), float64(item))
	q.lend(10 * limit)
	require.False(t, q.push(Item{Kind: KindCommit}), "less than is in it")
	q.lend(0)
	<-q.space
	require.InDelta(t, limit, fill(), float64(item))
	batch, err := q.take(t.Context(), nil)
	require.NoError(t, err)
	q.lend(10 * limit)
	_, err = q.take(timedOut(t), batch)
	require.Error(t, err)
	require.InDelta(t, limit/4, fill(), float64(item))
}

// timedOut is a context that is over.
func timedOut(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestQueueAcceptsOneHugeItemAlone(t *testing.T) {
	q := newQueue(1 << 16)
	huge := Item{Kind: KindCommit, End: pglogrepl.LSN(1)}
	for q.push(huge) {
	}
	require.LessOrEqual(t, q.held(), 1<<16)
	batch, err := q.take(context.Background(), nil)
	require.NoError(t, err)
	require.False(t, q.push(huge), "what the caller holds still counts")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = q.take(ctx, batch)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, q.held())
}

// A transaction is behind while its first row, which may be huge, is on its way.
func TestReaderKnowsTheTransactionThatItReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, nil)
		defer r.stop(t)
		require.Zero(t, r.Reading())
		r.server.stream(wal(relationMessage(outboxOID, "outbox", outboxColumns()), beginMessage(0x1000, 7))...)
		synctest.Wait()
		require.Equal(t, serverTime(0).Local(), r.Reading(), "no row of it has come")
		r.server.stream(wal(insertMessage(outboxOID, outboxColumns(), newTestRow(testID, 7, "x")), commitMessage(0x1000, 0x1008))...)
		synctest.Wait()
		require.Zero(t, r.Reading())
	})
}

func TestStreamReadsNothingOfATransactionThatHasEnded(t *testing.T) {
	s := stream{skip: 0x2008}
	_, _, err := s.change(msgBegin, beginMessage(0x2000, 8)[1:])
	require.NoError(t, err)
	require.Zero(t, s.reading())
}
