//go:build e2e

package letters

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/relay/internal/state"
	"github.com/onceward/onceward/relay/internal/testoutbox"
)

func TestLetters(t *testing.T) {
	onEachServer(t, map[string]func(*letterbox){
		"a letter is kept whole":                keptWhole,
		"an aggregate is parked":                parkedAggregate,
		"a replay and a loose letter":           holdNothing,
		"whatever is in the row":                wildRows,
		"too many are parked":                   tooManyParked,
		"a row with a letter has ended":         rowsHaveEnded,
		"skipped":                               skipped,
		"a fenced writer changes nothing":       fencedLetters,
		"cut off before and after the commit":   cutOff,
		"a frozen writer gives its locks back":  frozenWriter,
		"durable whatever the default":          durableCommits,
		"a large letter on a slow link":         slowLinkOfALargeLetter,
		"rights":                                lettersRights,
		"words that are state":                  stateWords,
		"ten thousand letters of one aggregate": tenThousand,
		"large letters":                         largeLetters,
		"letters with large headers":            largeHeaders,
		"letters keep their leaf":               keepLeaf,
	})
}

func keptWhole(b *letterbox) {
	t := b.T
	b.parks(deadEvent(1, "A"), deadEvent(2, "B", func(c *Dead) { c.Row.Payload, c.Row.Headers, c.Row.Traceparent = nil, nil, nil }),
		deadEvent(3, "C", func(c *Dead) { c.Row.Payload = []byte{} }), deadEvent(4, "D", holdsNothing, replayOf(77)))
	require.EqualValues(t, 4, b.State.Written)
	require.Equal(t, "4", b.Text("SELECT dead_letters::text FROM onceward.relay_state"))
	require.Equal(t, "record|record too large|1|0/10|open|t", b.Text(`SELECT concat_ws('|', error_class, error, attempts, position, state, holds)
		FROM onceward.dead_letters WHERE letter_id = $1`, testoutbox.ID(1)))
	for n := 1; n <= 4; n++ {
		_, err := b.Apply(t.Context(), wordOf(10+n, cdc.ActionRetry, n), nil, testoutbox.LSN(10+n), false)
		require.NoError(t, err)
	}
	for n, want := range map[int]Dead{
		1: deadEvent(1, "A"), 2: deadEvent(2, "B", func(c *Dead) { c.Row.Payload, c.Row.Headers, c.Row.Traceparent = nil, nil, nil }),
		3: deadEvent(3, "C", func(c *Dead) { c.Row.Payload = []byte{} }), 4: deadEvent(4, "D", replayOf(77)),
	} {
		got := b.pages(&Release{letters: b.Store, control: testoutbox.ID(1_000_010 + n)})
		require.Len(t, got, 1)
		require.Equal(t, want.Row, got[0].Row)
		require.Equal(t, want.Commit, got[0].Commit)
		require.NoError(t, got[0].Bad)
		if n == 4 {
			require.Equal(t, &cdc.Replay{ID: testoutbox.ID(4), Mode: cdc.ModeReprocess, Group: "billing", Topic: "elsewhere"}, got[0].Replay)
		} else {
			require.Nil(t, got[0].Replay)
		}
	}
}

func parkedAggregate(b *letterbox) {
	t := b.T
	require.False(t, b.follows(9, "A"))
	b.parks(deadEvent(2, "A"))
	b.parks(deadEvent(4, "B"))
	b.parks(deadEvent(3, "B"))
	for range 2 {
		require.True(t, b.follows(3, "A"))
		require.False(t, b.follows(2, "A"), "it is itself the letter")
		require.False(t, b.follows(1, "A"), "it comes before the letter in any case")
		require.True(t, b.follows(4, "B"))
		require.False(t, b.follows(3, "C"))
		require.Equal(t, 2, b.ParkedCount())
		other := deadEvent(9, "A")
		other.Row.Namespace = "shipping"
		require.False(t, b.Parked(other.Row, other.Commit))
		same := deadEvent(9, "A", func(c *Dead) { c.Commit = testoutbox.LSN(2) })
		require.True(t, b.Parked(same.Row, same.Commit), "a later row of the letter's own transaction")
		b.reopen(testoutbox.LSN(5))
	}
	b.parks(deadEvent(5, "A", func(c *Dead) { c.Class = ClassFollows }), deadEvent(6, "A"), deadEvent(5, "A"))
	require.EqualValues(t, 5, b.State.Written, "a letter that is there stays, and counts once")
	require.Equal(t, "2=open 3=open 4=open 5=open 6=open", b.states())
}

