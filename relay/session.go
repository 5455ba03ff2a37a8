package relay

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"time"

	"github.com/jackc/pglogrepl"
	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/publisher"
)

// session is one ownership of the slot: a replication connection, an ordinary
// one and a producer, which live and are thrown away together.
type session struct {
	cfg      *Config
	log      *slog.Logger
	metrics  *Metrics
	state    *state
	reader   *cdc.Reader
	sink     *publisher.Publisher
	pipeline *pipeline

	durable           pglogrepl.LSN // the last checkpoint
	savedAt           time.Time
	tick              int64  // of the last checkpoint
	savedTransactions uint64 // that the last checkpoint has passed
	snapshots         *snapshots
	health            health
	catalog           string // of the publication, as it must stay
}

// owned is what a process remembers of its last session, so that the next one
// does not publish again what has ended beyond the last checkpoint.
type owned struct {
	systemID string
	timeline int32
	epoch    int64
	tick     int64
	ended    pglogrepl.LSN
}

// openSession connects and takes the slot, in the one order that is safe: the
// slot is the arbiter, so the epoch, the state and the producer come after
// START_REPLICATION.
func (r *Relay) openSession(ctx context.Context, silence int, last owned) (_ *session, err error) {
	cfg := &r.cfg
	dsn, err := cfg.DSN()
	if err != nil {
		return nil, err
	}
	conn, err := Connect(ctx, dsn, cfg.SlotName())
	if err != nil {
		return nil, err
	}
	s := &session{cfg: cfg, log: r.log, metrics: r.metrics, state: newState(conn, cfg.SlotName())}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.discard(ctx))
		}
	}()
	source := cdc.Config{
		DSN: dsn, Slot: cfg.SlotName(), Publication: cfg.PublicationName(), CreateSlot: cfg.Postgres.Slot.Create == "auto",
		FailoverSlot: cfg.Postgres.Slot.Failover, QueueBytes: int(cfg.Queue.Bytes), Logger: r.log,
	}
	if err = s.prepare(ctx, source); err != nil {
		return nil, err
	}
	if err = s.pace(ctx, &source, silence); err != nil {
		return nil, err
	}
	if s.reader, err = cdc.Open(ctx, source); err != nil {
		return nil, err
	}
	start, err := s.takeOver(ctx, last)
	if err != nil {
		return nil, err
	}
	s.pipeline = newPipeline(start, s.snapshots.nonce, r.log, r.metrics)
	sink, err := cfg.Publisher(r.log)
	if err != nil {
		return nil, err
	}
	if s.sink, err = publisher.New(ctx, sink, s.pipeline.acknowledged); err != nil {
		return nil, err
	}
	s.pipeline.sink = s.sink
	s.reader.Resume(start, s.durable)
	return s, nil
}

// prepare checks the server and makes the slot when it may. The first start
// over a table with rows is never decided in silence.
func (s *session) prepare(ctx context.Context, source cdc.Config) error {
	if err := cdc.Check(ctx, s.state.conn, source); err != nil {
		return err
	}
	_, existed, err := s.state.load(ctx)
	if err != nil {
		return err
	}
	if !existed && s.cfg.Outbox.Start == "ask" {
		fresh, err := s.state.slotOrEmptyOutbox(ctx)
		if err != nil {
			return err
		}
		if !fresh {
			return &FieldError{"outbox.start", "onceward.outbox holds rows and relay " + s.cfg.Name + " has never run; rows committed before " +
				"its slot is made are not published. Set outbox.start: now to publish only what commits from now on"}
		}
	}
	return cdc.EnsureSlot(ctx, s.state.conn, source, existed)
}

// pace fits the session to the server's wal_sender_timeout: a status update at
// least three times within it, and a limit of silence that starts at twice of
// it. The server may be busy and mute for longer: after a session that ended by
// silence the caller gives a higher factor.
func (s *session) pace(ctx context.Context, source *cdc.Config, factor int) error {
	timeout, err := cdc.SenderTimeout(ctx, s.state.conn)
	if err != nil {
		return err
	}
	source.StatusInterval = cdc.DefaultStatusInterval
	if timeout == 0 {
		timeout = time.Minute // the server's default
	} else {
		source.StatusInterval = max(10*time.Millisecond, min(source.StatusInterval, timeout/3))
	}
	source.SilenceLimit = min(timeout*time.Duration(factor), silenceMax)
	return nil
}

// takeOver raises the epoch and returns the position from which to publish.
func (s *session) takeOver(ctx context.Context, last owned) (pglogrepl.LSN, error) {
	slotPosition, err := s.state.slotPosition(ctx)
	if err != nil {
		return 0, err
	}
	system := s.reader.System()
	row, err := s.state.take(ctx, outboxdb.InsertRelayStateParams{
		Slot: s.cfg.SlotName(), Relay: s.cfg.Name, Database: system.DBName, SystemIdentifier: system.SystemID,
		Timeline: system.Timeline, ConfirmedLsn: slotPosition.String(), Mode: s.cfg.Kafka.Mode, Publication: s.cfg.PublicationName(),
	})
	if err != nil {
		return 0, err
	}
	checkpoint, err := parseLSN(row.ConfirmedLsn)
	if err != nil {
		return 0, err
	}
	if err := s.bind(ctx, row, checkpoint, slotPosition, last); err != nil {
		return 0, err
	}
	s.durable, s.savedAt, s.tick, s.snapshots = checkpoint, time.Now(), row.Tick, newSnapshots()
	start := checkpoint
	if last.systemID == system.SystemID && last.timeline == system.Timeline && last.epoch == row.Epoch-1 && last.ended <= system.XLogPos {
		start = max(start, last.ended)
	}
	if start > checkpoint {
		s.savedTransactions = math.MaxUint64 // what ended beyond the checkpoint is due
	}
	s.log.InfoContext(ctx, "slot taken", "slot", s.cfg.SlotName(), "epoch", row.Epoch, "checkpoint", checkpoint.String(), "start", start.String())
	return start, nil
}

// run streams until ctx ends, which it answers with a flush and a last
// checkpoint, or until something breaks. The session is over when it returns.
func (s *session) run(ctx context.Context) (owned, error) {
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.reader.Run(gctx) })
	group.Go(func() error { return s.pipeline.pump(gctx, s.reader) })
	group.Go(func() error { return s.checkpoints(gctx) })
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
		err = s.finish(context.WithoutCancel(ctx))
	}
	err = errors.Join(err, s.discard(ctx))
	last := owned{systemID: s.reader.System().SystemID, timeline: s.reader.System().Timeline, epoch: s.state.epoch, tick: s.tick}
	if now, statusErr := s.pipeline.status(); statusErr == nil {
		last.ended = now.position
	}
	return last, err
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
	_ = s.state.conn.Close(ctx)
	return errors.Join(errs...)
}
