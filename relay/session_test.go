package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/beginning"
	"github.com/onceward/onceward/relay/internal/letters"
	"github.com/onceward/onceward/relay/internal/scripted"
	"github.com/onceward/onceward/relay/internal/state"
	"github.com/onceward/onceward/relay/internal/stream"
)

// kafka is a sink that acknowledges what it was handed when it is flushed, and not
// before; refuse is asked first.
type kafka struct {
	acknowledged func(tags []uint64)
	refuse       func(publisher.Event) error
	failed       chan struct{}
	err          error

	mu      sync.Mutex
	open    []uint64
	flushes int
	away    error
}

func newKafka() *kafka { return &kafka{failed: make(chan struct{})} }

func (k *kafka) Publish(_ context.Context, ev publisher.Event) error {
	if k.refuse != nil {
		if err := k.refuse(ev); err != nil {
			return err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open = append(k.open, ev.Tag)
	return nil
}

func (k *kafka) Usable(context.Context, publisher.Event) error { return nil }
func (k *kafka) Failed() <-chan struct{}                       { return k.failed }
func (k *kafka) Err() error                                    { return k.err }
func (k *kafka) Close() error                                  { return nil }

func (k *kafka) Flush(context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.flushes++
	if k.away != nil {
		return k.away
	}
	k.acknowledged(k.open)
	k.open = nil
	return nil
}

// once is a stream of one batch.
type once struct{ batch []cdc.Item }

func (o *once) Next(context.Context, []cdc.Item) ([]cdc.Item, error) {
	batch := o.batch
	o.batch = nil
	if batch == nil {
		return nil, io.EOF
	}
	return batch, nil
}

// feed has the pump deal with a batch.
func (s *scriptedSession) feed(t *testing.T, batch ...cdc.Item) {
	t.Helper()
	require.NoError(t, s.pump.Run(t.Context(), &once{batch}))
}

// oneEvent is an event of a transaction.
func oneEvent(commit pglogrepl.LSN) cdc.Item {
	return cdc.Item{Kind: cdc.KindEvent, Commit: commit, Row: &outbox.Row{ID: uuid.New(), Namespace: "shop", AggregateType: "order"}}
}

// itsEnd is the end of a transaction.
func itsEnd(commit pglogrepl.LSN) cdc.Item {
	return cdc.Item{Kind: cdc.KindCommit, Commit: commit, End: commit + 8, CommitTime: time.Now()}
}

// scriptedSession is a session that holds its slot on a scripted server, in
// idempotent mode, from a checkpoint of 100.
type scriptedSession struct {
	*session
	db    *scripted.Server
	kafka *kafka
}

// asKnown is a snapshot by which the publication is as the relay knows it.
func asKnown(text string) outboxdb.TakeSnapshotRow {
	const catalog = "publication 16500 1000101"
	return outboxdb.TakeSnapshotRow{Snapshot: text, TakenAt: time.Now().UTC(), PublicationCatalog: catalog, KnownCatalog: catalog}
}

func newScriptedSession(t *testing.T) *scriptedSession {
	t.Helper()
	db := scripted.New(t)
	db.Returns("SaveCheckpoint", int64(31))
	db.Returns("TakeSnapshot", asKnown("50:50:"))
	db.Returns("PollWords", outboxdb.PollWordsRow{})
	db.Echo()
	cfg := minimal()
	cfg.CheckpointInterval = time.Hour // what is due is done by the test
	sink := newKafka()
	s := &session{
		cfg: &cfg, log: slog.New(slog.DiscardHandler), state: owner(db),
		idle: ledger.Idle{Segment: segmentSize}, counts: newCounts("orders"), pumps: owner(db), sink: sink,
		savedAt: time.Now(),
	}
	s.furnish(beginning.Told{}, func(string, ...Wait) {})
	s.health.lookedAt = time.Now()
	s.saved.Store(&ledger.Checkpoint{Order: 100})
	shown := stream.Hooks{Tell: func(stream.Phase, error) {}, Holding: func(map[string]stream.HeldRoute) {}, Lend: func(int) {}}
	s.conf = stream.Config{
		Start: *s.saved.Load(), Nonce: s.snapshots.Nonce, State: s.pumps, Letters: &letters.Store{}, Waiting: stream.NewTable(s.pumps, s.saved.Load()),
		Routing: stream.NewRouting(cfg.Name, cfg.policies(), publisher.Config{}), Observer: s.counts, Hooks: shown, Log: s.log,
	}
	s.assembled(t, sink)
	db.Forget()
	reader, err := cdc.Open(t.Context(), cdc.Config{
		DSN: db.DSN(), Slot: cfg.SlotName(), Publication: cfg.PublicationName(), StatusInterval: 5 * time.Millisecond,
	})
	require.NoError(t, err)
	s.reader = reader
	reader.Resume(100, 100)
	t.Cleanup(func() { _ = reader.Close(context.Background()) })
	return &scriptedSession{session: s, db: db, kafka: sink}
}

// opens is how it would be opened, from what is known then.
func (s *scriptedSession) opens(kept ledger.Checkpoint, row outboxdb.RelayState, last *owned) *opener {
	return &opener{session: s.session, kept: kept, row: row, last: last}
}

// assembled has a pump of its configuration.
func (s *session) assembled(t *testing.T, sink *kafka) {
	t.Helper()
	var err error
	s.pump, err = stream.New(t.Context(), s.conf)
	require.NoError(t, err)
	s.pump.Idempotent(sink, &s.saved)
	sink.acknowledged = s.pump.Acknowledged
}

// stopped closes the session, which tells the server the last checkpoint.
func (s *scriptedSession) stopped() *scripted.Server {
	_ = s.reader.Close(context.Background())
	return s.db
}

func (s *scriptedSession) status(t *testing.T) stream.Status {
	t.Helper()
	now, err := s.pump.HasEnded()
	require.NoError(t, err)
	return now
}

// The slot forgets what a durable checkpoint has passed, and nothing else: not what
// a checkpoint would have passed that could not be written, or not by this epoch.
func TestTheSlotForgetsOnlyWhatIsDurable(t *testing.T) {
	for name, answer := range map[string]func([]string) scripted.Reply{
		"the database is away": func([]string) scripted.Reply { return scripted.Reply{Err: "terminating connection"} },
		"fenced":               scripted.Fenced,
	} {
		t.Run(name, func(t *testing.T) {
			s := newScriptedSession(t)
			s.db.On("SaveCheckpoint", answer)
			s.feed(t, oneEvent(200), itsEnd(200))
			require.NoError(t, s.pump.Flush(t.Context()))
			require.Error(t, s.checkpoint(t.Context(), s.status(t), false))
			require.EqualValues(t, 100, s.saved.Load().Order)
			require.EqualValues(t, 100, s.stopped().Confirmed())
		})
	}
	s := newScriptedSession(t)
	s.feed(t, oneEvent(200), itsEnd(200))
	require.NoError(t, s.pump.Flush(t.Context()))
	require.NoError(t, s.checkpoint(t.Context(), s.status(t), false))
	require.EqualValues(t, 208, s.saved.Load().Order)
	require.EqualValues(t, 31, s.tick.Load(), "the tick of the row")
	require.EqualValues(t, 208, s.stopped().Confirmed())
}

// A checkpoint that is written is the whole of what was reached, by the epoch of the
// session, on the timeline of the server.
func TestACheckpointIsWrittenWhole(t *testing.T) {
	s := newScriptedSession(t)
	s.tick.Store(30)
	now := stream.Status{Position: 208, Transactions: 1, Letters: 5, Reach: ledger.Reach{UpTo: ledger.Place{Commit: 300, Ordinal: 2}, Release: 3, Cursor: ledger.Cursor{Lane: 1}}}
	require.NoError(t, s.checkpoint(t.Context(), now, false))
	want := ledger.Checkpoint{Order: 208, Reach: now.Reach, Timeline: 1, Tick: 30, Letters: 5, Session: s.id}
	require.Equal(t, []string{"SaveCheckpoint 0/D0 " + want.Meta() + " onceward_orders 7"}, s.db.Log("SaveCheckpoint"))
	require.Equal(t, want, *s.saved.Load())
}

// A position that nothing of the outbox brought along is written once in a while
// only, or each checkpoint would be the reason of the next one. What passed
// transactions or a part of one is written at once, and so is the last one.
func TestAPositionAloneIsNoCheckpoint(t *testing.T) {
	for name, tc := range map[string]struct {
		now   stream.Status
		last  bool
		mode  string
		since time.Duration
		want  int
	}{
		"the end of the log":                {now: stream.Status{Position: 300}},
		"an hour later":                     {now: stream.Status{Position: 300}, since: ledger.IdleTime, want: 1},
		"much of it":                        {now: stream.Status{Position: 100 + ledger.IdleBytes}, want: 1},
		"a transaction":                     {now: stream.Status{Position: 300, Transactions: 1}, want: 1},
		"a part of one":                     {now: stream.Status{Position: 100, Reach: ledger.Reach{UpTo: ledger.Place{Commit: 300, Ordinal: 1}}}, want: 1},
		"nothing at all":                    {now: stream.Status{Position: 100}, last: true},
		"behind the last":                   {now: stream.Status{Position: 99, Transactions: 1}, last: true},
		"the last one of the session":       {now: stream.Status{Position: 300}, last: true, want: 1},
		"where it is durable in Kafka":      {now: stream.Status{Position: 300}, mode: ModeExactlyOnce, want: 1},
		"in Kafka it is where it was":       {now: stream.Status{Position: 100}, mode: ModeExactlyOnce},
		"a release came further, no stream": {now: stream.Status{Position: 100, Reach: ledger.Reach{Release: 1}}, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScriptedSession(t)
			if tc.mode != "" {
				s.cfg.Kafka.Mode = tc.mode
			}
			s.savedAt = s.savedAt.Add(-tc.since)
			require.NoError(t, s.checkpoint(t.Context(), tc.now, tc.last))
			require.Len(t, s.db.Log("SaveCheckpoint"), tc.want)
		})
	}
}

// One checkpoint by time follows one that had a cause; the causes are counted from
// the last one.
func TestTheNextCheckpointIsJudgedByTheLast(t *testing.T) {
	s := newScriptedSession(t)
	require.NoError(t, s.checkpoint(t.Context(), stream.Status{Position: 300, Transactions: 1}, false))
	require.NoError(t, s.checkpoint(t.Context(), stream.Status{Position: 310, Transactions: 1}, false))
	require.Len(t, s.db.Log("SaveCheckpoint"), 1, "no transaction lies between")
	s.savedAt = s.savedAt.Add(-ledger.FollowUpTime)
	require.NoError(t, s.checkpoint(t.Context(), stream.Status{Position: 310, Transactions: 1}, false))
	require.Len(t, s.db.Log("SaveCheckpoint"), 2, "the follow-up")
	s.savedAt = s.savedAt.Add(-ledger.FollowUpTime)
	require.NoError(t, s.checkpoint(t.Context(), stream.Status{Position: 320, Transactions: 1}, false))
	require.Len(t, s.db.Log("SaveCheckpoint"), 2, "which owes none")
}

// What the publication is like is compared at every tick, whether a snapshot is due
// or not. Where it changed, that is written down, and no marker: a snapshot of that
// time would cover rows that were never sent.
func TestEveryTickComparesThePublication(t *testing.T) {
	for _, due := range []bool{true, false} {
		s := newScriptedSession(t)
		s.snapshots.Asked = due
		changed := asKnown("60:60:")
		changed.PublicationCatalog = "publication 16501 1000101"
		s.db.Returns("TakeSnapshot", changed)
		err := s.round(t.Context(), t.Context())
		var gap *beginning.GapError
		require.ErrorAs(t, err, &gap)
		require.Equal(t, beginning.CodePublicationChanged, gap.Code)
		require.Equal(t, []string{"SavePublicationCatalog changed onceward_orders 7"}, s.db.Log("SavePublicationCatalog"))
		require.Empty(t, s.db.Log("SaveCheckpoint"))
		require.NotContains(t, s.db.Log(), "pg_logical_emit_message")
		_, is := s.snapshots.Published(math.MaxUint64)
		require.False(t, is)
	}
}

// A snapshot is taken, then looked at for partitions that were filled, then marked:
// in no other order does its marker prove what it covers. Looked at is every new
// attaching, once.
func TestASnapshotComesBeforeItsMarker(t *testing.T) {
	s := newScriptedSession(t)
	attached := asKnown("50:50:")
	attached.Attachings = []int64{16600<<32 | 740}
	s.db.Returns("TakeSnapshot", attached)
	s.snapshots.Asked = true
	require.NoError(t, s.snapshots.take(t.Context(), s.pump, 0))
	asked := s.db.Log()[1:] // the start of replication
	require.Len(t, asked, 3)
	require.Contains(t, asked[0], "TakeSnapshot")
	require.Contains(t, asked[1], "FilledLeaves")
	require.Contains(t, asked[2], "pg_logical_emit_message")
	first, _ := s.snapshots.Published(math.MaxUint64)
	require.Equal(t, "50:50:", first.Text)

	s.snapshots.Asked = true
	require.NoError(t, s.snapshots.take(t.Context(), s.pump, 0))
	require.Len(t, s.db.Log("FilledLeaves"), 1, "nothing is attached since")

	s.snapshots.Asked = true
	attached.Attachings = append(attached.Attachings, 16700<<32|741)
	s.db.Returns("TakeSnapshot", attached)
	s.db.Returns("FilledLeaves", outboxdb.FilledLeavesRow{Leaf: "outbox_20261122"})
	err := s.snapshots.take(t.Context(), s.pump, 0)
	var start *cdc.StartError
	require.ErrorAs(t, err, &start)
	require.Equal(t, CodePartitionFilled, start.Code)
	require.Equal(t, 2, strings.Count(strings.Join(s.db.Log(), "\n"), "pg_logical_emit_message"), "no marker proves one that was not looked at")
	second, _ := s.snapshots.Published(math.MaxUint64)
	require.Equal(t, first.Attachings, second.Attachings)
}

// A tick reads the operator's commands; a session that is fenced ends by them.
func TestATickReadsTheOperatorsWords(t *testing.T) {
	s := newScriptedSession(t)
	s.db.Returns("PollWords", outboxdb.PollWordsRow{Paused: true, PausedRoutes: []string{"shop.order"}})
	require.NoError(t, s.round(t.Context(), t.Context()))
	require.Equal(t, state.Commands{Paused: true, Routes: []string{"shop.order"}}, *s.pump.Commands())
	s.db.On("PollWords", scripted.Fenced)
	require.ErrorIs(t, s.round(t.Context(), t.Context()), state.ErrFenced)
}

// A gap that an operator wants repaired ends a session that does not repair it.
func TestARepairThatIsAskedForEndsTheSession(t *testing.T) {
	ours, asked := uuid.New(), uuid.New()
	s := &session{begin: beginning.New(beginning.Config{}, nil, nil, beginning.Told{})}
	s.begin.RepairFrom([]stream.Gap{{ID: ours}}, ledger.Repair{})
	require.NoError(t, s.newRepair([]uuid.UUID{ours}))
	require.ErrorIs(t, s.newRepair([]uuid.UUID{ours, asked}), errRepairAsked)
}

// A graceful stop waits for what was handed over, checkpoints it, and lets the slot
// forget it: the next start publishes nothing twice.
func TestAGracefulStopLeavesNothingToPublishAgain(t *testing.T) {
	s := newScriptedSession(t)
	s.feed(t, oneEvent(200), itsEnd(200))
	s.snapshots.Asked, s.snapshots.Events = false, 1 // none is due, or the stop would wait for it until Kafka answers
	ctx, cancel := context.WithCancel(t.Context())
	var last owned
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx, &last) }()
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, 1, s.kafka.flushes)
	require.EqualValues(t, 208, s.db.Confirmed())
	asked := slices.DeleteFunc(s.db.Log("SaveCheckpoint", "confirm"), func(what string) bool { return what == "confirm 0/64" })
	require.Len(t, asked, 2)
	require.Contains(t, asked[0], "SaveCheckpoint 0/D0 ")
	require.Equal(t, "confirm 0/D0", asked[1])
	require.EqualValues(t, 208, last.ended.Order)
	require.Equal(t, owned{Known: beginning.Known{SystemID: "7000", Timeline: 1, Tick: 31}, epoch: 7, reached: 208, ended: last.ended}, last)
}