func holdNothing(b *letterbox) {
	t := b.T
	b.parks(deadEvent(1, "A", holdsNothing), deadEvent(2, "B", replayOf(50)), deadEvent(3, ""), deadEvent(4, "D", func(c *Dead) { c.Row.AggregateType = "" }))
	for range 2 {
		require.Zero(t, b.ParkedCount())
		require.False(t, b.follows(9, "A"))
		require.False(t, b.follows(9, "B"))
		b.reopen(0)
	}
	require.True(t, b.has(2), "a replay's letter goes by the replay's id")
	require.False(t, b.has(50), "and not by its event's")
}

// What makes an event unfit for Kafka must not make it unfit for a letter.
func wildRows(b *letterbox) {
	t := b.T
	long := func(n int) string {
		raw := make([]byte, n/2)
		_, err := rand.Read(raw)
		require.NoError(t, err)
		return hex.EncodeToString(raw) // what no index can compress into a page
	}
	wild := []Dead{
		deadEvent(1, long(4096)),
		deadEvent(2, "B", func(c *Dead) {
			c.Row.AggregateType, c.Row.Namespace, c.Row.Type = long(20_000), long(20_000), long(20_000)
		}),
		deadEvent(3, "C", func(c *Dead) { c.Row.Headers = []byte(`[1, null, {"x": "\u0001"}]`) }),
		deadEvent(4, "D", func(c *Dead) { c.Cause = "text \x00 and \xff bytes " + strings.Repeat("x", 1<<20) }),
		deadEvent(5, "E", func(c *Dead) { c.Row.CreatedAt, c.Class = time.Time{}, ClassBadRow }),
		deadEvent(6, "F", func(c *Dead) { c.Row.Payload = make([]byte, 8<<20) }),
		deadEvent(7, "G", func(c *Dead) { c.Row.Type, c.Row.ContentType = "", "" }),
	}
	b.parks(wild...)
	b.reopen(0)
	require.Equal(t, len(wild), b.ParkedCount())
	require.Less(t, len(b.Text("SELECT error FROM onceward.dead_letters WHERE letter_id = $1", testoutbox.ID(4))), maxLetterText+64)
	for i, c := range wild {
		require.True(t, b.Parked(deadEvent(9, "", func(x *Dead) { *x.Row = *c.Row; x.Row.Seq = 9 }).Row, testoutbox.LSN(9)))
		retry := wordOf(10+i, cdc.ActionRetry, "")
		retry.Namespace, retry.AggregateType, retry.AggregateID = c.Row.Namespace, c.Row.AggregateType, c.Row.AggregateID
		r, err := b.Apply(t.Context(), retry, nil, testoutbox.LSN(10+i), false)
		require.NoError(t, err)
		got := b.pages(r)
		require.Len(t, got, 1)
		switch c.Row.ID {
		case testoutbox.ID(5):
			require.ErrorContains(t, got[0].Bad, "no usable created_at")
		case testoutbox.ID(7):
			require.ErrorContains(t, got[0].Bad, "no usable event_type")
		default:
			require.NoError(t, got[0].Bad)
			require.Len(t, got[0].Row.Payload, len(c.Row.Payload))
		}
	}
}

func tooManyParked(b *letterbox) {
	t := b.T
	b.maxParked = 2
	b.parks(deadEvent(1, "A"), deadEvent(2, "B"))
	before := b.everything()
	full := "2 aggregates of orders/order are parked already"
	err := b.park(t.Context(), deadEvent(4, "C"))
	require.ErrorContains(t, err, full)
	require.ErrorContains(t, err, "orders:"+testoutbox.ID(4).String())
	require.Equal(t, before, b.everything())
	b.parks(deadEvent(3, "A"), deadEvent(4, "C", holdsNothing), deadEvent(5, "C", replayOf(60)))
	_, _ = b.say(6, cdc.ActionDiscard, "A")
	b.parks(deadEvent(7, "C"))
	require.ErrorContains(t, b.park(t.Context(), deadEvent(8, "D")), full)
	b.parks(deadEvent(9, "E", func(c *Dead) { c.Row.AggregateType = "user" }))
	b.reopen(0)
	b.maxParked = 2
	require.ErrorContains(t, b.park(t.Context(), deadEvent(10, "D")), full, "the next session knows it")
}

