package stream

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/letters"
	"github.com/onceward/onceward/relay/internal/state"
)

// quiet is a ground on which nothing fails.
func quiet() *ground { return &ground{missing: map[string]bool{}, poison: map[uuid.UUID]bool{}} }

// trickle delivers one batch after the other, each after a time.
type trickle struct {
	batches [][]cdc.Item
	every   time.Duration
	next    time.Time
}

func (s *trickle) Next(ctx context.Context, _ []cdc.Item) ([]cdc.Item, error) {
	if len(s.batches) == 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if s.next.IsZero() {
		s.next = time.Now().Add(s.every)
	}
	select {
	case <-time.After(time.Until(s.next)):
		b := s.batches[0]
		s.batches, s.next = s.batches[1:], s.next.Add(s.every)
		return b, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// running pumps a source until the function returns.
func running(t *testing.T, p *Pump, source Source, during func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, source) }()
	during()
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// pass lets time pass in a bubble, and everything that it brings come to rest.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func single(commit uint64) []cdc.Item {
	return []cdc.Item{typed(commit, "order"), commitAt(lsn(commit))}
}

func TestALoneEventIsCommittedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := quiet()
		p, m, _ := g.session(t)
		running(t, p, &trickle{every: time.Second, batches: [][]cdc.Item{single(200), single(300)}}, func() {
			pass(1001 * time.Millisecond)
			visible, _, _ := g.seen()
			require.Equal(t, 1, visible)
			pass(time.Second)
			visible, _, _ = g.seen()
			require.Equal(t, 2, visible)
			now, err := m.status()
			require.NoError(t, err)
			require.EqualValues(t, 308, now.Position)
			require.Zero(t, now.InFlight)
		})
	})
}

func TestThereIsOneTransactionPerInterval(t *testing.T) {
	for name, poison := range map[string]bool{"of events": false, "of what was parked": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := quiet()
				p, m, _ := g.session(t)
				m.MaxBytes = 1 << 30
				var batches [][]cdc.Item
				for i := range uint64(1000) {
					batches = append(batches, single(200+20*i))
					g.poison[batches[i][0].Row.ID] = poison
				}
				running(t, p, &trickle{every: time.Millisecond, batches: batches}, func() {
					pass(1200 * time.Millisecond)
					visible, letters, _ := g.seen()
					require.Equal(t, 1000, visible+letters)
					n := tallyOf(p).transactions
					require.GreaterOrEqual(t, n, 10)
					require.LessOrEqual(t, n, 12)
				})
			})
		})
	}
}

// A relay that is behind grows its transactions, to a quarter of that and to the limit,
// and goes back when it has caught up.
func TestTransactionsGrowWhileTheRelayIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := quiet()
		p, m, _ := g.session(t)
		m.MaxBytes, m.Interval, m.Longest = 1<<30, 100*time.Millisecond, 400*time.Millisecond
		commit := uint64(200)
		transactions := func(behind time.Duration) int {
			before := tallyOf(p).transactions
			for range 1200 {
				batch := single(commit)
				commit += 20
				batch[0].CommitTime = time.Now().Add(-behind)
				require.NoError(t, p.take(t.Context(), batch))
				require.NoError(t, p.turn(t.Context(), false))
				<-time.After(time.Millisecond)
			}
			require.NoError(t, p.Flush(t.Context()))
			return tallyOf(p).transactions - before
		}
		require.Equal(t, 12, transactions(0))
		require.Equal(t, 12, transactions(300*time.Millisecond))
		require.Equal(t, 5, transactions(time.Second), "of 250 ms")
		require.Equal(t, 3, transactions(time.Hour), "of 400 ms")
		require.Equal(t, 12, transactions(-time.Hour), "a clock that goes wrong")
	})
}

// An event that comes while a commit is under way is visible an interval later, as are others, though the next
// commit takes its time, too; but after a commit that is slow there is half an interval for events, whether the
// stream pauses or not.
func TestATransactionIsVisibleAnIntervalBehindTheOneBefore(t *testing.T) {
	for name, c := range map[string]struct {
		commit time.Duration
		want   int // in two seconds
	}{"a commit takes a part of it": {20 * time.Millisecond, 25}, "and more of it than is left for events": {150 * time.Millisecond, 10}} {
		for _, every := range []time.Duration{time.Millisecond, 5 * time.Millisecond} {
			t.Run(name+", events each "+every.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := quiet()
					p, m, _ := g.session(t)
					m.MaxBytes, m.Interval, m.Longest = 1<<30, 100*time.Millisecond, 400*time.Millisecond
					m.Tick = func(context.Context) (int64, error) {
						<-time.After(c.commit)
						return 1, nil
					}
					var batches [][]cdc.Item
					for i := range uint64(3 * time.Second / every) {
						batches = append(batches, single(200+20*i))
					}
					running(t, p, &trickle{every: every, batches: batches}, func() {
						pass(2 * time.Second)
						counts := tallyOf(p)
						counts.mu.Lock() // a commit may be under way
						defer counts.mu.Unlock()
						require.InDelta(t, c.want, counts.transactions, 1)
					})
				})
			})
		}
	}
}

