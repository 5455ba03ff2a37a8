package relay

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/beginning"
	"github.com/onceward/onceward/relay/internal/snapshot"
	"github.com/onceward/onceward/relay/internal/state"
	"github.com/onceward/onceward/relay/internal/stream"
)

// session is one ownership of the slot: a replication connection, an ordinary
// one for the checkpoint, one for the pump, and a producer, which live and are
// thrown away together.
type session struct {
	cfg    *Config
	log    *slog.Logger
	begin  *beginning.Beginner
	state  *state.State // of the checkpoint's goroutine
	reader *cdc.Reader  // once the slot is held
	id     int64        // drawn, in every checkpoint that it makes
	counts *counts
	pumps  *state.State // of the pump's goroutine
	sink   stream.Sink
	pump   *stream.Pump
	conf   stream.Config // of the pump

	saved             atomic.Pointer[ledger.Checkpoint] // the last one in relay_state
	savedAt           time.Time
	tick              atomic.Int64 // the last one made
	savedTransactions uint64       // that the last checkpoint has passed
	idle              ledger.Idle
	snapshots         snapshots
	health            health
	topics            topics
}

// furnish gives a session that knows its slot what works at every tick.
func (s *session) furnish(told beginning.Told, report func(kind string, waits ...Wait)) {
	s.begin = beginning.New(s.cfg.beginner(), s.log, s.state, told)
	s.snapshots = snapshots{
		Schedule: snapshot.NewSchedule(), cfg: s.cfg, state: s.state, begin: s.begin, counts: s.counts,
		parted: make(chan struct{}),
	}
	s.topics = topics{state: s.state, counts: s.counts, log: s.log}
	s.health = health{state: s.state, counts: s.counts, log: s.log, report: report, topics: &s.topics}
}

// owned is what a process remembers of its sessions, so that the next one does
// not publish again what has ended beyond the last checkpoint, and treats
// otherwise what made the last one fail.
type owned struct {
	beginning.Known
	epoch   int64
	ended   ledger.Checkpoint // order and reach
	reached pglogrepl.LSN     // how far the last session had ended everything

	gap *beginning.GapError // found by the last session; the next one writes it down

	memory     *publisher.Memory // of the publishers
	took       bool              // the last session had the slot
	narrow     []string          // topics that refused a batch
	otherKafka string            // the cluster that this process is bound to, when another one answered

	refused stream.Refused
	room    int64 // bytes that a Kafka transaction may have, by what the sessions have seen; zero: nothing
}

// carryOn follows a session that failed before it published anything, and before
// anybody else came: what was known counts still, a gap that is to be written down too.
func (o *owned) carryOn(epoch int64) {
	if o.gap != nil && o.gap.Epoch == o.epoch {
		o.gap.Epoch = epoch
	}
	o.epoch = epoch
}

// begunAnew forgets what was known of a checkpoint that does not fit any more.
func (o *owned) begunAnew() {
	*o = owned{memory: o.memory, narrow: o.narrow, refused: o.refused, room: o.room}
}

// knowsMore reports whether what the last session had ended counts beyond the
// checkpoint: nobody else had the slot since, in this history of the database. One
// that was put back counts the same epochs again; its tick tells them apart. It is the
// last one, or one more: of a checkpoint whose answer was lost.
func (o *owned) knowsMore(kept *ledger.Checkpoint, row outboxdb.RelayState,
	system pglogrepl.IdentifySystemResult) bool {
	same := o.SystemID == system.SystemID && o.Timeline == system.Timeline && o.epoch == row.Epoch-1 &&
		(row.Tick == o.Tick || row.Tick == o.Tick+1)
	return same && o.ended.Order >= kept.Order && max(o.ended.Order, o.ended.UpTo.Commit) <= system.XLogPos
}

