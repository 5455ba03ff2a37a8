package letters

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/relay/internal/scripted"
	"github.com/onceward/onceward/relay/internal/state"
)

// scriptedLetters are letters over a scripted PostgreSQL, of a session that begins
// at 0/C8; what opening them asked is forgotten.
func scriptedLetters(t *testing.T) (*scripted.Server, *Store) {
	t.Helper()
	db := scripted.New(t)
	db.Returns("LockEpoch", int64(7))
	db.Returns("CountLetters", int64(4))
	db.Returns("NewestLetter", "0/0")
	db.Returns("SkipStands", true)
	l, err := Open(t.Context(), ownState(db), Config{Checkpoint: 200, MaxParked: 10})
	require.NoError(t, err)
	db.Forget()
	return db, l
}

// A session takes up what the last one left in one transaction of its epoch: what
// waited first, then the retries that the checkpoint has passed are settled, and
// the others opened again, because their controls are read again.
func TestASessionTakesBackWhatItsCheckpointHasNotPassed(t *testing.T) {
	db := scripted.New(t)
	db.Returns("LockEpoch", int64(7))
	db.Returns("CountLetters", int64(4))
	db.Returns("NewestLetter", "0/190")
	db.Returns("ParkedSet", outboxdb.ParkedSetRow{Namespace: "shop", AggregateType: "order", AggregateID: "a", Position: "0/12C", Seq: 9})
	first := func(ctx context.Context, q *outboxdb.Queries) error {
		_, err := q.DeleteEmptyLanes(ctx, "onceward_orders")
		return err
	}
	l, err := Open(t.Context(), ownState(db), Config{Checkpoint: 200, MaxParked: 10, First: first})
	require.NoError(t, err)
	asked := db.Log()
	require.Equal(t, []string{"SET", "begin", "LockEpoch", "DeleteEmptyLanes", "SettleLetters", "ReopenLetters", "CountLetters", "commit", "NewestLetter", "ParkedSet"}, scripted.Names(asked))
	require.Contains(t, asked[0], "SET synchronous_commit = on;")
	require.Equal(t, "LockEpoch onceward_orders 7", asked[2])
	require.Equal(t, "SettleLetters onceward_orders 0/C8", asked[4])
	require.Equal(t, "CountLetters 0  onceward_orders", asked[6])
	require.EqualValues(t, 4, l.State.Written)
	row := &outbox.Row{Namespace: "shop", AggregateType: "order", AggregateID: []byte("a"), Seq: 10}
	require.True(t, l.Parked(row, 300), "of the same transaction, and later")
	require.False(t, l.Parked(row, 299), "it comes before the letter")
	require.EqualValues(t, 400, l.beyond.newest)
}

// Nothing of letters is written by a session whose epoch is over, whatever it is.
func TestLettersOfAnEpochThatIsOverChangeNothing(t *testing.T) {
	control := &cdc.Control{ID: uuid.New(), Action: cdc.ActionRetry, Namespace: "shop", AggregateType: "order", AggregateID: []byte("a")}
	dead := Dead{Row: rowOf("a"), Commit: 300, Class: ClassBadRow, Cause: "bad", Holds: true}
	for name, write := range map[string]func(context.Context, *Store) error{
		"park": func(ctx context.Context, l *Store) error { return l.Write(ctx, dead) },
		"skip": func(ctx context.Context, l *Store) error { _, err := l.Skip(ctx, dead); return err },
		"act": func(ctx context.Context, l *Store) error {
			_, err := l.Apply(ctx, control, nil, 300, false)
			return err
		},
		"reopen": func(ctx context.Context, l *Store) error { return l.Reopen(ctx, control, 0) },
		"fail": func(ctx context.Context, l *Store) error {
			return (&Release{letters: l, control: control.ID}).Fail(ctx, oneLetter(0, true), ClassRecord, "x")
		},
		"give up": func(ctx context.Context, l *Store) error {
			_, err := (&Release{letters: l, control: control.ID}).Skip(ctx, oneLetter(0, true))
			return err
		},
		"settle": func(ctx context.Context, l *Store) error {
			l.unsettled = []pglogrepl.LSN{150}
			return l.Settle(ctx, 200)
		},
	} {
		t.Run(name, func(t *testing.T) {
			db, l := scriptedLetters(t)
			db.On("LockEpoch", scripted.Fenced)
			require.ErrorIs(t, write(t.Context(), l), state.ErrFenced)
			require.Equal(t, []string{"begin", "LockEpoch", "rollback"}, scripted.Names(db.Log()))
			require.EqualValues(t, 4, l.State.Written)
			require.Zero(t, l.ParkedCount())
		})
	}
}

