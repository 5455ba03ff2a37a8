package relay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/beginning"
	"github.com/onceward/onceward/relay/internal/retry"
	"github.com/onceward/onceward/relay/internal/scripted"
	"github.com/onceward/onceward/relay/internal/stream"
)

// installed is a scripted PostgreSQL on which a relay has run and nothing is wrong,
// and a Kafka in memory: all that the start of a session asks for. The row of
// relay_state is at epoch 6 and position 0/C8, where the slot stands too.
type installed struct {
	*scripted.Server
	kafka *kfake.Cluster
	row   outboxdb.RelayState
	slot  []any // its row of pg_replication_slots; nil: there is none
}

// slotRow is what the relay reads of a slot.
type slotRow struct {
	Plugin    string
	Ours      bool
	WalStatus string
	Made      bool
	Database  string
	TwoPhase  bool
}

// columns are those that the relay needs, of whichever of its tables.
func columns() (all []any) {
	for oid, names := range map[uint32][]string{
		pgtype.UUIDOID: {"id", "replay_id", "control_id", "letter_id"}, pgtype.XID8OID: {"tx_id"}, pgtype.ByteaOID: {"payload"}, pgtype.JSONBOID: {"headers"},
		pgtype.TextOID: {
			"namespace", "aggregate_type", "aggregate_id", "event_type", "content_type", "traceparent", "mode", "replay_group", "topic", "action", "reason", "requested_by",
		},
		pgtype.TimestamptzOID: {"created_at"}, pgtype.Int8OID: {"seq"}, pgtype.BoolOID: {"payload_null"},
	} {
		for _, name := range names {
			all = append(all, struct {
				Name string
				OID  uint32
			}{name, oid})
		}
	}
	return all
}

func newInstalled(t *testing.T) *installed {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	require.NoError(t, cluster.CreateTopic(publisher.DefaultCheckpointTopic, 2, map[string]string{"cleanup.policy": "compact"}))
	db := &installed{Server: scripted.New(t), kafka: cluster, slot: []any{slotRow{"pgoutput", true, "reserved", true, "shop", false}}, row: outboxdb.RelayState{
		Slot: "onceward_orders", Relay: "orders", Database: "shop", SystemIdentifier: "7000", Timeline: 1, Tick: 30, ConfirmedLsn: "0/C8", Epoch: 6,
		Mode: ModeIdempotent, Publication: "onceward_orders", UpdatedAt: time.Now().UTC(),
	}}
	db.Returns("LockBeginning", outboxdb.LockBeginningRow{Ours: true})
	db.Returns("UnlockBeginning", true)
	db.Returns("SlotActive", int32(0))
	db.Returns("Began", true)
	db.Returns("TakeSnapshot", asKnown("50:50:"))
	db.Returns("PollWords", outboxdb.PollWordsRow{})
	db.Returns("LockEpoch", int64(7))
	db.Returns("CountLetters", int64(0))
	db.Returns("NewestLetter", "0/0")
	db.Returns("SaveCheckpoint", int64(31))
	db.Returns("RaiseTick", int64(31))
	db.Returns("AssignTransaction", uint64(49))
	db.Returns("PassedBy", true)
	db.Returns("OtherRelays")
	db.Returns("max(version_id)", int64(999)) // of a later release, which is let pass
	db.Returns("LastOrdinal", int32(0))
	db.On("LoadRelayState", func([]string) scripted.Reply { return scripted.One(db.row) })
	db.On("BumpEpoch", func([]string) scripted.Reply { db.row.Epoch++; return scripted.One(db.row) })
	db.Returns("pg_control_system", "7000")
	db.Returns("pg_is_in_recovery", struct {
		Version                        int32
		WALLevel, Encoding, Role       string
		Replication, Standby, ReadOnly bool
		Pooled                         bool
	}{180003, "logical", "UTF8", "relay", true, false, false, false})
	db.Returns("has_schema_privilege", struct {
		Unlogged *string
		Usable   bool
	}{nil, true})
	db.Returns("pg_attribute", columns()...)
	db.Returns("pg_sequence")
	db.Returns("partdefid", struct {
		Default    string
		Partitions bool
	}{"", true})
	db.Returns("pubviaroot", struct {
		Insert, Others, ViaRoot, AllTables bool
		Covered, Foreign                   int32
	}{true, false, true, false, 3, 0})
	db.Returns("wal_sender_timeout", struct{ Timeout, Segment int64 }{60_000, segmentSize})
	db.On("coalesce(plugin", func([]string) scripted.Reply { return scripted.Reply{Rows: db.slot} })
	db.On("SELECT confirmed_flush_lsn::text", func([]string) scripted.Reply { return scripted.One(db.row.ConfirmedLsn) })
	return db
}