// What was published when the relay stopped is proved by a last snapshot, which the
// stop waits for; before the stream there is none, for nothing brings its marker back.
func TestAGracefulStopProvesWhatWasPublished(t *testing.T) {
	s := newScriptedSession(t)
	require.NoError(t, s.snapshots.last(t.Context(), s.pump))
	require.Empty(t, s.db.Log("TakeSnapshot"))
	<-s.snapshots.parted

	s.snapshots.parted = make(chan struct{})
	require.NoError(t, s.pump.Repair(t.Context())) // there is none
	ctx, cancel := context.WithCancel(t.Context())
	var group errgroup.Group
	group.Go(func() error { return s.reader.Run(ctx) })
	group.Go(func() error { return s.pump.Run(ctx, s.reader) })
	require.NoError(t, s.snapshots.last(t.Context(), s.pump))
	<-s.snapshots.parted
	require.EqualValues(t, 1, s.status(t).Marked)
	cancel()
	_ = group.Wait()
	var log bytes.Buffer
	s.log = slog.New(slog.NewTextHandler(&log, nil))
	s.sayStopping()
	require.NoError(t, s.finish(t.Context(), time.Now()))
	require.NotContains(t, log.String(), "stopping: waiting", "nothing is in flight")
	published := s.db.Log("SavePublished")
	require.Len(t, published, 1)
	require.Contains(t, published[0], "SavePublished 50:50:")
}

