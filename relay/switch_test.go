package relay

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/state"
)

// foreign is a checkpoint that was moved by hand: it has no text.
var foreign = &ledger.Checkpoint{Order: 300}

// keeping is a Kafka in memory that keeps a checkpoint, or none, for slot
// onceward_orders of system 7000, and how to reach it.
func keeping(t *testing.T, kept *ledger.Checkpoint) publisher.Config {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	require.NoError(t, cluster.CreateTopic(publisher.DefaultCheckpointTopic, 2, map[string]string{"cleanup.policy": "compact"}))
	sink := sinkTo(cluster)
	if kept != nil {
		const name = "onceward-7000-onceward_orders"
		tx, err := publisher.NewTransactional(t.Context(), sink, publisher.TransactionConfig{ID: name, Group: name})
		require.NoError(t, err)
		meta := kept.Meta()
		if kept == foreign {
			meta = ""
		}
		require.NoError(t, tx.Commit(t.Context(), publisher.Position{Order: uint64(kept.Order), Meta: meta}))
		require.NoError(t, tx.Close())
	}
	return sink
}

func sinkTo(cluster *kfake.Cluster) publisher.Config {
	return publisher.Config{Brokers: cluster.ListenAddrs(), Insecure: true, Routes: []publisher.Route{{Topic: "t"}}, Logger: slog.New(slog.DiscardHandler)}
}

// Kafka's checkpoint counts in exactly-once mode, unless it is gone or lies behind
// relay_state, which only follows it. Before that mode was entered, nothing of it
// counts but how far the repair of a gap had come.
func TestWhichCheckpointCounts(t *testing.T) {
	gap := ledger.Repair{Gap: uuid.MustParse("0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a"), Cursor: 40}
	const ours, another = 1<<40 + 5, 1<<40 + 6
	in := func(order uint64) *ledger.Checkpoint {
		return &ledger.Checkpoint{Order: pglogrepl.LSN(order), Timeline: 3, Tick: 70, Letters: 4, Session: ours, Repair: gap}
	}
	of := func(session int64, order uint64) *ledger.Checkpoint {
		c := in(order)
		c.Session = session
		return c
	}
	inside := func(ordinal uint32) *ledger.Checkpoint {
		c := in(200)
		c.UpTo = ledger.Place{Commit: 300, Ordinal: ordinal}
		return c
	}
	row := ledger.Checkpoint{Order: 200, Session: ours, Reach: ledger.Reach{UpTo: ledger.Place{Commit: 300, Ordinal: 2}}}
	text, written := row.Meta(), row
	written.Timeline, written.Tick, written.Letters = 1, 60, 4
	strange := *of(another, 300)
	strange.Strange = true
	same := inside(2)
	same.Session = another
	over := in(300)
	over.Letters++ // which the database lacks
	repaired := written
	repaired.Repair = gap
	for name, tc := range map[string]struct {
		mode    string // of relay_state
		inKafka *ledger.Checkpoint
		want    ledger.Checkpoint
		says    string
	}{
		"further":                   {ModeExactlyOnce, in(300), *in(300), ""},
		"further in a transaction":  {ModeExactlyOnce, inside(3), *inside(3), ""},
		"the same":                  {ModeExactlyOnce, inside(2), *inside(2), ""},
		"behind":                    {ModeExactlyOnce, in(199), written, "is behind relay_state"},
		"behind in a transaction":   {ModeExactlyOnce, inside(1), written, "is behind relay_state"},
		"further, of another copy":  {ModeExactlyOnce, of(another, 300), strange, ""},
		"no further, of another":    {ModeExactlyOnce, same, *same, ""},
		"of a release before":       {ModeExactlyOnce, of(7, 300), *of(7, 300), ""},
		"gone":                      {ModeExactlyOnce, nil, written, "is gone, deleted or expired"},
		"moved by hand":             {ModeExactlyOnce, foreign, written, "or cannot be read"},
		"of an earlier time":        {ModeIdempotent, in(300), repaired, ""},
		"of a history that is over": {ModeIdempotent, over, written, ""},
		"never was any before":      {ModeIdempotent, nil, written, ""},
	} {
		t.Run(name, func(t *testing.T) {
			sink := keeping(t, tc.inKafka)
			s := newScriptedSession(t)
			var log strings.Builder
			s.log = slog.New(slog.NewTextHandler(&log, nil))
			s.cfg.Kafka.Mode = ModeExactlyOnce
			row := outboxdb.RelayState{
				Slot: "onceward_orders", SystemIdentifier: "7000", Timeline: 1, Tick: 60, ConfirmedLsn: "0/C8", Epoch: 6, Mode: tc.mode, DeadLetters: 4,
				Checkpoint: &text,
			}
			s.db.Returns("LoadRelayState", outboxdb.RelayState{ConfirmedLsn: "0/C8", Epoch: 7})
			o := s.opens(ledger.Checkpoint{}, row, nil)
			o.kafka = sink
			require.NoError(t, o.producer(t.Context()))
			require.NoError(t, o.recall(t.Context()))
			require.NoError(t, o.tx.Close())
			require.Equal(t, tc.want, o.kept)
			require.Contains(t, log.String(), tc.says)
			lost := 0
			if tc.says != "" {
				lost = 1
			}
			require.EqualValues(t, lost, s.counts.stats().CheckpointsLost)
			require.Equal(t, tc.says == "", log.Len() == 0)
		})
	}
}

// A relay that is idempotent, and was, asks Kafka for no checkpoint.
func TestAnIdempotentRelayReadsItsOwnTable(t *testing.T) {
	s := newScriptedSession(t)
	row := outboxdb.RelayState{ConfirmedLsn: "0/C8", Mode: ModeIdempotent, Epoch: 6}
	o := s.opens(ledger.Checkpoint{}, row, nil)
	require.NoError(t, o.producer(t.Context()))
	require.Nil(t, o.tx)
	require.NoError(t, o.recall(t.Context()))
	require.Equal(t, ledger.Checkpoint{Order: 200}, o.kept)
}

// A relay of an older release moves the position alone: what the text says of the
// stream is of another place then, what it says of a release is not.
func TestAPositionThatWasMovedAloneVoidsThePlace(t *testing.T) {
	was := ledger.Checkpoint{Order: 200, Reach: ledger.Reach{UpTo: ledger.Place{Commit: 300, Ordinal: 2}, Release: 4, Cursor: ledger.Cursor{Lane: 1}}}
	meta := was.Meta()
	same, err := state.Kept(outboxdb.RelayState{ConfirmedLsn: "0/C8", Checkpoint: &meta, Tick: 9, DeadLetters: 3, Timeline: 2, Epoch: 6})
	require.NoError(t, err)
	want := was
	want.Tick, want.Letters, want.Timeline = 9, 3, 2
	require.Equal(t, want, same, "what has columns of its own is read there")
	moved, err := state.Kept(outboxdb.RelayState{ConfirmedLsn: "0/12C", Checkpoint: &meta})
	require.NoError(t, err)
	require.Equal(t, ledger.Checkpoint{Order: 300, Reach: ledger.Reach{Release: 4, Cursor: ledger.Cursor{Lane: 1}}}, moved)
}

// A session that lost the slot while it asks for its producer stops asking: each
// try fences the owner.
func TestWhoLostTheSlotStopsAskingForAProducer(t *testing.T) {
	s := newScriptedSession(t)
	s.db.Returns("LoadRelayState", outboxdb.RelayState{ConfirmedLsn: "0/C8", Epoch: 8})
	err := (&opener{session: s.session}).whileOurs(t.Context(), func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	require.ErrorIs(t, err, state.ErrFenced)
}