// open opens a session.
func (db *installed) open(t *testing.T, last *owned, tweak func(*Config)) (*session, error) {
	t.Helper()
	r := testRelay(t, func(c *Config) {
		c.Postgres.DSN, c.Kafka.Brokers = db.DSN(), db.kafka.ListenAddrs()
		if tweak != nil {
			tweak(c)
		}
	})
	if last.memory == nil {
		last.memory = new(publisher.Memory)
	}
	s, err := r.openSession(t.Context(), retry.New(), last)
	if err == nil {
		t.Cleanup(func() { _ = s.discard(t.Context()) })
	}
	return s, err
}

// producers notes in the log when a producer is made.
func (db *installed) producers() {
	db.kafka.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) {
		db.kafka.KeepControl()
		db.Note("InitProducerID")
		return nil, nil, false
	})
}

func exactlyOnceMode(c *Config) { c.Kafka.Mode = ModeExactlyOnce }

// order requires that statements were asked in an order, whatever came between.
func order(t *testing.T, log []string, want ...string) {
	t.Helper()
	at := 0
	for _, asked := range scripted.Names(log) {
		if at < len(want) && asked == want[at] {
			at++
		}
	}
	require.Equal(t, len(want), at, "%q does not come in its place in %q", want[min(at, len(want)-1)], scripted.Names(log))
}

// The slot is the arbiter: the epoch is raised and the producer made by who holds
// it, and the next one may begin then; what a session writes comes after that.
func TestTheSlotComesBeforeEpochAndProducer(t *testing.T) {
	for mode, tweak := range map[string]func(*Config){ModeIdempotent: nil, ModeExactlyOnce: exactlyOnceMode} {
		t.Run(mode, func(t *testing.T) {
			db := newInstalled(t)
			db.producers()
			var last owned
			s, err := db.open(t, &last, tweak)
			require.NoError(t, err)
			require.True(t, last.took)
			require.EqualValues(t, 7, s.state.Epoch)
			require.EqualValues(t, 7, s.pumps.Epoch)
			require.EqualValues(t, 200, s.saved.Load().Order)
			order(t, db.Log(), "LockBeginning", "LoadRelayState", "SlotActive", "START_REPLICATION", "UnlockBeginning", "InsertRelayState", "BumpEpoch", "InitProducerID")
			order(t, db.Log(), "BumpEpoch", "TakeSnapshot", "LockEpoch", "DeleteWaitingBeyond", "SettleLetters", "LoadLanes", "SaveKafka", "PollWords")
			if mode == ModeExactlyOnce {
				order(t, db.Log(), "BumpEpoch", "InitProducerID", "TakeSnapshot", "RaiseTick", "EnterExactlyOnce", "SaveCheckpoint", "SettleLetters")
				require.Equal(t, s.id, s.saved.Load().Session)
				require.Contains(t, db.Log("SaveCheckpoint")[0], fmt.Sprintf(" epoch=%d ", s.id), "the database knows the session before its first transaction")
				name := transactionID(db.row)
				tx, err := publisher.NewTransactional(t.Context(), sinkTo(db.kafka), publisher.TransactionConfig{ID: name, Group: name})
				require.NoError(t, err)
				pos, _ := tx.Checkpoint()
				require.NoError(t, tx.Close())
				require.Contains(t, pos.Meta, fmt.Sprintf(" epoch=%d ", s.id), "and Kafka, when the mode changes")
			}
		})
	}
}

// Whoever does not get the slot is a standby, and has changed nothing.
func TestAStandbyChangesNothing(t *testing.T) {
	for name, script := range map[string]func(*installed){
		"another begins": func(db *installed) {
			db.Returns("LockBeginning", outboxdb.LockBeginningRow{})
			db.Returns("BeginningStranger")
		},
		"another streams":       func(db *installed) { db.Returns("SlotActive", int32(4711)) },
		"another makes it":      func(db *installed) { db.slot = []any{slotRow{"pgoutput", true, "reserved", false, "shop", false}} },
		"another has the start": func(db *installed) { db.Streaming = true },
	} {
		t.Run(name, func(t *testing.T) {
			db := newInstalled(t)
			script(db)
			last := owned{took: true}
			_, err := db.open(t, &last, nil)
			require.ErrorIs(t, err, cdc.ErrSlotActive)
			require.False(t, last.took)
			for _, asked := range scripted.Names(db.Log()) {
				require.NotContains(t, []string{"BumpEpoch", "InsertRelayState", "SaveCheckpoint", "SavePublished", "SaveKafka", "SavePublicationCatalog"}, asked)
			}
		})
	}
}