// Nothing brings back the marker of a relay that an operator has stand still: the stop
// does not wait for it.
func TestAGracefulStopOfOneThatStandsStillWaitsForNothing(t *testing.T) {
	s := newScriptedSession(t)
	require.NoError(t, s.pump.Repair(t.Context()))
	s.snapshots.stands.Store(true)
	require.NoError(t, s.snapshots.last(t.Context(), s.pump))
	<-s.snapshots.parted
}

// A stop that Kafka does not let end in time says so, and passes nothing.
func TestAStopThatCannotEndPassesNothing(t *testing.T) {
	s := newScriptedSession(t)
	s.feed(t, oneEvent(200), itsEnd(200))
	s.kafka.away = errors.New("the leader is away")
	var log bytes.Buffer
	s.log = slog.New(slog.NewTextHandler(&log, nil))
	s.sayStopping()
	err := s.finish(t.Context(), time.Now())
	require.ErrorContains(t, err, "flush before stopping: the leader is away")
	require.Equal(t, 1, strings.Count(log.String(), "stopping: waiting until Kafka has acknowledged what is in flight"), "who waits knows for what")
	require.Contains(t, log.String(), "events=1 stop_grace="+s.cfg.StopGrace.String())
	require.Empty(t, s.db.Log("SaveCheckpoint"))
	require.EqualValues(t, 100, s.stopped().Confirmed())
}

