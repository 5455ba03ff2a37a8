package relay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/beginning"
	"github.com/onceward/onceward/relay/internal/letters"
	"github.com/onceward/onceward/relay/internal/retry"
	"github.com/onceward/onceward/relay/internal/snapshot"
	"github.com/onceward/onceward/relay/internal/state"
	"github.com/onceward/onceward/relay/internal/stream"
)

// opener opens a session: what only that needs, and what the session stands on.
type opener struct {
	*session
	opening *opening
	last    *owned
	shown   stream.Hooks // on the health pages

	at      pglogrepl.LSN    // of the slot
	kafka   publisher.Config // of every producer
	row     outboxdb.RelayState
	covered snapshot.Visible         // what the stream leaves out
	gaps    []stream.Gap             // to be repaired
	tx      *publisher.Transactional // nil: both modes are idempotent
	kept    ledger.Checkpoint
}

// openSession connects and takes the slot, in the one order that is safe: the
// slot is the arbiter, so the epoch, the state and the producer come after
// START_REPLICATION, and the checkpoint after the producer, which has ended by
// then whatever an older one had begun.
func (r *Relay) openSession(ctx context.Context, t *retry.Tries, last *owned) (_ *session, err error) {
	cfg := &r.cfg
	last.took = false
	dsn, err := cfg.DSN()
	if err != nil {
		return nil, err
	}
	ctx, steps := newOpening(ctx, t.Limit, func(kind, step string) { r.vitals.try(kind, step, time.Now()) })
	defer func() { err = steps.done(ctx, err) }()
	steps.step("connect to PostgreSQL")
	conn, err := Connect(ctx, dsn, cfg.SlotName())
	if err != nil {
		return nil, err
	}
	s := &session{cfg: cfg, log: r.log, state: state.New(conn, cfg.SlotName()), id: ledger.NewSession(),
		counts: r.counts}
	s.furnish(steps.told(), r.vitals.report)
	o := &opener{session: s, opening: steps, last: last,
		shown: stream.Hooks{Tell: r.shows(s), Holding: r.vitals.held}}
	defer func() {
		last.took = s.state.Epoch > 0
		if err != nil {
			err = errors.Join(s.begin.FoundIn(err), s.discard(ctx))
			if s.state.Epoch == last.epoch+1 {
				last.carryOn(s.state.Epoch)
			}
		}
	}()
	source := o.source(dsn)
	steps.step("check the server, the tables and the publication")
	if err = s.begin.Prepare(ctx, source, last.gap, last.Known); err != nil {
		return nil, err
	}
	steps.step("take slot " + cfg.SlotName())
	if err = s.state.SlotFree(ctx); err != nil {
		return nil, err
	}
	if err = o.pace(ctx, &source, t.Silence); err != nil {
		return nil, err
	}
	if s.reader, err = cdc.Open(ctx, source); err != nil {
		return nil, err
	}
	if err = o.own(ctx, dsn); err != nil {
		return nil, err
	}
	commands, err := s.state.PollCommands(ctx) // a paused relay begins no session by publishing until its first tick
	if err != nil {
		return nil, err
	}
	s.pump.SetCommands(commands)
	patience := kafkaPatience
	if cfg.Kafka.Mode == ModeExactlyOnce {
		patience += cfg.Kafka.Transaction.longest()
	}
	r.watch.session.Store(&watched{pump: s.pump, patience: patience,
		trouble: func(topic string) (string, time.Time) { return o.kafka.Memory.Trouble(topic, &o.kafka) },
		topic:   stream.NewRouting(cfg.Name, cfg.policies(), o.kafka).TopicOf})
	return s, nil
}

// shows is told what the session's pump does.
func (r *Relay) shows(s *session) func(now stream.Phase, why error) {
	return func(now stream.Phase, why error) {
		s.snapshots.stands.Store(State(now) != StateStreaming)
		r.setState(State(now), why)
	}
}

// source is what the reader is opened with.
func (o *opener) source(dsn string) cdc.Config {
	cfg := o.cfg
	return cdc.Config{
		DSN: dsn, Slot: cfg.SlotName(), Publication: cfg.PublicationName(), CreateSlot: cfg.Postgres.Slot.Create == "auto",
		FailoverSlot: cfg.Postgres.Slot.Failover, QueueBytes: int(cfg.Queue.Bytes), Logger: o.log,
		Creating: func() {
			o.opening.unbounded(WaitSlot, "the replication slot "+cfg.SlotName()+" is being made, which waits for transactions that are open now")
		},
	}
}