// A session begins behind what its process has ended, but the slot is confirmed only
// up to the checkpoint, which is what is durable; and the first checkpoint is due.
func TestAStartBeyondTheCheckpointConfirmsTheCheckpoint(t *testing.T) {
	db := newInstalled(t)
	refused := map[uuid.UUID]string{uuid.New(): "MESSAGE_TOO_LARGE"}
	last := owned{epoch: 6, Known: beginning.Known{SystemID: "7000", Timeline: 1, Tick: 30}, refused: refused, ended: ledger.Checkpoint{Order: 300, Reach: ledger.Reach{UpTo: ledger.Place{Commit: 310, Ordinal: 4}}}}
	s, err := db.open(t, &last, nil)
	require.NoError(t, err)
	require.Equal(t, last.ended, s.conf.Start)
	require.EqualValues(t, refused, s.conf.Refused, "what a broker refused is known to the next session")
	require.Equal(t, []string{"SettleLetters onceward_orders 0/12C"}, db.Log("SettleLetters"), "what began before the start is not read again")
	require.Equal(t, []string{"DeleteWaitingBeyond onceward_orders 0/12C 0/136 4"}, db.Log("DeleteWaitingBeyond"))
	require.EqualValues(t, 200, s.saved.Load().Order)
	now := s.mustStatus(t)
	require.EqualValues(t, 300, now.Position)
	require.NoError(t, s.checkpoint(t.Context(), now, false))
	require.Len(t, db.Log("SaveCheckpoint"), 1, "it is due at once")

	db = newInstalled(t)
	last.ended.Reach = ledger.Reach{}
	last.epoch = 6
	s, err = db.open(t, &last, nil)
	require.NoError(t, err)
	require.NoError(t, s.checkpoint(t.Context(), s.mustStatus(t), false))
	require.Len(t, db.Log("SaveCheckpoint"), 1, "also where it ends between two transactions")

	db = newInstalled(t)
	last.epoch = 6
	s, err = db.open(t, &last, nil)
	require.NoError(t, err)
	require.NoError(t, s.discard(t.Context()))
	require.EqualValues(t, 200, db.Confirmed())
}

func (s *session) mustStatus(t *testing.T) stream.Status {
	t.Helper()
	now, err := s.pump.HasEnded()
	require.NoError(t, err)
	return now
}

// A relay that an operator has paused publishes nothing before its first tick.
func TestAPausedRelayBeginsPaused(t *testing.T) {
	db := newInstalled(t)
	db.Returns("PollWords", outboxdb.PollWordsRow{Paused: true})
	s, err := db.open(t, &owned{}, nil)
	require.NoError(t, err)
	require.True(t, s.pump.Commands().Paused)
}

// The tick of a session is the row's where that is ahead: what the process has seen
// is what a database that went back lacks.
func TestASessionKnowsTheTickOfTheRow(t *testing.T) {
	db := newInstalled(t)
	s, err := db.open(t, &owned{}, nil)
	require.NoError(t, err)
	require.EqualValues(t, 30, s.tick.Load())
	require.Equal(t, ledger.Checkpoint{Order: 200, Timeline: 1, Tick: 30}, *s.saved.Load())
}

// A start that fails has published nothing in its epoch, so that what the process
// knows goes on to count; unless another had the slot in between.
func TestAStartThatFailsIsNoOtherOwner(t *testing.T) {
	for name, tc := range map[string]struct{ before, want int64 }{"its own epoch before": {6, 7}, "another's": {5, 5}} {
		t.Run(name, func(t *testing.T) {
			db := newInstalled(t)
			db.On("ParkedSet", func([]string) scripted.Reply { return scripted.Reply{Err: "terminating connection"} })
			last := owned{epoch: tc.before}
			_, err := db.open(t, &last, nil)
			require.ErrorContains(t, err, "terminating connection")
			require.True(t, last.took)
			require.Equal(t, tc.want, last.epoch)
		})
	}
}