// slowLedger has each record wait for the one before, as a topic does whose limit is
// below a batch.
type slowLedger struct {
	*fakeLedger
	longest time.Duration // that a transaction was open
}

func (l *slowLedger) Publish(ctx context.Context, ev publisher.Event) error {
	<-time.After(50 * time.Millisecond)
	return l.fakeLedger.Publish(ctx, ev)
}

func (l *slowLedger) Commit(ctx context.Context, pos publisher.Position) error {
	if len(l.open) > 0 {
		l.longest = max(l.longest, time.Since(l.at))
	}
	return l.fakeLedger.Commit(ctx, pos)
}

// A page of what waits, and one of letters, is no reason to be late either: the
// coordinator would abort the transaction, and the next session begin the same page.
func TestATransactionIsCommittedInTheMiddleOfAPage(t *testing.T) {
	const n = 300
	for name, during := range map[string]func(*testing.T, *ground, *Pump){
		"of a release": func(t *testing.T, g *ground, p *Pump) {
			g.missing["order"], g.table.most = true, n
			for i := range uint64(n) {
				require.NoError(t, p.take(t.Context(), single(200+20*i)))
			}
			delete(g.missing, "order")
			releaseAll(t, p)
		},
		"of letters": func(t *testing.T, _ *ground, p *Pump) {
			var page []*letters.Letter
			for i := range uint32(n) {
				page = append(page, letterOf(i, true))
			}
			control, released := retryOf(page...)
			p.letters.store = &fakeLetters{letters: map[uuid.UUID]letters.Dead{}, acted: func(*cdc.Control) pages { return released }}
			require.NoError(t, p.take(t.Context(), []cdc.Item{control, commitAt(300)}))
			require.NoError(t, p.Flush(t.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := quiet()
				p, m, _ := g.session(t)
				m.MaxBytes = 1 << 30
				l := &slowLedger{fakeLedger: p.sink.(*fakeLedger)}
				p.sink, m.tx = l, l
				during(t, g, p)
				require.Len(t, g.visible, n)
				require.LessOrEqual(t, l.longest, 64*50*time.Millisecond+m.Interval)
			})
		})
	}
}

func TestATransactionIsCommittedWhenItIsLarge(t *testing.T) {
	g := quiet()
	p, m, _ := g.session(t)
	m.MaxBytes = 6400 // the fake counts 100 per event
	m.Interval = time.Hour
	var batch []cdc.Item
	for range 200 {
		batch = append(batch, typed(200, "order"))
	}
	require.NoError(t, p.take(t.Context(), batch))
	require.Len(t, g.visible, 192, "in the middle of a transaction of PostgreSQL, which the checkpoint says")
	c, err := ledger.Parse(g.saved.Order, g.saved.Meta)
	require.NoError(t, err)
	require.Equal(t, ledger.Place{Commit: 200, Ordinal: 192}, c.UpTo)
	require.EqualValues(t, 100, c.Order)
}

func TestTheTickIsDurableBeforeTheCheckpointThatCarriesIt(t *testing.T) {
	g := quiet()
	p, m, _ := g.session(t)
	raised := int64(0)
	m.Tick = func(context.Context) (int64, error) { raised = 42; return raised, nil }
	p.reading.counted = func() int64 { return 7 }
	m.Bound = ledger.Checkpoint{Timeline: 3, Session: 5}
	require.NoError(t, p.take(t.Context(), single(200)))
	require.NoError(t, p.Flush(t.Context()))
	c, err := ledger.Parse(g.saved.Order, g.saved.Meta)
	require.NoError(t, err)
	require.Equal(t, []int64{42, 7, 3, 5}, []int64{c.Tick, c.Letters, int64(c.Timeline), c.Session})
	m.Tick = func(context.Context) (int64, error) { return 0, state.ErrFenced }
	require.NoError(t, p.take(t.Context(), single(300)))
	require.ErrorIs(t, p.Flush(t.Context()), state.ErrFenced)
	require.Len(t, g.visible, 1, "who lost the slot commits nothing")
}

func TestAnIdlePositionIsCommittedSeldom(t *testing.T) {
	for name, idle := range map[string]func(end uint64) []cdc.Item{
		"ends of the log":               func(end uint64) []cdc.Item { return []cdc.Item{{Kind: cdc.KindIdle, End: lsn(end)}} },
		"transactions without an event": func(end uint64) []cdc.Item { return []cdc.Item{commitAt(lsn(end - 8))} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := quiet()
				p, _, _ := g.session(t)
				running(t, p, &trickle{every: time.Minute, batches: [][]cdc.Item{idle(200), idle(300), idle(100 + 2*ledger.IdleBytes)}}, func() {
					pass(2*time.Minute + time.Second)
					_, _, saved := g.seen()
					require.Zero(t, saved, "a little foreign log is not worth a transaction")
					pass(time.Minute)
					_, _, saved = g.seen()
					require.EqualValues(t, 100+2*ledger.IdleBytes, saved)
					pass(6 * time.Hour)
					n := tallyOf(p).transactions
					pass(7 * 24 * time.Hour)
					require.InDelta(t, n+7, tallyOf(p).transactions, 1, "Kafka does not forget the offset")
				})
			})
		})
	}
}