// pace fits the session to the server's wal_sender_timeout: a status update at
// least three times within it, and a limit of silence that starts at twice of
// it. The server may be busy and mute for longer: after a session that ended by
// silence the caller gives a higher factor.
func (o *opener) pace(ctx context.Context, source *cdc.Config, factor int) error {
	server, err := cdc.ReadPace(ctx, o.state.Conn)
	if err != nil {
		return err
	}
	o.idle.Segment = server.Segment
	timeout := server.SenderTimeout
	source.StatusInterval = cdc.DefaultStatusInterval
	if timeout == 0 {
		timeout = time.Minute // the server's default
	} else {
		source.StatusInterval = max(10*time.Millisecond, min(source.StatusInterval, timeout/3))
	}
	source.SilenceLimit = min(timeout*time.Duration(factor), silenceMax)
	if fault.Is(fault.Impatient) {
		source.SilenceLimit = timeout / 2
	}
	return nil
}

// own is everything that comes after the slot is held.
func (o *opener) own(ctx context.Context, dsn string) error {
	o.opening.step("raise the epoch of slot " + o.cfg.SlotName())
	if err := o.takeOver(ctx); err != nil {
		return err
	}
	o.opening.step("connect to PostgreSQL for letters")
	conn, err := connect(ctx, dsn, o.cfg.SlotName(), state.CommitGrace)
	if err != nil {
		return err
	}
	o.pumps = state.New(conn, o.cfg.SlotName())
	o.pumps.Epoch = o.state.Epoch
	if err := o.configureSink(ctx); err != nil {
		return err
	}
	if err := o.settle(ctx); err != nil {
		return err
	}
	if err := o.recall(ctx); err != nil {
		return err
	}
	o.opening.step("compare the checkpoint with the server")
	if err := o.begin.Bind(ctx, o.reader, beginning.Taken{Row: o.row, SlotPosition: o.at, Gap: o.covered.End()}, o.kept,
		o.last.Known); err != nil {
		return err
	}
	o.tick.Store(max(o.kept.Tick, o.row.Tick))
	o.opening.unbounded(WaitKafka, o.kafkaStep())
	if err := o.change(ctx); err != nil {
		return err
	}
	if err := o.signIn(ctx); err != nil {
		return err
	}
	start := o.start()
	o.opening.step("open the dead letters and what is held")
	if o.conf, err = o.pumpConfig(ctx, start); err != nil {
		return err
	}
	o.opening.unbounded(WaitKafka, o.kafkaStep())
	if err := o.assemble(ctx); err != nil {
		return err
	}
	if err := o.bindKafka(ctx); err != nil {
		return err
	}
	o.log.InfoContext(ctx, "slot taken", "slot", o.cfg.SlotName(), "mode", o.cfg.Kafka.Mode, "epoch", o.row.Epoch, "checkpoint", o.kept.Order.String(), "start", start.Order.String())
	o.resume(start.Order)
	return nil
}

// resume lets the stream begin. It confirms no more than the checkpoint, which is what
// is durable.
func (o *opener) resume(start pglogrepl.LSN) {
	kept := o.kept
	o.saved.Store(&kept)
	o.savedAt = time.Now()
	o.idle.Owed = true // whatever the last session left
	if start > o.kept.Order {
		o.savedTransactions = math.MaxUint64 // what ended beyond the checkpoint is due
	}
	o.reader.Resume(start, o.kept.Order)
}

// signIn writes the checkpoint with the number of this session into relay_state, before the
// first Kafka transaction that has it.
func (o *opener) signIn(ctx context.Context) error {
	if o.cfg.Kafka.Mode != ModeExactlyOnce {
		return nil
	}
	o.kept.Session, o.kept.Gap, o.kept.Strange = o.id, o.covered.End(), false
	tick, err := o.state.Save(ctx, o.kept)
	o.tick.Store(max(tick, o.tick.Load()))
	return err
}

// kafkaStep says what a step that needs Kafka waits for; it has limits of its own.
func (o *opener) kafkaStep() string {
	return fmt.Sprintf("brokers %v are asked for a producer and a checkpoint, and have not given them; the log has what they say", o.cfg.Kafka.Brokers)
}

