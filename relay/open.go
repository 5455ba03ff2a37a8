package relay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/beginning"
	"github.com/onceward/onceward/relay/internal/letters"
	"github.com/onceward/onceward/relay/internal/snapshot"
	"github.com/onceward/onceward/relay/internal/state"
	"github.com/onceward/onceward/relay/internal/stream"
	"github.com/onceward/onceward/relay/internal/tries"
)

// openSession connects and takes the slot, in the one order that is safe: the
// slot is the arbiter, so the epoch, the state and the producer come after
// START_REPLICATION, and the checkpoint after the producer, which has ended by
// then whatever an older one had begun.
func (r *Relay) openSession(ctx context.Context, t *tries.Tries, last *owned) (_ *session, err error) {
	cfg := &r.cfg
	last.took = false
	dsn, err := cfg.DSN()
	if err != nil {
		return nil, err
	}
	ctx, o := newOpening(ctx, t.Limit, func(kind, step string) { r.vitals.try(kind, step, time.Now()) })
	defer func() { err = o.done(ctx, err) }()
	o.step("connect to PostgreSQL")
	conn, err := Connect(ctx, dsn, cfg.SlotName())
	if err != nil {
		return nil, err
	}
	s := &session{
		cfg: cfg, log: r.log, opening: o, state: state.New(conn, cfg.SlotName()),
		id: ledger.NewSession(), counts: r.counts, shown: stream.Hooks{Tell: r.setPhase, Holding: r.setHeld},
	}
	s.furnish(o.told(), r.vitals.report)
	defer func() {
		last.took = s.state.Epoch > 0
		if err != nil {
			err = errors.Join(s.begin.FoundIn(err), s.discard(ctx))
			if s.state.Epoch == last.epoch+1 {
				last.carryOn(s.state.Epoch)
			}
		}
	}()
	source := s.source(dsn)
	o.step("check the server, the tables and the publication")
	if err = s.begin.Prepare(ctx, source, last.gap, last.Known); err != nil {
		return nil, err
	}
	o.step("take slot " + cfg.SlotName())
	if err = s.state.SlotFree(ctx); err != nil {
		return nil, err
	}
	if err = s.pace(ctx, &source, t.Silence); err != nil {
		return nil, err
	}
	if s.reader, err = cdc.Open(ctx, source); err != nil {
		return nil, err
	}
	if err = s.own(ctx, dsn, last); err != nil {
		return nil, err
	}
	commands, err := s.state.PollCommands(ctx) // a paused relay begins no session by publishing until its first tick
	if err != nil {
		return nil, err
	}
	s.pump.SetCommands(commands)
	patience := kafkaPatience
	if cfg.Kafka.Mode == ModeExactlyOnce {
		patience += cfg.Kafka.Transaction.Interval
	}
	r.watched.Store(&watched{pump: s.pump, patience: patience, topic: s.topic})
	return s, nil
}

// source is what the reader is opened with.
func (s *session) source(dsn string) cdc.Config {
	cfg := s.cfg
	return cdc.Config{
		DSN: dsn, Slot: cfg.SlotName(), Publication: cfg.PublicationName(), CreateSlot: cfg.Postgres.Slot.Create == "auto",
		FailoverSlot: cfg.Postgres.Slot.Failover, QueueBytes: int(cfg.Queue.Bytes), Logger: s.log,
		Creating: func() {
			s.opening.unbounded(WaitSlot, "the replication slot "+cfg.SlotName()+" is being made, which waits for transactions that are open now")
		},
	}
}