// What the progress says of an open transaction is not yet true.
func TestNothingHasEndedBeforeItsCommit(t *testing.T) {
	g := quiet()
	p, m, _ := g.session(t)
	p.nonce = 7
	batch := single(200)
	batch[0].CommitTime = time.Now()
	batch = append(batch, cdc.Item{Kind: cdc.KindMarker, Marker: cdc.Marker{Nonce: 7, ID: 3}})
	require.NoError(t, p.take(t.Context(), batch))
	now, err := m.status()
	require.NoError(t, err)
	require.EqualValues(t, 100, now.Position)
	require.Zero(t, now.Marked)
	require.EqualValues(t, 1, now.InFlight)
	require.False(t, now.Oldest.IsZero())
	require.NoError(t, p.Flush(t.Context()))
	now, err = m.status()
	require.NoError(t, err)
	require.EqualValues(t, 208, now.Position)
	require.EqualValues(t, 3, now.Marked)
	require.NoError(t, p.take(t.Context(), []cdc.Item{{Kind: cdc.KindMarker, Marker: cdc.Marker{Nonce: 7, ID: 4}}}))
	require.NoError(t, p.turn(t.Context(), true))
	now, err = m.status()
	require.NoError(t, err)
	require.EqualValues(t, 4, now.Marked, "with nothing open, a marker needs no transaction")
}

// What waits counts from the commit that covers it: the next session reads again what
// none does, and forgets its row first.
func TestWhatWaitsHasNotEndedBeforeItsCommit(t *testing.T) {
	g := quiet()
	g.missing["order"] = true
	p, m, _ := g.session(t)
	p.nonce = 7
	batch := []cdc.Item{typed(200, "order"), commitAt(200), {Kind: cdc.KindMarker, Marker: cdc.Marker{Nonce: 7, ID: 3}}}
	require.NoError(t, p.take(t.Context(), batch))
	require.NoError(t, p.held.write(t.Context()))
	require.Len(t, g.table.rows, 1)
	require.NoError(t, m.settle(t.Context(), time.Now(), true))
	now, err := m.status()
	require.NoError(t, err)
	require.Zero(t, now.Marked, "no commit has been made")
	require.NoError(t, p.Flush(t.Context()))
	now, err = m.status()
	require.NoError(t, err)
	require.EqualValues(t, 3, now.Marked)
}

// stuckLedger is one whose commits take their time; one that is cut off fails it.
type stuckLedger struct {
	*fakeLedger
	failed error
}

func (l *stuckLedger) Commit(ctx context.Context, pos publisher.Position) error {
	select {
	case <-time.After(10 * time.Second):
	case <-ctx.Done():
		l.failed = ctx.Err()
	}
	if l.failed != nil {
		return l.failed
	}
	return l.fakeLedger.Commit(ctx, pos)
}

// A stop that meets a slow commit waits for it, and commits the rest, within its grace;
// one that does not end within that ends with it.
func TestAStopWaitsForASlowCommit(t *testing.T) {
	for grace, ended := range map[time.Duration]bool{30 * time.Second: true, 15 * time.Second: false} {
		synctest.Test(t, func(t *testing.T) {
			g := quiet()
			p, m, _ := g.session(t)
			m.Grace = grace
			l := &stuckLedger{fakeLedger: p.sink.(*fakeLedger)}
			p.sink, m.tx = l, l
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan error, 1)
			go func() {
				over <- p.Run(ctx, &trickle{every: time.Second, batches: [][]cdc.Item{single(200)}})
			}()
			pass(2 * time.Second) // it is being committed
			stopped := time.Now()
			cancel()
			require.ErrorIs(t, <-over, context.Canceled)
			require.NoError(t, p.take(t.Context(), single(300)))
			last, release := context.WithDeadline(t.Context(), stopped.Add(grace))
			defer release()
			err := p.Flush(last)
			require.LessOrEqual(t, time.Since(stopped), grace)
			if ended {
				require.NoError(t, err)
				require.Len(t, g.visible, 2)
			} else {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
		})
	}
}

func TestOutlastGivesACommitItsGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		out, stop := state.Outlast(ctx, time.Second)
		defer stop()
		cancel()
		pass(999 * time.Millisecond)
		require.NoError(t, out.Err())
		pass(2 * time.Millisecond)
		require.Error(t, out.Err())
	})
}

// What a session leaves says how far it has come, in exactly-once mode too.
func TestAnExactlyOnceModeSaysHowFarItCame(t *testing.T) {
	g := quiet()
	p, m, _ := g.session(t)
	require.NoError(t, p.take(t.Context(), single(200)))
	require.NoError(t, p.Flush(t.Context()))
	now, err := m.status()
	require.NoError(t, err)
	require.EqualValues(t, 208, now.Position)
}