// A session that breaks writes nothing more: another may own the slot by now.
func TestASessionThatBreaksWritesNothing(t *testing.T) {
	s := newScriptedSession(t)
	s.feed(t, oneEvent(200), itsEnd(200))
	s.kafka.err = errors.New("the producer is fenced")
	close(s.kafka.failed)
	var last owned
	require.ErrorContains(t, s.run(t.Context(), &last), "the producer is fenced")
	require.Zero(t, s.kafka.flushes)
	require.Empty(t, s.db.Log("SaveCheckpoint"))
	require.EqualValues(t, 100, s.db.Confirmed())
	require.EqualValues(t, 100, last.ended.Order)
}

// What a process knows beyond the checkpoint counts for the same history of the same
// database, if nobody had the slot meanwhile.
func TestASessionBeginsWhereItsOwnLastOneEnded(t *testing.T) {
	s := newScriptedSession(t)
	kept := ledger.Checkpoint{Order: 200}
	ended := ledger.Checkpoint{Order: 300, Reach: ledger.Reach{UpTo: ledger.Place{Commit: 310, Ordinal: 4}}}
	own := owned{Known: beginning.Known{SystemID: "7000", Timeline: 1, Tick: 30}, epoch: 7, ended: ended}
	row := outboxdb.RelayState{Epoch: 8, Tick: 30}
	require.Equal(t, ended, s.opens(kept, row, &own).start())
	require.Equal(t, ended, s.opens(kept, outboxdb.RelayState{Epoch: 8, Tick: 31}, &own).start(), "a checkpoint whose answer was lost")
	for name, tweak := range map[string]func(*owned, *ledger.Checkpoint, *outboxdb.RelayState){
		"another had the slot":            func(_ *owned, _ *ledger.Checkpoint, r *outboxdb.RelayState) { r.Epoch = 9 },
		"it never had it":                 func(o *owned, _ *ledger.Checkpoint, _ *outboxdb.RelayState) { *o = owned{} },
		"another system":                  func(o *owned, _ *ledger.Checkpoint, _ *outboxdb.RelayState) { o.SystemID = "7001" },
		"another timeline":                func(o *owned, _ *ledger.Checkpoint, _ *outboxdb.RelayState) { o.Timeline = 2 },
		"the database went back":          func(_ *owned, _ *ledger.Checkpoint, r *outboxdb.RelayState) { r.Tick = 29 },
		"it went on without this process": func(_ *owned, _ *ledger.Checkpoint, r *outboxdb.RelayState) { r.Tick = 32 },
		"the checkpoint is further":       func(_ *owned, k *ledger.Checkpoint, _ *outboxdb.RelayState) { k.Order = 301 },
		"it lies beyond the log":          func(o *owned, _ *ledger.Checkpoint, _ *outboxdb.RelayState) { o.ended.Order = 0x1001 },
		"a part of it lies beyond":        func(o *owned, _ *ledger.Checkpoint, _ *outboxdb.RelayState) { o.ended.UpTo.Commit = 0x1001 },
		"the checkpoint is kept in Kafka": func(*owned, *ledger.Checkpoint, *outboxdb.RelayState) { s.cfg.Kafka.Mode = ModeExactlyOnce },
	} {
		t.Run(name, func(t *testing.T) {
			o, k, r := own, kept, row
			tweak(&o, &k, &r)
			require.Equal(t, k, s.opens(k, r, &o).start())
			s.cfg.Kafka.Mode = ModeIdempotent
		})
	}
}

// segmentSize is that of the server's log.
const segmentSize = 16 << 20

// owner is the state of a session that owns the slot, over a connection to a server.
func owner(db *scripted.Server) *state.State {
	st := state.New(db.Connect(), "onceward_orders")
	st.Epoch = 7
	return st
}

func TestEarlierTakesZeroForNone(t *testing.T) {
	a, b := time.Unix(1, 0), time.Unix(2, 0)
	require.Equal(t, a, earlier(a, b))
	require.Equal(t, a, earlier(b, a))
	require.Equal(t, a, earlier(a, time.Time{}))
	require.Equal(t, a, earlier(time.Time{}, a))
	require.Zero(t, earlier(time.Time{}, time.Time{}))
}