// A status update comes three times within wal_sender_timeout, and silence is borne
// the longer the more silent sessions there were.
func TestASessionKeepsTheServersPace(t *testing.T) {
	for name, tc := range map[string]struct {
		timeout         int64 // ms
		factor          int
		interval, limit time.Duration
	}{
		"the server's default": {60_000, 2, time.Second, 2 * time.Minute},
		"a short one":          {900, 2, 300 * time.Millisecond, 1800 * time.Millisecond},
		"none":                 {0, 2, time.Second, 2 * time.Minute},
		"after silence":        {60_000, 8, time.Second, 8 * time.Minute},
		"after much of it":     {60_000, 1 << 16, time.Second, time.Hour},
		"very short":           {3, 2, 10 * time.Millisecond, 6 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScriptedSession(t)
			s.db.Returns("wal_sender_timeout", struct{ Timeout, Segment int64 }{tc.timeout, segmentSize})
			var source cdc.Config
			require.NoError(t, (&opener{session: s.session}).pace(t.Context(), &source, tc.factor))
			require.Equal(t, tc.interval, source.StatusInterval)
			require.Equal(t, tc.limit, source.SilenceLimit)
		})
	}
}

// Of what a process knew of its last session nothing fits a relay that begins anew,
// but what it knows of Kafka.
func TestABeginningForgetsTheSessionBefore(t *testing.T) {
	memory, refused := new(publisher.Memory), map[uuid.UUID]string{uuid.New(): "x"}
	last := owned{Known: beginning.Known{SystemID: "7000", Timeline: 1, Tick: 30, Letters: 4}, epoch: 6, ended: ledger.Checkpoint{Order: 300}, reached: 300, gap: &beginning.GapError{Code: beginning.CodeWentBack}, memory: memory, narrow: []string{"t"}, refused: refused, room: 7}
	last.begunAnew()
	require.Equal(t, owned{memory: memory, narrow: []string{"t"}, refused: refused, room: 7}, last)
}

// A repair comes before the stream, and how far it has come is written when the
// relay stops in the middle of it.
func TestARepairComesBeforeTheStream(t *testing.T) {
	s := newScriptedSession(t)
	s.pumps.Conn.TypeMap().RegisterDefaultPgType([]uuid.UUID{}, "_uuid")
	id := uuid.New()
	rows := []any{outboxdb.OutboxRow{ID: uuid.New(), Seq: 10}, outboxdb.OutboxRow{ID: uuid.New(), Seq: 20}, outboxdb.OutboxRow{ID: uuid.New(), Seq: 30}}
	fetched := false
	s.db.On("FETCH", func([]string) scripted.Reply {
		var places []any
		for _, row := range rows {
			if r := row.(outboxdb.OutboxRow); !fetched {
				places = append(places, struct {
					ID  uuid.UUID
					Seq int64
				}{r.ID, r.Seq})
			}
		}
		fetched = true
		return scripted.Reply{Rows: places}
	})
	s.db.Returns("RowsOfGap", rows...)
	s.db.Returns("LastOrdinal", int32(0))
	s.conf.Repairs = []stream.Gap{{ID: id, Cause: beginning.CodeSlotAdvanced, Cursor: math.MinInt64}}
	s.assembled(t, s.kafka)
	var seen int
	s.kafka.refuse = func(publisher.Event) error {
		if seen++; seen == 3 {
			return errors.New("the third is enough")
		}
		return nil
	}
	require.ErrorContains(t, s.pump.Repair(t.Context()), "the third is enough")
	require.NoError(t, s.finish(t.Context(), time.Now()))
	require.Equal(t, []string{fmt.Sprintf("MoveGap 20 f %s 7", id)}, s.db.Log("MoveGap"), "it is not over")

	s = newScriptedSession(t)
	s.conf.Repairs = []stream.Gap{{ID: id, Cause: beginning.CodeSlotAdvanced, Cursor: math.MinInt64}}
	s.db.Returns("LastOrdinal", int32(0))
	s.db.On("FETCH", func([]string) scripted.Reply { return scripted.Reply{Err: "the first is enough"} })
	s.assembled(t, s.kafka)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.ErrorContains(t, s.run(ctx, &owned{}), "the first is enough")
	require.False(t, slices.Contains(scripted.Names(s.db.Log()), "SaveCheckpoint"))
}