// own is everything that comes after the slot is held.
func (s *session) own(ctx context.Context, dsn string, last *owned) error {
	s.opening.step("raise the epoch of slot " + s.cfg.SlotName())
	slotPosition, row, err := s.takeOver(ctx)
	if err != nil {
		return err
	}
	s.opening.step("connect to PostgreSQL for letters")
	conn, err := connect(ctx, dsn, s.cfg.SlotName(), state.CommitGrace)
	if err != nil {
		return err
	}
	s.pumps = state.New(conn, s.cfg.SlotName())
	s.pumps.Epoch = s.state.Epoch
	sink, err := s.sinkConfig(ctx, row, last)
	if err != nil {
		return err
	}
	f, err := s.settle(ctx, sink, row, slotPosition, last)
	if err != nil {
		return err
	}
	row = f.row
	kept, err := s.recall(ctx, f.tx, row)
	if err != nil {
		return err
	}
	s.opening.step("compare the checkpoint with the server")
	if err := s.begin.Bind(ctx, s.reader, beginning.Taken{Row: row, SlotPosition: slotPosition}, kept, last.Known); err != nil {
		return err
	}
	s.tick.Store(max(kept.Tick, row.Tick))
	s.opening.unbounded(WaitKafka, s.kafkaStep())
	tx, err := s.change(ctx, row.Mode, &kept, f.tx)
	if err != nil {
		return err
	}
	if err := s.signIn(ctx, &kept); err != nil {
		return err
	}
	start := s.start(kept, row, last)
	s.opening.step("open the dead letters and what is held")
	if err := s.openTables(ctx, &start); err != nil {
		return err
	}
	s.opening.unbounded(WaitKafka, s.kafkaStep())
	f.gaps = s.begin.RepairFrom(f.gaps, kept.Repair)
	s.topic = stream.NewRouting(s.cfg.Name, s.cfg.policies(), sink).TopicOf
	s.conf = s.pumpConfig(sink, start, f, last)
	if err := s.assemble(ctx, sink, tx, s.conf); err != nil {
		return err
	}
	if err := s.bindKafka(ctx, row); err != nil {
		return err
	}
	s.log.InfoContext(ctx, "slot taken", "slot", s.cfg.SlotName(), "mode", s.cfg.Kafka.Mode, "epoch", row.Epoch, "checkpoint", kept.Order.String(), "start", start.Order.String())
	s.resume(&kept, start.Order)
	return nil
}

// resume lets the stream begin. It confirms no more than the checkpoint, which is what
// is durable.
func (s *session) resume(kept *ledger.Checkpoint, start pglogrepl.LSN) {
	s.saved.Store(kept)
	s.savedAt = time.Now()
	s.idle.Owed = true // whatever the last session left
	if start > kept.Order {
		s.savedTransactions = math.MaxUint64 // what ended beyond the checkpoint is due
	}
	s.reader.Resume(start, kept.Order)
}

// signIn writes the checkpoint with the number of this session into relay_state, before the
// first Kafka transaction that has it.
func (s *session) signIn(ctx context.Context, kept *ledger.Checkpoint) error {
	if s.cfg.Kafka.Mode != ModeExactlyOnce {
		return nil
	}
	kept.Session, kept.Strange = s.id, false
	tick, err := s.state.Save(ctx, *kept)
	s.tick.Store(max(tick, s.tick.Load()))
	return err
}

// kafkaStep says what a step that needs Kafka waits for; it has limits of its own.
func (s *session) kafkaStep() string {
	return fmt.Sprintf("brokers %v are asked for a producer and a checkpoint, and have not answered", s.cfg.Kafka.Brokers)
}

// footing is what a session stands on: who owns the slot, what is to be repaired, up
// to where the stream leaves events out, and the transactional producer, if it has one.
type footing struct {
	row     outboxdb.RelayState
	covered snapshot.Visible
	gaps    []stream.Gap
	tx      *publisher.Transactional
}

// settle writes down where the relay begins, if it begins anew, and makes the
// producer. A gap makes relay_state idempotent, and then nobody knows whose
// transaction may be open: the producer, which settles it, comes before. In any other
// case it comes after: a beginning that waits for Kafka would be measured again, and a
// relay that has to be decided about would fence a rightful one at every try.
func (s *session) settle(ctx context.Context, sink publisher.Config, row outboxdb.RelayState, at pglogrepl.LSN, last *owned) (f footing, err error) {
	f.row = row
	if s.begin.Anew() && row.Mode == ModeExactlyOnce {
		s.opening.unbounded(WaitKafka, s.kafkaStep())
		if f.tx, err = s.producer(ctx, sink, row); err != nil {
			return f, err
		}
	}
	s.opening.unbounded(WaitPostgres, "write down where the relay begins, and read its gaps")
	if f.row, err = s.begin.BeginAnew(ctx, row, at, s.reader.System().Timeline); err != nil {
		return f, err
	}
	if s.begin.Anew() {
		last.begunAnew()
	}
	if f.covered, f.gaps, err = s.begin.LoadGaps(ctx); err != nil || f.tx != nil {
		return f, err
	}
	s.opening.unbounded(WaitKafka, s.kafkaStep())
	f.tx, err = s.producer(ctx, sink, f.row)
	return f, err
}