// Windows move along, a transaction that is larger than one is looked up, and
// nothing is asked beyond the newest letter.
func rowsHaveEnded(b *letterbox) {
	t := b.T
	for n := 1; n <= 60; n++ {
		if n%3 != 0 { // 20 to 39 are one transaction
			b.parks(deadEvent(n, "A", func(c *Dead) { c.Commit = oneTransaction(n) }))
		}
	}
	require.False(t, b.has(1), "within a session no row is read twice")
	for _, window := range []int32{1, 2, 7, 1000} {
		for _, start := range []int{0, 5, 25, 59, 61} {
			b.reopen(testoutbox.LSN(start))
			b.beyond.window = window
			for n := max(start, 1); n <= 70; n++ {
				found, err := b.Ended(t.Context(), testoutbox.ID(n), oneTransaction(n))
				require.NoError(t, err)
				require.Equal(t, n <= 60 && n%3 != 0, found, "letter %d, window %d, start %d", n, window, start)
				require.LessOrEqual(t, len(b.beyond.ids), int(window))
			}
		}
	}
	require.NoError(t, b.Conn.Close(t.Context()))
	_, err := b.Ended(t.Context(), testoutbox.ID(70), testoutbox.LSN(70))
	require.NoError(t, err, "beyond the newest letter nobody asks the database")
}

func oneTransaction(n int) pglogrepl.LSN {
	if n >= 20 && n < 40 {
		return testoutbox.LSN(20)
	}
	return testoutbox.LSN(n)
}

func skipped(b *letterbox) {
	t := b.T
	b.Exec("UPDATE onceward.relay_state SET skip = $1", []any{testoutbox.ID(1), testoutbox.ID(2), testoutbox.ID(3)})
	b.Exec("INSERT INTO onceward.controls (control_id, action, letter_id, reason) VALUES ($1, 'discard', $2, 'old'), ($3, 'retry', $2, 'no'), ($4, 'discard', $2, 'it blocks all')",
		testoutbox.ID(91), testoutbox.ID(1), testoutbox.ID(92), testoutbox.ID(93))
	for _, dead := range []Dead{deadEvent(1, "A"), deadEvent(2, "A", replayOf(40))} {
		done, err := b.Skip(t.Context(), dead)
		require.NoError(t, err)
		require.True(t, done)
	}
	done, err := b.Skip(t.Context(), deadEvent(4, "A"))
	require.NoError(t, err)
	require.False(t, done, "the command was taken back")
	require.Equal(t, "1=discarded 2=discarded", b.states())
	require.Zero(t, b.ParkedCount(), "a skipped event holds nothing")
	require.EqualValues(t, 2, b.State.Written)
	require.Equal(t, "discarded|skipped|postgres|it blocks all|"+testoutbox.ID(93).String()+"\ndiscarded|skipped|an operator|relay_state.skip",
		b.Text("SELECT concat_ws('|', state, error_class, decided_by, decided_why, control_id) FROM onceward.dead_letters ORDER BY seq"))
	require.Equal(t, "{"+testoutbox.ID(3).String()+"}", b.Text("SELECT skip::text FROM onceward.relay_state"))
	_, out := b.say(5, cdc.ActionDiscard, 1)
	require.Empty(t, out)
	require.Equal(t, "0 the letter is discarded", b.note(5))
	b.reopen(0)
	require.True(t, b.has(1))
}

