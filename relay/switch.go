package relay

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/state"
)

// producer makes the transactional producer, if the mode of relay_state or the
// configured one is exactly-once, which nobody but the holder of the slot may do: it
// settles or fences every older one. The session owns it.
func (o *opener) producer(ctx context.Context) error {
	if o.cfg.Kafka.Mode != ModeExactlyOnce && o.row.Mode != ModeExactlyOnce {
		return nil
	}
	name := transactionID(o.row)
	return o.whileOurs(ctx, func(ctx context.Context) (err error) {
		o.tx, err = publisher.NewTransactional(ctx, o.kafka,
			publisher.TransactionConfig{ID: name, Group: name, Timeout: o.cfg.Kafka.Transaction.Timeout})
		if err == nil {
			o.sink = o.tx
		}
		return err
	})
}

// transactionID is the transactional id of a relay, and the group of its checkpoint.
func transactionID(row outboxdb.RelayState) string {
	return fmt.Sprintf("onceward-%s-%s", row.SystemIdentifier, row.Slot)
}

// TransactionalID is the transactional id that the relay has in exactly-once mode, and the group of
// its checkpoint, also before its first start.
func TransactionalID(ctx context.Context, cfg *Config, conn *pgx.Conn) (string, error) {
	row, existed, err := state.New(conn, cfg.SlotName()).Load(ctx)
	if err == nil && !existed {
		row.Slot = cfg.SlotName()
		err = conn.QueryRow(ctx, `SELECT system_identifier::text FROM pg_catalog.pg_control_system()`).Scan(&row.SystemIdentifier)
	}
	return transactionID(row), err
}

// dropProducer ends the transactional producer of a relay that goes on without.
func (o *opener) dropProducer() error {
	tx := o.tx
	if tx == nil {
		return nil
	}
	o.tx, o.sink = nil, nil
	return tx.Close()
}

// recall reads the checkpoint from where the mode of relay_state keeps it; tx is
// nil where both modes are idempotent.
func (o *opener) recall(ctx context.Context) (err error) {
	if o.kept, err = state.Kept(o.row); err != nil || o.tx == nil {
		return err
	}
	kept := &o.kept
	pos, found := o.tx.Checkpoint()
	if o.row.Mode != ModeExactlyOnce {
		// What Kafka keeps is of an earlier time in that mode, as before a gap was
		// written down: true of it is only how far the repair of an older gap has come,
		// if the database has what became letters, or waits, by then: one that went back
		// may lack it.
		if old, err := ledger.Parse(pos.Order, pos.Meta); found && err == nil && old.Letters <= o.row.DeadLetters {
			kept.Repair = old.Repair
		}
		return nil
	}
	name := transactionID(o.row)
	inKafka, err := ledger.Parse(pos.Order, pos.Meta)
	if !found || err != nil {
		o.log.ErrorContext(ctx, "the checkpoint in Kafka is gone, deleted or expired, or cannot be read; the relay goes on from relay_state, and publishes again what was committed since",
			"group", name, "topic", publisher.DefaultCheckpointTopic, "error", err, "from", kept.Order.String(), "written", o.row.UpdatedAt)
		o.counts.checkpointLost()
		return nil
	}
	if inKafka.Order < kept.Order || inKafka.Order == kept.Order && inKafka.UpTo.Before(kept.UpTo) {
		o.log.ErrorContext(ctx, "the checkpoint in Kafka is behind relay_state, which only follows it: set back, or lost; the relay goes on from relay_state",
			"group", name, "checkpoint", inKafka.Order.String(), "place", inKafka.UpTo.String(), "from", kept.Order.String(), "from_place", kept.UpTo.String())
		o.counts.checkpointLost()
		return nil
	}
	inKafka.Strange = !kept.Knows(&inKafka)
	o.kept = inKafka
	return nil
}

// ownerCheck is how often a session looks whether the slot is still its own
// while it asks for a producer; ownerLimit is how long it waits for the answer.
const (
	ownerCheck = 200 * time.Millisecond
	ownerLimit = 5 * time.Second
)

// whileOurs runs ask, which fences whoever has the producer, and ends it once
// another session has taken the slot: its error is [state.ErrFenced] then. Who asks is
// told to ask again for as long as the owner has a transaction open, which every
// try aborts: a session that lost the slot meanwhile, because its process stood
// still or its walsender ended, would fence the owner for as long as it is
// patient. The replication connection, which nobody reads yet, does not tell.
func (o *opener) whileOurs(ctx context.Context, ask func(context.Context) error) error {
	group, asking := errgroup.WithContext(ctx)
	done := make(chan struct{})
	group.Go(func() error {
		defer close(done)
		return ask(asking)
	})
	group.Go(func() error {
		tick := time.NewTicker(ownerCheck)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return nil
			case <-tick.C:
			}
			// Not asking: its end would close the connection with the query.
			limited, cancel := context.WithTimeout(ctx, ownerLimit)
			err := o.state.Owns(limited)
			cancel()
			if err != nil {
				return err
			}
		}
	})
	return group.Wait()
}

// change takes the checkpoint to where the configured mode keeps it, if
// relay_state has the other mode. It is written there first: a crash in between
// does the same again. It leaves the producer that goes on, if one does.
func (o *opener) change(ctx context.Context) error {
	from, to, kept := o.row.Mode, o.cfg.Kafka.Mode, &o.kept
	switch {
	case from == to && to == ModeIdempotent: // a gap may have been written down meanwhile
		return o.dropProducer()
	case from == to:
		return nil
	}
	level := slog.LevelWarn
	if o.begin.Anew() {
		level = slog.LevelDebug // the checkpoint is a new one, and is taken to its place
	}
	o.log.Log(ctx, level, "the checkpoint moves to where this mode keeps it: the mode was changed, or a gap was written down",
		"mode", to, "from", from, "checkpoint", kept.Order.String())
	if to == ModeIdempotent {
		tick, err := o.state.LeaveExactlyOnce(ctx, kept)
		if err != nil {
			return err
		}
		o.tick.Store(tick)
		return o.dropProducer()
	}
	tick, err := o.pumps.RaiseTick(ctx)
	if err != nil {
		return err
	}
	o.tick.Store(tick)
	kept.Tick, kept.Timeline, kept.Session, kept.Gap = tick, o.reader.System().Timeline, o.id, o.covered.End()
	if err := o.tx.Commit(ctx, publisher.Position{Order: uint64(kept.Order), Meta: kept.Meta()}); err != nil {
		return fmt.Errorf("write the checkpoint to Kafka: %w", err)
	}
	fault.Crash(fault.BeforeMode)
	return o.state.EnterExactlyOnce(ctx)
}