// learn takes from an error what the next session is to know, and reports
// whether it is news.
func (o *owned) learn(err error) (news bool) {
	var gap *beginning.GapError
	if errors.As(err, &gap) {
		// Written down at once: a twin that takes the slot meanwhile would have to find it again.
		news = o.gap == nil || o.gap.Epoch != gap.Epoch
		o.gap = gap
	}
	var narrow *publisher.NarrowError
	if errors.As(err, &narrow) && !slices.Contains(o.narrow, narrow.Topic) {
		o.narrow, news = append(o.narrow, narrow.Topic), true
	}
	return o.refused.Learn(err) || news
}

// keep notes how far a session has come, and counts what it leaves to be read
// again.
func (o *owned) keep(now stream.Status, counts *counts) {
	counts.rewound(now.Owing)
	o.reached = now.Position
}

// first reports whether the end of a session counts as the first of its kind, so
// that the next one follows at once: it got further, it lasted, or the next one
// will do otherwise what ended it.
func (o *owned) first(before pglogrepl.LSN, news bool, lasted time.Duration) bool {
	return o.reached > before || news || lasted > steadySession
}

// run streams until ctx ends, which it answers with a flush and a last
// checkpoint, or until something breaks. The session is over when it returns.
func (s *session) run(ctx context.Context, last *owned) error {
	inner, part := context.WithCancel(context.WithoutCancel(ctx))
	defer part()
	stopped := sync.OnceValue(time.Now)
	group, gctx := errgroup.WithContext(inner)
	group.Go(func() error { return s.reader.Run(gctx) })
	group.Go(func() error {
		defer part()
		select {
		case <-ctx.Done():
			stopped()
			s.snapshots.awaitLast(gctx)
			s.sayStopping()
		case <-gctx.Done():
		}
		return nil
	})
	group.Go(func() error {
		if err := s.pump.Repair(gctx); err != nil {
			return err
		}
		return s.pump.Run(gctx, s.reader)
	})
	group.Go(func() error { return s.checkpoints(gctx, ctx) })
	group.Go(func() error {
		select {
		case <-s.sink.Failed():
			return s.sink.Err()
		case <-gctx.Done():
			return nil
		}
	})
	err := group.Wait()
	if ctx.Err() != nil {
		if err = s.finish(context.WithoutCancel(ctx), stopped()); err != nil {
			err = &unfinishedError{err}
		}
		s.topics.last(ctx)
	}
	err = errors.Join(s.begin.FoundIn(err), s.discard(ctx))
	s.remember(last)
	return err
}

// remember leaves what the next session of this process is to know.
func (s *session) remember(last *owned) {
	system := s.reader.System()
	last.SystemID, last.Timeline, last.epoch = system.SystemID, system.Timeline, s.state.Epoch
	last.Tick, last.Letters = s.tick.Load(), s.pumps.Written
	if now, err := s.pump.HasEnded(); err == nil {
		last.keep(now, s.counts)
	}
	s.log.Info("session ended", s.tally()...)
	s.counts.Holding(nil)
	last.ended = ledger.Checkpoint{}
	if ended, err := s.pump.Leaves(); err == nil {
		last.ended = ended
	}
}

// tally says how what the session dealt with has ended.
func (s *session) tally() []any {
	now, _ := s.pump.HasEnded() // an error of it has ended the session
	return []any{
		"acknowledged", now.Ends[ledger.Acknowledged], "letters", now.Ends[ledger.Letter], "waiting", now.Ends[ledger.Waiting],
		"skipped", now.Ends[ledger.Skipped], "erased", now.Ends[ledger.Erased], "in_flight", now.Owing,
	}
}

// discard closes everything. The reader tells the server the last checkpoint.
func (s *session) discard(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var errs []error
	if s.sink != nil {
		errs = append(errs, s.sink.Close())
	}
	if s.reader != nil {
		_ = s.reader.Close(ctx) // broken or not, the slot is free after it
	}
	for _, conn := range []*state.State{s.state, s.pumps} {
		if conn != nil {
			_ = conn.Conn.Close(ctx)
		}
	}
	return errors.Join(errs...)
}