func fencedLetters(b *letterbox) {
	t := b.T
	b.parks(deadEvent(1, "A"), deadEvent(2, "A"), deadEvent(3, "B"))
	r, _ := b.say(4, cdc.ActionRetry, "A")
	zombie := b.Store
	released := b.pages(&Release{letters: zombie, control: r.control})
	b.Conn = testoutbox.Connected(t, b.As("onceward_relay"))
	b.reopen(0)
	before := b.everything()
	for what, write := range map[string]func() error{
		"park":    func() error { return zombie.Write(t.Context(), deadEvent(7, "C")) },
		"skip":    func() error { _, err := zombie.Skip(t.Context(), deadEvent(7, "C")); return err },
		"settle":  func() error { return zombie.Settle(t.Context(), testoutbox.LSN(100)) },
		"fail":    func() error { return r.Fail(t.Context(), released[0], ClassRecord, "x") },
		"give up": func() error { _, err := r.Skip(t.Context(), released[0]); return err },
		"retry": func() error {
			_, err := zombie.Apply(t.Context(), wordOf(8, cdc.ActionRetry, "B"), nil, testoutbox.LSN(8), false)
			return err
		},
		"again": func() error {
			_, err := zombie.Apply(t.Context(), wordOf(4, cdc.ActionRetry, "A"), nil, testoutbox.LSN(4), false)
			return err
		},
		"discard": func() error {
			_, err := zombie.Apply(t.Context(), wordOf(8, cdc.ActionDiscard, 3), nil, testoutbox.LSN(8), false)
			return err
		},
		"edit": func() error {
			_, err := zombie.Apply(t.Context(), wordOf(8, cdc.ActionEdit, 3), nil, testoutbox.LSN(8), false)
			return err
		},
		"open": func() error {
			_, err := Open(t.Context(), zombie.State, Config{Checkpoint: testoutbox.LSN(100)})
			return err
		},
	} {
		require.ErrorIs(t, write(), state.ErrFenced, what)
		require.Equal(t, before, b.everything(), what)
	}
	require.True(t, b.follows(9, "A"), "the new owner took the retry back")
}

// A process that is stopped inside a transaction must not keep the next owner
// from taking the slot.
func frozenWriter(b *letterbox) {
	t := b.T
	_, err := b.Conn.Exec(t.Context(), "SET idle_in_transaction_session_timeout = '300ms'") // shorter than the product's, for the test
	require.NoError(t, err)
	frozen := b.Store
	next := testoutbox.Connected(t, b.As("onceward_relay"))
	err = frozen.State.Write(t.Context(), "freeze", func(*outboxdb.Queries) error {
		_, err := outboxdb.New(next).BumpEpoch(t.Context(), outboxdb.BumpEpochParams{Slot: testoutbox.Slot, Relay: testoutbox.Slot}) // waits for the row until the frozen one has lost it
		return err
	})
	require.Error(t, err, "the frozen transaction is gone")
	require.Equal(t, "2", b.Text("SELECT epoch::text FROM onceward.relay_state"))
}

func durableCommits(b *letterbox) {
	t := b.T
	b.Exec("ALTER ROLE onceward_relay SET synchronous_commit = off")
	b.Conn = testoutbox.Connected(t, b.As("onceward_relay"))
	b.reopen(0)
	var commit, idle string
	require.NoError(t, b.Conn.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&commit))
	require.NoError(t, b.Conn.QueryRow(t.Context(), "SHOW idle_in_transaction_session_timeout").Scan(&idle))
	require.Equal(t, "on", commit)
	require.Equal(t, "10s", idle)
}