// The counter that a checkpoint carries counts letters, and not tries: an event that
// has one already keeps it.
func TestOnlyFreshLettersCount(t *testing.T) {
	db, l := scriptedLetters(t)
	known := rowOf("a")
	db.On("InsertLetter", func(args []string) scripted.Reply {
		if slices.Contains(args, known.ID.String()) {
			return scripted.Reply{} // ON CONFLICT DO NOTHING
		}
		return scripted.One(uuid.New())
	})
	db.Returns("CountLetters", int64(6))
	dead := []Dead{{Row: rowOf("a"), Commit: 300, Holds: true}, {Row: known, Commit: 300}, {Row: rowOf("b"), Commit: 300}}
	require.NoError(t, l.Write(t.Context(), dead...))
	require.Equal(t, []string{"begin", "LockEpoch", "InsertLetter", "InsertLetter", "InsertLetter", "CountLetters", "commit"}, scripted.Names(db.Log()))
	require.Equal(t, []string{"CountLetters 2  onceward_orders"}, db.Log("CountLetters"))
	require.EqualValues(t, 6, l.State.Written)
}

// Letters are written all or none: one that cannot be is the error of all.
func TestALetterThatCannotBeWrittenUndoesTheOthers(t *testing.T) {
	db, l := scriptedLetters(t)
	first := true
	db.On("InsertLetter", func([]string) scripted.Reply {
		if first {
			first = false
			return scripted.One(uuid.New())
		}
		return scripted.Reply{Err: "no space left on device"}
	})
	err := l.Write(t.Context(), Dead{Row: rowOf("a")}, Dead{Row: rowOf("b")})
	require.ErrorContains(t, err, "no space left on device")
	require.Equal(t, "rollback", db.Log()[len(db.Log())-1])
	require.Empty(t, db.Log("CountLetters"))
	require.EqualValues(t, 4, l.State.Written)
}

// An event that an operator has skipped gets a letter that is discarded, holds
// nothing and says who asked; the word is forgotten in the same transaction.
func TestASkippedEventsLetterSaysWhoAskedAndForgetsTheWord(t *testing.T) {
	control := uuid.New()
	for name, tc := range map[string]struct {
		who  []any
		want []string
	}{
		"by the tool": {[]any{outboxdb.WhoSkippedRow{ControlID: control, RequestedBy: "alice", Reason: "a broken row"}}, []string{control.String(), "alice", "a broken row"}},
		"by hand":     {nil, []string{"an operator", "relay_state.skip"}},
	} {
		t.Run(name, func(t *testing.T) {
			db, l := scriptedLetters(t)
			db.Returns("WhoSkipped", tc.who...)
			db.Returns("InsertLetter", uuid.New())
			it := cdc.Item{Kind: cdc.KindEvent, Row: rowOf("a")}
			done, err := l.Skip(t.Context(), Dead{Row: it.Row, Commit: 300, Holds: true})
			require.NoError(t, err)
			require.True(t, done)
			inserted := db.Log("InsertLetter")[0]
			for _, want := range append(tc.want, "0/12C", classSkipped, letterDiscarded, "an operator told the relay to skip it") {
				require.Contains(t, inserted, want)
			}
			require.True(t, strings.HasSuffix(inserted, " f"), "it holds nothing")
			require.Equal(t, []string{"CountLetters 1 " + it.Row.ID.String() + " onceward_orders"}, db.Log("CountLetters"))
		})
	}
}

// The database is asked to settle when a checkpoint has passed a control that
// released something, once for each.
func TestARetryIsSettledOnce(t *testing.T) {
	db, l := scriptedLetters(t)
	l.unsettled = []pglogrepl.LSN{300, 400}
	require.NoError(t, l.Settle(t.Context(), 300))
	require.Empty(t, db.Log())
	require.NoError(t, l.Settle(t.Context(), 301))
	require.Equal(t, []string{"SettleLetters onceward_orders 0/12D"}, db.Log("SettleLetters"))
	require.Equal(t, []pglogrepl.LSN{400}, l.unsettled)
	require.NoError(t, l.Settle(t.Context(), 350))
	require.Len(t, db.Log("SettleLetters"), 1)
}

