package stream

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
)

// BenchmarkPump is what the pipeline adds to an event, in single-event
// transactions that come in batches of 256.
func BenchmarkPump(b *testing.B) {
	for _, mode := range []string{"idempotent", "exactly-once"} {
		b.Run(mode, func(b *testing.B) {
			began := ledger.Checkpoint{Order: 100}
			counted := newProgress(&began, 7, newTally())
			p := newPump(began, counted, slog.New(slog.DiscardHandler))
			p.routing = NewRouting("", nil, publisher.Config{})
			p.letters.store = &idleLetters{}
			if mode == "idempotent" {
				p.sink, p.mode = ackSink{p}, &idempotent{progress: counted, watch: p.watch, saved: savedAt(began)}
			} else {
				l := &countLedger{}
				p.watch.together = true
				p.sink, p.mode = l, &exactlyOnce{
					idle: ledger.Idle{Segment: 16 << 20}, progress: counted,
					tx: l, cut: p.reading.cut, before: p.held.write, committed: time.Now(),
					Transactions: Transactions{Timeout: time.Minute, Room: new(int64), Interval: 100 * time.Millisecond, MaxBytes: 8 << 20, Tick: func(context.Context) (int64, error) { return 1, nil }},
				}
			}
			if m, ok := p.mode.(*exactlyOnce); ok {
				*m.Room = 8 << 20
			}
			source := &loop{left: b.N}
			row := &outbox.Row{ID: uuid.New(), Namespace: "shop", AggregateType: "order", AggregateID: []byte("a")}
			for range 256 {
				source.batch = append(source.batch, cdc.Item{Kind: cdc.KindEvent, Row: row}, cdc.Item{Kind: cdc.KindCommit, CommitTime: time.Now()})
			}
			b.ReportAllocs()
			b.ResetTimer()
			if err := p.Run(b.Context(), source); err != nil {
				b.Fatal(err)
			}
		})
	}
}

type loop struct {
	batch []cdc.Item
	left  int
	at    uint64
}

func (s *loop) Next(context.Context, []cdc.Item) ([]cdc.Item, error) {
	if s.left <= 0 {
		return nil, io.EOF
	}
	s.left -= len(s.batch) / 2
	for i := 0; i < len(s.batch); i += 2 {
		s.at += 100
		s.batch[i].Commit, s.batch[i+1].Commit, s.batch[i+1].End = lsn(s.at), lsn(s.at), lsn(s.at+8)
	}
	return s.batch, nil
}

type ackSink struct{ *Pump }

func (s ackSink) Usable(context.Context, publisher.Event) error { return nil }

func (s ackSink) Publish(_ context.Context, ev publisher.Event) error {
	s.Acknowledged([]uint64{ev.Tag})
	return nil
}
func (ackSink) Failed() <-chan struct{} { return nil }
func (ackSink) Err() error              { return nil }
func (ackSink) Close() error            { return nil }

type countLedger struct {
	open  int
	since time.Time
}

func (l *countLedger) Usable(context.Context, publisher.Event) error { return nil }

func (l *countLedger) Publish(context.Context, publisher.Event) error {
	if l.open == 0 {
		l.since = time.Now()
	}
	l.open++
	return nil
}
func (l *countLedger) Commit(context.Context, publisher.Position) error { l.open = 0; return nil }
func (l *countLedger) Open() (int, int64, time.Time)                    { return l.open, int64(l.open) * 1000, l.since }
func (*countLedger) Taken() (all, throttled time.Time)                  { return all, throttled }
func (*countLedger) Failed() <-chan struct{}                            { return nil }
func (*countLedger) Err() error                                         { return nil }
func (*countLedger) Close() error                                       { return nil }

type idleLetters struct{ fakeLetters }

func (*idleLetters) Ended(context.Context, uuid.UUID, pglogrepl.LSN) (bool, error) { return false, nil }
func (*idleLetters) Parked(*outbox.Row, pglogrepl.LSN) bool                        { return false }