func lettersRights(b *letterbox) {
	t := b.T
	b.parks(deadEvent(1, "A"))
	operator := testoutbox.Connected(t, b.As("onceward_operator"))
	may := func(sql string, args ...any) {
		t.Helper()
		_, err := operator.Exec(t.Context(), sql, args...)
		require.NoError(t, err, sql)
	}
	mayNot := func(conn *pgx.Conn, sql string, args ...any) {
		t.Helper()
		_, err := conn.Exec(t.Context(), sql, args...)
		var pg *pgconn.PgError
		require.ErrorAs(t, err, &pg, sql)
		require.Equal(t, "42501", pg.Code, sql)
	}
	may("INSERT INTO onceward.controls (control_id, action, letter_id, payload_null, reason) VALUES ($1, 'edit', $2, true, 'r')", testoutbox.ID(1), testoutbox.ID(1))
	_, err := operator.Exec(t.Context(), "INSERT INTO onceward.replays (replay_id, id, reason) VALUES ($1, $2, 'r')", testoutbox.ID(1), testoutbox.ID(2))
	require.ErrorContains(t, err, "there is no event", "content is the database's to fill in")
	may("UPDATE onceward.relay_state SET paused = true, paused_routes = '{a}', skip = ARRAY[$1::uuid]", testoutbox.ID(1))
	may("SELECT d.*, c.* FROM onceward.dead_letters d, onceward.control_results c")
	require.Equal(t, "onceward_operator true", b.Text("SELECT requested_by || ' ' || (tx_id = pg_current_xact_id_if_assigned() IS NOT TRUE) FROM onceward.controls"))
	for _, sql := range []string{
		"UPDATE onceward.dead_letters SET state = 'discarded'", "DELETE FROM onceward.dead_letters", "UPDATE onceward.dead_letters SET payload = NULL",
		"INSERT INTO onceward.dead_letters SELECT * FROM onceward.dead_letters", "UPDATE onceward.relay_state SET dead_letters = 0", "UPDATE onceward.relay_state SET epoch = 9",
		"INSERT INTO onceward.control_results (slot, control_id, position, action, letters, note) VALUES ('s', gen_random_uuid(), '0/1', 'retry', 1, '')",
		"UPDATE onceward.control_results SET note = 'x'", "DELETE FROM onceward.control_results",
		"INSERT INTO onceward.controls (control_id, action, letter_id, reason, requested_by) VALUES (gen_random_uuid(), 'retry', gen_random_uuid(), 'r', 'bob')",
		"INSERT INTO onceward.controls (control_id, action, letter_id, reason, requested_at) VALUES (gen_random_uuid(), 'retry', gen_random_uuid(), 'r', now())",
		"INSERT INTO onceward.controls (control_id, action, letter_id, reason, tx_id) VALUES (gen_random_uuid(), 'retry', gen_random_uuid(), 'r', '5')",
		"INSERT INTO onceward.replays (replay_id, id, reason, requested_by) VALUES (gen_random_uuid(), gen_random_uuid(), 'r', 'bob')",
		"INSERT INTO onceward.replays (replay_id, id, reason, payload) VALUES (gen_random_uuid(), gen_random_uuid(), 'r', 'x')",
		"UPDATE onceward.controls SET reason = 'x'", "DELETE FROM onceward.controls", "TRUNCATE onceward.controls",
	} {
		mayNot(operator, sql)
	}
	for _, sql := range []string{
		"DELETE FROM onceward.dead_letters", "DELETE FROM onceward.control_results", "UPDATE onceward.controls SET reason = 'x'",
		"INSERT INTO onceward.controls (control_id, action, letter_id, reason) VALUES (gen_random_uuid(), 'retry', gen_random_uuid(), 'r')",
	} {
		mayNot(b.Conn, sql)
	}
}

func stateWords(b *letterbox) {
	t := b.T
	s := state.New(b.Conn, testoutbox.Slot)
	s.Epoch = b.Epoch
	w, err := s.PollCommands(t.Context())
	require.NoError(t, err)
	require.Equal(t, state.Commands{Routes: []string{}, Skip: w.Skip, Repairs: w.Repairs}, w)
	require.Empty(t, w.Repairs)
	require.False(t, w.Skips(testoutbox.ID(1)))
	b.Exec("UPDATE onceward.relay_state SET paused = true, paused_routes = '{orders.order,b}', skip = ARRAY[$1, $2]::uuid[]", testoutbox.ID(1), testoutbox.ID(2))
	w, err = s.PollCommands(t.Context())
	require.NoError(t, err)
	require.True(t, w.Paused)
	require.Equal(t, []string{"orders.order", "b"}, w.Routes)
	require.True(t, w.Skips(testoutbox.ID(2)))
	require.False(t, w.Skips(testoutbox.ID(3)))
	b.Exec("UPDATE onceward.relay_state SET epoch = epoch + 1")
	_, err = s.PollCommands(t.Context())
	require.ErrorIs(t, err, state.ErrFenced)
}