// A control acts once; read again it releases what it released then. What one that
// waited for its route releases is settled when it is forgotten, by no checkpoint.
func TestAControlActsOnceAndIsRepeated(t *testing.T) {
	control := &cdc.Control{
		ID: uuid.New(), Action: cdc.ActionRetry, Namespace: "shop", AggregateType: "order", AggregateID: []byte("a"), RequestedBy: "alice", Reason: "mended",
	}
	for name, tc := range map[string]struct {
		repeated, waited bool
		want             []string
		settled          string
	}{
		"the first time":       {want: []string{"RecordControl", "ReleaseAggregate", "OldestHolding", "RecordEffect", "CountLetters"}, settled: "0/12C"},
		"read again":           {repeated: true, want: []string{"RecordControl", "ReleaseAgain", "GiveUpLetters", "OldestHolding", "CountLetters"}, settled: "0/12C"},
		"it waited":            {waited: true, want: []string{"RecordControl", "ReleaseAggregate", "OldestHolding", "RecordEffect", "CountLetters"}},
		"it waited, and again": {repeated: true, waited: true, want: []string{"RecordControl", "ReleaseAgain", "GiveUpLetters", "OldestHolding", "CountLetters"}},
	} {
		t.Run(name, func(t *testing.T) {
			db, l := scriptedLetters(t)
			l.oldest.set(aggregate{"shop", "order", "a"}, holder{commit: 250, seq: 1})
			db.On("RecordControl", func([]string) scripted.Reply { return scripted.Reply{Changed: map[bool]int{false: 1}[tc.repeated]} })
			settled := "?"
			db.On("ReleaseAggregate", func(args []string) scripted.Reply { settled = args[0]; return scripted.Reply{Changed: 2} })
			db.On("ReleaseAgain", func(args []string) scripted.Reply {
				settled = args[0]
				return scripted.One(outboxdb.ReleaseAgainRow{Namespace: "shop", AggregateType: "order", AggregateID: "a"})
			})
			released, err := l.Apply(t.Context(), control, nil, 300, tc.waited)
			require.NoError(t, err)
			require.NotNil(t, released)
			require.Equal(t, tc.repeated, released.Again())
			log := db.Log()
			require.Equal(t, tc.want, scripted.Names(log)[2:len(log)-1])
			require.Equal(t, tc.settled, settled)
			require.Equal(t, []string{"CountLetters 1  onceward_orders"}, db.Log("CountLetters"))
			require.Equal(t, !tc.waited, len(l.unsettled) == 1)
			require.Zero(t, l.ParkedCount(), "no letter holds the aggregate any more")
			_, err = l.Apply(t.Context(), control, nil, 300, tc.waited)
			require.NoError(t, err)
			require.LessOrEqual(t, len(l.unsettled), 1, "once for a place")
		})
	}
}

// A word that finds nothing releases nothing, and says why.
func TestAWordThatFindsNothingSaysWhy(t *testing.T) {
	x := oneLetter(0, true)
	aggregate := &cdc.Control{ID: uuid.New(), Action: cdc.ActionRetry, Namespace: "shop", AggregateType: "order", AggregateID: []byte("a")}
	single := func(action string) *cdc.Control {
		return &cdc.Control{ID: uuid.New(), Action: action, Namespace: "shop", LetterID: x.ID}
	}
	for name, tc := range map[string]struct {
		control *cdc.Control
		bad     error
		idle    []any
		want    string
	}{
		"no letter of the aggregate": {control: aggregate, want: "the aggregate has no open letter that committed before it"},
		"a bad row":                  {control: aggregate, bad: errors.New("no reason"), want: "its row is bad: no reason"},
		"neither":                    {control: &cdc.Control{ID: uuid.New(), Action: cdc.ActionRetry}, want: "it names neither one letter nor one aggregate"},
		"an edit of an aggregate": {
			control: &cdc.Control{ID: uuid.New(), Action: cdc.ActionEdit, AggregateID: []byte("a")}, want: `it says "edit" of an aggregate or is unknown to this release`,
		},
		"no such letter":      {control: single(cdc.ActionRetry), want: "there is no such letter"},
		"discarded":           {control: single(cdc.ActionDiscard), idle: []any{outboxdb.WhyIdleRow{State: letterDiscarded}}, want: "the letter is discarded"},
		"retrying":            {control: single(cdc.ActionEdit), idle: []any{outboxdb.WhyIdleRow{State: letterRetrying}}, want: "outboxctl skip " + x.ID.String() + " --slot"},
		"a later one":         {control: single(cdc.ActionRetry), idle: []any{outboxdb.WhyIdleRow{State: letterOpen}}, want: "the letter's event committed after it"},
		"behind an older one": {control: single(cdc.ActionRetry), idle: []any{outboxdb.WhyIdleRow{State: letterOpen, Below: true}}, want: "an older letter holds the letter's aggregate"},
	} {
		t.Run(name, func(t *testing.T) {
			db, l := scriptedLetters(t)
			for _, nothing := range []string{"ReleaseAggregate", "EditLetter"} {
				db.On(nothing, func([]string) scripted.Reply { return scripted.Reply{} })
			}
			db.Returns("WhyIdle", tc.idle...)
			released, err := l.Apply(t.Context(), tc.control, tc.bad, 300, false)
			require.NoError(t, err)
			require.Nil(t, released)
			require.Empty(t, l.unsettled)
			require.Contains(t, db.Log("RecordEffect")[0], "RecordEffect 0 ")
			require.Contains(t, db.Log("RecordEffect")[0], tc.want)
		})
	}
}