// takeOver raises the epoch. A relay that never ran begins as an idempotent one
// at its slot, and changes its mode from there.
func (s *session) takeOver(ctx context.Context) (slotPosition pglogrepl.LSN, row outboxdb.RelayState, err error) {
	if err = s.state.Begun(ctx); err != nil {
		return 0, row, err
	}
	if slotPosition, err = s.state.SlotPosition(ctx); err != nil {
		return 0, row, err
	}
	system := s.reader.System()
	row, err = s.state.Take(ctx, outboxdb.InsertRelayStateParams{
		Slot: s.cfg.SlotName(), Relay: s.cfg.Name, Database: system.DBName, SystemIdentifier: system.SystemID,
		Timeline: system.Timeline, ConfirmedLsn: slotPosition.String(), Mode: ModeIdempotent, Publication: s.cfg.PublicationName(),
	})
	return slotPosition, row, err
}

// start is where the session begins: at the checkpoint, or at what this process
// knows to have ended beyond it, if nobody else had the slot meanwhile.
func (s *session) start(kept ledger.Checkpoint, row outboxdb.RelayState, last *owned) ledger.Checkpoint {
	if s.cfg.Kafka.Mode == ModeIdempotent && last.knowsMore(&kept, row, s.reader.System()) {
		return last.ended
	}
	return kept
}

// assemble makes the pump, and the sink of its mode.
func (s *session) assemble(ctx context.Context, sink publisher.Config, tx *publisher.Transactional, conf stream.Config) (err error) {
	if s.pump, err = stream.New(ctx, conf); err != nil {
		return err
	}
	if tx == nil {
		published, err := publisher.New(ctx, sink, s.pump.Acknowledged)
		if err != nil {
			return err
		}
		s.sink = published
		s.pump.Idempotent(published, published, &s.saved)
		return nil
	}
	limits := s.cfg.Kafka.Transaction
	s.pump.ExactlyOnce(tx, stream.Transactions{
		Interval: limits.Interval, MaxBytes: int64(limits.MaxBytes), Segment: s.idle.Segment,
		Bound: ledger.Checkpoint{Timeline: s.reader.System().Timeline, Session: s.id},
		Tick: func(ctx context.Context) (int64, error) {
			tick, err := s.pumps.RaiseTick(ctx)
			if err == nil {
				s.tick.Store(tick)
			}
			return tick, err
		},
	})
	return nil
}

// pumpConfig is that of a session which starts at a checkpoint.
func (s *session) pumpConfig(sink publisher.Config, start ledger.Checkpoint, f footing, last *owned) stream.Config {
	shown := s.shown
	shown.Lend = s.reader.Lend
	return stream.Config{
		Start: start, Nonce: s.snapshots.Nonce, State: s.pumps, Letters: s.letters, Waiting: s.waiting,
		Routing: stream.NewRouting(s.cfg.Name, s.cfg.policies(), sink), Covered: f.covered, Repairs: f.gaps, Refused: last.refused,
		Observer: s.counts, Hooks: shown, Log: s.log,
	}
}

// openTables opens the letters and what waits. What began before the start is not
// read again: a release among it that has ended must not be opened.
func (s *session) openTables(ctx context.Context, start *ledger.Checkpoint) (err error) {
	s.waiting = stream.NewTable(s.pumps, start)
	s.letters, err = letters.Open(ctx, s.pumps, letters.Config{
		Checkpoint: start.Order, MaxParked: s.cfg.MaxParkedAggregates, First: s.waiting.TakeUp,
	})
	return err
}