func tenThousand(b *letterbox) {
	t := b.T
	const count, size = 10_000, 5_000
	for n := 1; n <= count; n += 500 {
		var page []Dead
		for i := range 500 {
			page = append(page, deadEvent(n+i, "A", func(c *Dead) { c.Row.Payload = make([]byte, size) }))
		}
		b.parks(page...)
	}
	b.reopen(0)
	r, err := b.Apply(t.Context(), wordOf(20_000, cdc.ActionRetry, "A"), nil, testoutbox.LSN(20_000), false)
	require.NoError(t, err)
	require.Zero(t, b.ParkedCount())
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	base, peak, seen := m.HeapAlloc, uint64(0), 0
	for {
		page, err := r.Next(t.Context())
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		require.LessOrEqual(t, len(page), 256)
		for _, l := range page {
			require.EqualValues(t, seen, l.Index)
			require.EqualValues(t, seen+1, l.Row.Seq)
			seen++
		}
		runtime.GC()
		runtime.ReadMemStats(&m)
		peak = max(peak, m.HeapAlloc)
	}
	require.Equal(t, count, seen)
	require.Less(t, peak, base+4<<20)
	require.NoError(t, b.Settle(t.Context(), testoutbox.LSN(20_001)))
	require.Equal(t, fmt.Sprint(count), b.Text("SELECT count(*)::text FROM onceward.dead_letters WHERE state = 'replayed'"))
}

// A page of large letters is short, and one that is larger than a page goes alone.
func largeLetters(b *letterbox) {
	t := b.T
	sizes := []int{300_000, 300_000, 300_000, 300_000, 3 << 20, 10, 10, 3 << 20}
	for i, size := range sizes {
		b.parks(deadEvent(i+1, "A", func(c *Dead) { c.Row.Payload = make([]byte, size) }))
	}
	r, err := b.Apply(t.Context(), wordOf(20, cdc.ActionRetry, "A"), nil, testoutbox.LSN(20), false)
	require.NoError(t, err)
	for _, want := range [][]int{{1, 2, 3, 4}, {5}, {6, 7, 8}} {
		page, err := r.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, numbers(page), "1 MiB, and the letter that goes beyond it")
		for _, l := range page {
			require.Len(t, l.Row.Payload, sizes[l.Index])
		}
	}
}

// A page does not read the headers of all that may follow.
func largeHeaders(b *letterbox) {
	t, ctx := b.T, b.T.Context()
	const all = 150
	for i := range all {
		b.parks(deadEvent(i+1, "A"))
	}
	b.Exec(`UPDATE onceward.dead_letters SET headers = jsonb_build_object('h', (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 12000)))`)
	r, err := b.Apply(ctx, wordOf(200, cdc.ActionRetry, "A"), nil, testoutbox.LSN(200), false)
	require.NoError(t, err)
	before := b.LargeReads("onceward.dead_letters")
	_, err = b.Conn.Exec(ctx, "SELECT sum(octet_length(headers::text)) FROM onceward.dead_letters")
	require.NoError(t, err)
	once := b.LargeReads("onceward.dead_letters") - before
	for read := 0; read < all; {
		page, err := r.Next(ctx)
		require.NoError(t, err)
		require.NotEmpty(t, page)
		read += len(page)
	}
	require.Less(t, b.LargeReads("onceward.dead_letters")-before-once, 10*once)
}

// What keeps a leaf is counted as package retention does.
func keepLeaf(b *letterbox) {
	t := b.T
	count := func() string {
		return b.Text("SELECT count(*)::text FROM onceward.dead_letters WHERE state IN ('open', 'retrying') AND letter_id >= $1 AND letter_id < $2", testoutbox.ID(0), testoutbox.ID(1000))
	}
	b.parks(deadEvent(1, "A"), deadEvent(2, "B"))
	require.Equal(t, "2", count())
	_, _ = b.say(3, cdc.ActionRetry, "A")
	require.Equal(t, "2", count(), "retrying is not published yet")
	_, _ = b.say(4, cdc.ActionDiscard, 2)
	require.Equal(t, "1", count())
	require.NoError(t, b.Settle(t.Context(), testoutbox.LSN(5)))
	require.Equal(t, "0", count())
}