// What a control released is read page by page, each from behind the last letter of
// the one before.
func TestAReleaseIsReadPageByPage(t *testing.T) {
	db, l := scriptedLetters(t)
	db.On("ReadRelease", func(args []string) scripted.Reply {
		from := map[string]int64{"0": 0, "2": 2, "5": 5}
		i, known := from[args[2]]
		if !known || i == 5 {
			return scripted.Reply{}
		}
		next := i + 1
		if i == 2 {
			next = 4 // one in between has ended
		}
		row := func(index int64) any {
			return outboxdb.ReadReleaseRow{LetterID: uuid.New(), Namespace: "shop", AggregateType: "order", AggregateID: "a", EventType: "t", Position: "0/96", RetryIndex: &index}
		}
		return scripted.Reply{Rows: []any{row(i), row(next)}}
	})
	r := &Release{letters: l, control: uuid.New()}
	var indexes []uint32
	for {
		page, err := r.Next(t.Context())
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		for _, letter := range page {
			indexes = append(indexes, letter.Index)
			require.EqualValues(t, 150, letter.Commit)
		}
	}
	require.Equal(t, []uint32{0, 1, 2, 4}, indexes)
}

// A letter that fails again takes along those behind it that hold, and parks its
// aggregate; one that holds nothing fails alone. One that its control has not
// released is the session's error: another has it.
func TestALetterThatFailsAgainParksItsAggregate(t *testing.T) {
	for name, tc := range map[string]struct {
		holds bool
		want  []string
		parks int
	}{
		"it holds":         {true, []string{"FailLetter", "FailRest", "OldestHolding", "CountLetters"}, 1},
		"it holds nothing": {false, []string{"FailLetter", "CountLetters"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			db, l := scriptedLetters(t)
			db.Returns("OldestHolding", outboxdb.OldestHoldingRow{Position: "0/96", Seq: 1})
			db.Returns("CountLetters", int64(5))
			r := &Release{letters: l, control: uuid.New()}
			require.NoError(t, r.Fail(t.Context(), oneLetter(3, tc.holds), ClassRecord, "too large"))
			log := db.Log()
			require.Equal(t, tc.want, scripted.Names(log)[2:len(log)-1])
			require.Equal(t, tc.parks, l.ParkedCount())
			require.EqualValues(t, 5, l.State.Written)
			if tc.holds {
				require.Equal(t, []string{"FailRest onceward_orders " + r.control.String() + " 3"}, db.Log("FailRest"))
			}
			db.On("FailLetter", func([]string) scripted.Reply { return scripted.Reply{} })
			require.ErrorContains(t, r.Fail(t.Context(), oneLetter(3, tc.holds), ClassRecord, "too large"), "has not released it, or it has ended")
			require.Equal(t, "rollback", db.Log()[len(db.Log())-1])
		})
	}
}

// Giving up a letter forgets the word that asked for it, with the letter.
func TestALetterThatIsGivenUpForgetsTheWord(t *testing.T) {
	db, l := scriptedLetters(t)
	r, x := &Release{letters: l, control: uuid.New()}, oneLetter(0, true)
	done, err := r.Skip(t.Context(), x)
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, []string{"CountLetters 1 " + x.ID.String() + " onceward_orders"}, db.Log("CountLetters"))
	require.Contains(t, db.Log("SkipReleased")[0], "an operator relay_state.skip")
	db.On("SkipReleased", func([]string) scripted.Reply { return scripted.Reply{} })
	_, err = r.Skip(t.Context(), x)
	require.ErrorContains(t, err, "has not released it, or it has ended")
}