// settle writes down where the relay begins, if it begins anew, and makes the
// producer. A gap makes relay_state idempotent, and then nobody knows whose
// transaction may be open: the producer, which settles it, comes before. In any other
// case it comes after: a beginning that waits for Kafka would be measured again, and a
// relay that has to be decided about would fence a rightful one at every try.
func (o *opener) settle(ctx context.Context) (err error) {
	if o.begin.Anew() && o.row.Mode == ModeExactlyOnce {
		o.opening.unbounded(WaitKafka, o.kafkaStep())
		if err := o.producer(ctx); err != nil {
			return err
		}
	}
	o.opening.unbounded(WaitPostgres, "write down where the relay begins, and read its gaps")
	if o.row, err = o.begin.BeginAnew(ctx, o.row, o.at, o.reader.System().Timeline); err != nil {
		return err
	}
	if o.begin.Anew() {
		o.last.begunAnew()
	}
	if o.covered, o.gaps, err = o.begin.LoadGaps(ctx); err != nil || o.tx != nil {
		return err
	}
	o.opening.unbounded(WaitKafka, o.kafkaStep())
	return o.producer(ctx)
}

// takeOver raises the epoch. A relay that never ran begins as an idempotent one
// at its slot, and changes its mode from there.
func (o *opener) takeOver(ctx context.Context) (err error) {
	if err := o.state.Begun(ctx); err != nil {
		return err
	}
	if o.at, err = o.state.SlotPosition(ctx); err != nil {
		return err
	}
	system := o.reader.System()
	o.row, err = o.state.Take(ctx, outboxdb.InsertRelayStateParams{
		Slot: o.cfg.SlotName(), Relay: o.cfg.Name, Database: system.DBName, SystemIdentifier: system.SystemID,
		Timeline: system.Timeline, ConfirmedLsn: o.at.String(), Mode: ModeIdempotent,
		Publication: o.cfg.PublicationName(),
	})
	return err
}

// start is where the session begins: at the checkpoint, or at what this process
// knows to have ended beyond it, if nobody else had the slot meanwhile.
func (o *opener) start() ledger.Checkpoint {
	if o.cfg.Kafka.Mode == ModeIdempotent && o.last.knowsMore(&o.kept, o.row, o.reader.System()) {
		return o.last.ended
	}
	return o.kept
}

// assemble makes the pump, and the sink of its mode.
func (o *opener) assemble(ctx context.Context) (err error) {
	if o.pump, err = stream.New(ctx, o.conf); err != nil {
		return err
	}
	if o.tx == nil {
		published, err := publisher.New(ctx, o.kafka, o.pump.Acknowledged)
		if err != nil {
			return err
		}
		o.sink = published
		o.pump.Idempotent(published, &o.saved)
		return nil
	}
	limits := o.cfg.Kafka.Transaction
	o.pump.ExactlyOnce(o.tx, stream.Transactions{
		Interval: limits.Interval, Longest: limits.longest(), MaxBytes: int64(limits.MaxBytes), Timeout: limits.Timeout,
		Room: &o.last.room, Segment: o.idle.Segment, Grace: o.cfg.StopGrace - lastWait(o.cfg.StopGrace),
		Bound: ledger.Checkpoint{Timeline: o.reader.System().Timeline, Session: o.id, Gap: o.covered.End()},
		Tick: func(ctx context.Context) (int64, error) {
			tick, err := o.pumps.RaiseTick(ctx)
			if err == nil {
				o.tick.Store(tick)
			}
			return tick, err
		},
	})
	return nil
}

// pumpConfig is that of a session which starts at a checkpoint. It opens the letters and
// what waits: what began before the start is not read again, and a release among it that
// has ended must not be opened.
func (o *opener) pumpConfig(ctx context.Context, start ledger.Checkpoint) (conf stream.Config, err error) {
	shown := o.shown
	shown.Lend = o.reader.Lend
	conf = stream.Config{
		Start: start, Nonce: o.snapshots.Nonce, State: o.pumps, Waiting: stream.NewTable(o.pumps, &start),
		Routing: stream.NewRouting(o.cfg.Name, o.cfg.policies(), o.kafka), Covered: o.covered,
		Repairs: o.begin.RepairFrom(o.gaps, o.kept.Repair),
		Refused: o.last.refused, Observer: o.counts, Hooks: shown, Log: o.log,
	}
	conf.Letters, err = letters.Open(ctx, o.pumps, letters.Config{
		Checkpoint: start.Order, MaxParked: o.cfg.MaxParkedAggregates, First: conf.Waiting.TakeUp,
	})
	return conf, err
}