// A word that was taken back meanwhile skips nothing, and writes nothing.
func TestASkipThatWasTakenBackDoesNothing(t *testing.T) {
	for name, skip := range map[string]func(context.Context, *Store) (bool, error){
		"of an event": func(ctx context.Context, l *Store) (bool, error) {
			return l.Skip(ctx, Dead{Row: rowOf("a"), Commit: 300})
		},
		"of a letter": func(ctx context.Context, l *Store) (bool, error) {
			return (&Release{letters: l, control: uuid.New()}).Skip(ctx, oneLetter(0, true))
		},
	} {
		t.Run(name, func(t *testing.T) {
			db, l := scriptedLetters(t)
			db.Returns("SkipStands", false)
			done, err := skip(t.Context(), l)
			require.NoError(t, err)
			require.False(t, done)
			require.Equal(t, []string{"begin", "LockEpoch", "SkipStands", "rollback"}, scripted.Names(db.Log()))
			require.EqualValues(t, 4, l.State.Written)
		})
	}
}

// However many letters there are, and however they lie in transactions: a row that
// is read again has ended if it has one. The database is asked for a row by itself
// only in a transaction that is larger than the window.
func TestARowThatIsReadAgainIsKnownByItsLetter(t *testing.T) {
	db := scripted.New(t)
	s := ownState(db)
	type letter struct {
		id     uuid.UUID
		commit pglogrepl.LSN
	}
	var all []letter
	db.On("LettersFrom", func(args []string) scripted.Reply {
		from, _ := pglogrepl.ParseLSN(args[1])
		var r scripted.Reply
		for _, l := range all {
			if l.commit >= from && len(r.Rows) < map[string]int{"1": 1, "2": 2, "3": 3, "4": 4}[args[2]] {
				r.Rows = append(r.Rows, outboxdb.LettersFromRow{LetterID: l.id, Position: l.commit.String()})
			}
		}
		return r
	})
	db.On("HasLetter", func(args []string) scripted.Reply {
		return scripted.One(slices.ContainsFunc(all, func(l letter) bool { return l.id.String() == args[1] }))
	})
	db.On("NewestLetter", func([]string) scripted.Reply {
		if len(all) == 0 {
			return scripted.One("0/0")
		}
		return scripted.One(all[len(all)-1].commit.String())
	})
	rapid.Check(t, func(t *rapid.T) {
		all = nil
		type read struct {
			letter
			dead bool
		}
		var stream []read
		for i := range rapid.IntRange(0, 12).Draw(t, "rows") {
			row := letter{uuid.UUID{15: byte(i + 1)}, pglogrepl.LSN(rapid.Uint64Range(1, 6).Draw(t, "commit"))}
			dead := rapid.Bool().Draw(t, "dead")
			stream = append(stream, read{row, dead})
			if dead {
				all = append(all, row)
			}
		}
		slices.SortStableFunc(stream, func(a, b read) int { return cmp.Compare(a.commit, b.commit) })
		slices.SortStableFunc(all, func(a, b letter) int { return cmp.Compare(a.commit, b.commit) })
		e, err := openEnded(context.Background(), s.Queries, s.Slot)
		require.NoError(t, err)
		e.window = int32(rapid.IntRange(1, 4).Draw(t, "window"))
		db.Forget()
		for _, row := range stream {
			ended, err := e.has(context.Background(), row.id, row.commit)
			require.NoError(t, err)
			require.Equal(t, row.dead, ended)
		}
		perCommit := map[pglogrepl.LSN]int{}
		for _, l := range all {
			perCommit[l.commit]++
		}
		dense := slices.ContainsFunc(all, func(l letter) bool { return perCommit[l.commit] >= int(e.window) })
		require.True(t, dense || len(db.Log("HasLetter")) == 0, "%v", db.Log())
	})
}

// ownState is that of the owner, over a connection to a server.
func ownState(db *scripted.Server) *state.State {
	st := state.New(db.Connect(), "onceward_orders")
	st.Epoch = 7
	return st
}

// rowOf is an event of an aggregate.
func rowOf(aggregate string) *outbox.Row {
	return &outbox.Row{ID: uuid.New(), Namespace: "shop", AggregateType: "order", AggregateID: []byte(aggregate), Type: "Placed", TxID: 4}
}

// oneLetter is one that a control has released.
func oneLetter(index uint32, holds bool) *Letter {
	row := rowOf("a")
	return &Letter{ID: row.ID, Index: index, Commit: 150, Row: row, Holds: holds}
}
