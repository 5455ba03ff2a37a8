package consumer

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer/internal/fence"
	"github.com/onceward/onceward/consumer/internal/verdict"
	"github.com/onceward/onceward/internal/claims"
	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/partition"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// The decisions of a delivery that are nothing but a decision: each of these tests
// fails for one wrong line, without a server.

func eventAt(t *testing.T, at time.Time) Event {
	t.Helper()
	k, err := outbox.ExternalKey("shop", "4711", at)
	require.NoError(t, err)
	return Event{Event: record.Event{Key: k, Type: "Paid", Payload: []byte("{}")}, Source: Source{Topic: "orders", Partition: 1, Offset: 7}}
}

// The last offset that was finished is finished, the one behind it was not seen.
func TestEvidence(t *testing.T) {
	columns, id := []uint32{pgtype.Int8OID, pgtype.Int8OID, pgtype.UUIDOID}, uuid.New()
	mark := answer{columns: columns, rows: [][]string{{"3", "7", id.String()}}}
	p, _ := scriptedProcessor(t, map[string]answer{"HighMark": mark, "WasUnreadable": {columns: []uint32{pgtype.BoolOID}, rows: [][]string{{"f"}}}})
	unread, _ := scriptedProcessor(t, map[string]answer{"HighMark": mark, "WasUnreadable": {columns: []uint32{pgtype.BoolOID}, rows: [][]string{{"t"}}}})
	fresh, _ := scriptedProcessor(t, map[string]answer{"HighMark": {columns: columns}})
	for name, c := range map[string]struct {
		of   *Processor
		src  Source
		want verdict.Evidence
	}{
		"before the mark":  {p, Source{Topic: "orders", Offset: 6}, verdict.Finished},
		"of its own topic": {p, Source{Topic: "orders", TopicID: id, Offset: 7}, verdict.Proven},
		"nobody read it":   {unread, Source{Topic: "orders", TopicID: id, Offset: 7}, verdict.Finished},
		"at the mark":      {p, Source{Topic: "orders", Offset: 7}, verdict.Finished},
		"behind the mark":  {p, Source{Topic: "orders", Offset: 8}, verdict.NotSeen},
		"before the first": {p, Source{Topic: "orders", TopicID: id, Offset: 2}, verdict.Finished},
		"no mark":          {fresh, Source{Topic: "orders", Offset: 0}, verdict.NotSeen},
		"no topic":         {p, Source{Offset: 6}, verdict.Unknown},
	} {
		got, err := (&look{processor: c.of, q: consumerdb.New(c.of.db)}).evidenceOf(t.Context(), c.src)
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
	}
}

// A late event is claimed by arrival and, as long as its partition is there, under
// its own id: an earlier claim may be there.
func TestLateIsClaimedUnderItsOwnIDToo(t *testing.T) {
	now := time.Now()
	ev := eventAt(t, now.AddDate(0, 0, -9))
	own := ev.Key.UUID()
	for _, attached := range []bool{true, false} {
		p, _ := scriptedProcessor(t, nil)
		l := &look{processor: p, q: consumerdb.New(p.db), now: now, began: now, attached: []string{}, classes: []registered{{
			floor: now.AddDate(0, 0, -7), late: LateProcess, replay: ReplayDeadLetter, buckets: claims.Buckets{Length: 7 * 24 * time.Hour},
		}}}
		if attached {
			l.attached = append(l.attached, partition.OfDay(claims.Name, ev.Key.Time()).Name)
		}
		pl, err := l.below(t.Context(), &ev, 0, verdict.Late)
		require.NoError(t, err)
		require.True(t, pl.late)
		require.Equal(t, attached, slices.Contains(pl.ids, own))
		require.Len(t, pl.ids, map[bool]int{true: 3, false: 2}[attached])
		require.True(t, slices.IsSortedFunc(pl.ids, claims.Compare))
	}
}

// A connection that ends at COMMIT leaves the outcome unknown; that is no failure of
// the handler, whose attempt would be counted. A refusal is one.
func TestCommitTellsFailuresApart(t *testing.T) {
	for name, c := range map[string]struct {
		said           answer
		handler, known bool
	}{
		"lost":                  {answer{hangUp: true}, false, false},
		"server is going":       {answer{code: "57P01", hangUp: false}, false, false},
		"serialization":         {answer{code: "40001", status: 'I'}, false, true},
		"deferred constraint":   {answer{code: "23505", status: 'I'}, true, true},
		"turned into rollback":  {answer{tag: "ROLLBACK", status: 'I'}, true, true},
		"idle for too long":     {answer{code: "25P03", status: 'I'}, true, true},
		"done, as it was asked": {answer{tag: "COMMIT", status: 'I'}, false, true},
	} {
		p, _ := scriptedProcessor(t, map[string]answer{"COMMIT": c.said})
		err := commit(t.Context(), p.open(t))
		if name == "done, as it was asked" {
			require.NoError(t, err)
			continue
		}
		var handler *HandlerError
		require.Equal(t, c.handler, errors.As(err, &handler), "%s: %v", name, err)
		require.Equal(t, !c.handler, IsInfrastructure(err), "%s: %v", name, err)
		require.Equal(t, !c.known, errors.Is(err, ErrCommitUnknown), "%s: %v", name, err)
	}
}

// What was never sent is no commit of unknown outcome.
func TestCommitThatWasNotAsked(t *testing.T) {
	p, s := scriptedProcessor(t, nil)
	tx := p.open(t)
	require.NoError(t, tx.Conn().Close(t.Context()))
	err := commit(t.Context(), tx)
	require.True(t, IsInfrastructure(err))
	require.NotErrorIs(t, err, ErrCommitUnknown)
	require.Empty(t, s.statement("COMMIT"))
}

// A handler that returns nil has not succeeded when its transaction is aborted or
// over.
func TestApplySeesTheTransaction(t *testing.T) {
	for said, want := range map[byte]error{'E': ErrSwallowed, 'I': ErrTxEnded, 'T': nil} {
		p, _ := scriptedProcessor(t, map[string]answer{"UPDATE": {tag: "UPDATE 1", status: said}})
		tx := p.open(t)
		err := p.calls.apply(t.Context(), nil, func(ctx context.Context, tx pgx.Tx, _ Event) error {
			_, _ = tx.Exec(ctx, "UPDATE accounts")
			return nil
		}, tx, Event{})
		require.ErrorIs(t, err, want)
		var handler *HandlerError
		require.Equal(t, want != nil, errors.As(err, &handler))
	}
}

// A transaction that claims is durable, whatever the session asks for less.
func TestBeginBindsTheTransaction(t *testing.T) {
	p, s := scriptedProcessor(t, nil)
	p.open(t)
	require.Equal(t, []string{"BEGIN ISOLATION LEVEL READ COMMITTED", p.bounds, "SELECT"}, s.asked)
	begun := p.bounds
	require.Contains(t, begun, "set_config('lock_timeout', '1000', true)")
	require.Contains(t, begun, "set_config('idle_in_transaction_session_timeout', '60000', true)")
	require.Contains(t, begun, "set_config('synchronous_commit', 'on', true)")
	require.Contains(t, begun, "'{off,local,remote_write}'")
}

// A message takes three round trips: BEGIN with the claim, what its handler says, COMMIT. The
// first one over a connection takes one more, and so does the first after a failure: the driver
// describes the claim then, and waits for its table.
func TestAMessageTakesThreeRoundTrips(t *testing.T) {
	p, s := scriptedProcessor(t, map[string]answer{"ClaimEvent": {tag: "INSERT 0 1"}})
	p.windows.known.Store(&floors{of: []registered{{window: time.Hour}}, readAt: time.Now()})
	r, failure := NewRouter(p), error(nil)
	r.Tx("Paid", func(ctx context.Context, tx pgx.Tx, _ Event) error {
		_, err := tx.Exec(ctx, "UPDATE accounts")
		return errors.Join(err, failure)
	})
	handle := func() (trips int) {
		ev := eventAt(t, time.Now().Add(-time.Minute))
		s.trips = 0
		it := p.newItem(ev)
		it.handler = r.handlers.find(ev.Type)
		require.ErrorIs(t, r.steps.together(t.Context(), []*item{it}), failure)
		return s.trips
	}
	require.Equal(t, []int{4, 3, 3}, []int{handle(), handle(), handle()})
	failure = errBehind
	require.Equal(t, 3, handle(), "with ROLLBACK")
	failure = nil
	require.Equal(t, []int{4, 3}, []int{handle(), handle()})
}

func newTestLease(t *testing.T, p *Processor) *lease {
	t.Helper()
	l := newLease(p, eventAt(t, time.Now()), nil, "charge", time.Minute)
	l.Epoch, l.TakenAt = 7, time.Now()
	return l
}

// A lease is ours as long as the row says so, or, when nobody can be asked, until it
// has run out by our clock: from then on another attempt may be at it.
func TestHeartbeat(t *testing.T) {
	renewed, _ := scriptedProcessor(t, map[string]answer{"RenewFence": {tag: "UPDATE 1"}})
	taken, _ := scriptedProcessor(t, map[string]answer{"RenewFence": {tag: "UPDATE 0"}})
	away, _ := scriptedProcessor(t, map[string]answer{"RenewFence": {code: "57P03"}})
	for name, c := range map[string]struct {
		of   *Processor
		age  time.Duration
		ours bool
	}{
		"renewed":                       {renewed, 20 * time.Second, true},
		"taken over":                    {taken, 20 * time.Second, false},
		"nobody answers":                {away, 20 * time.Second, true},
		"nobody answers, and it is out": {away, 61 * time.Second, false},
		"out, and not asked in time":    {renewed, 61 * time.Second, false},
	} {
		l := newTestLease(t, c.of)
		l.TakenAt = time.Now().Add(-c.age)
		require.Equal(t, c.ours, l.Renew(t.Context()), name)
		require.Equal(t, name == "renewed", time.Since(l.TakenAt) < 10*time.Second, name)
	}
}

// The heartbeat ends the attempt when the lease has run out while nobody answered.
func TestHeartbeatEndsTheAttempt(t *testing.T) {
	away, _ := scriptedProcessor(t, map[string]answer{"RenewFence": {code: "57P03"}})
	l := newTestLease(t, away)
	l.Length = 300 * time.Millisecond
	attempt, stop := l.Keep(t.Context())
	defer stop()
	select {
	case <-attempt.Done():
		require.ErrorIs(t, context.Cause(attempt), ErrLeaseLost)
	case <-time.After(10 * time.Second):
		require.Fail(t, "the attempt goes on without a lease")
	}
}

// An effect completes under its own epoch only.
func TestCompleteDemandsTheEpoch(t *testing.T) {
	done := answer{columns: []uint32{pgtype.Int8OID, pgtype.TextOID}, rows: [][]string{{"0", ""}}}
	p, s := scriptedProcessor(t, map[string]answer{"CompleteFence": done})
	l := newTestLease(t, p)
	l.run = &running{member: &p.member}
	require.ErrorIs(t, l.complete(t.Context(), p.open(t), []byte("1")), ErrLeaseLost)
	sql := strings.Join(strings.Fields(s.statement("CompleteFence")), " ")
	require.Regexp(t, `epoch OPERATOR\(pg_catalog\.=\) '?7'? AND status OPERATOR\(pg_catalog\.=\) 'PENDING'`, strings.NewReplacer("( ", "", " )", "", "  ", " ").Replace(sql))

	done.rows[0][0] = "1"
	p, _ = scriptedProcessor(t, map[string]answer{"CompleteFence": done})
	l = newTestLease(t, p)
	l.run = &running{member: &p.member}
	require.NoError(t, l.complete(t.Context(), p.open(t), []byte("1")))
}

// Where the provider may have forgotten the key, it is asked what happened, and
// without that nothing is called.
func TestStaleIsNotDrivenBlindly(t *testing.T) {
	called := 0
	e := Effect[string]{Do: func(context.Context, Call) (string, error) { called++; return "made", nil }}
	_, err := e.drive(t.Context(), Call{}, true)
	require.ErrorIs(t, err, ErrFenceStale)
	require.Zero(t, called)

	result, err := e.drive(t.Context(), Call{}, false)
	require.NoError(t, err)
	require.Equal(t, "made", result)

	for found, want := range map[bool]string{true: "found", false: "made"} {
		called = 0
		e.Reconcile = func(context.Context, Call) (string, bool, error) { return "found", found, nil }
		result, err = e.drive(t.Context(), Call{}, true)
		require.NoError(t, err)
		require.Equal(t, want, result)
		require.Equal(t, map[bool]int{true: 0, false: 1}[found], called)
	}
	called = 0
	e.Reconcile = func(context.Context, Call) (string, bool, error) { return "", false, io.EOF }
	_, err = e.drive(t.Context(), Call{}, true)
	require.ErrorIs(t, err, io.EOF)
	require.Zero(t, called, "nobody knows what happened")
}

// What an effect has left counts, also when the handler hides it.
func TestHiddenErrorOfAnEffect(t *testing.T) {
	p, _ := scriptedProcessor(t, nil)
	ev := eventAt(t, time.Now())
	handle := func(fn FuncHandler) error {
		it := p.newItem(ev)
		it.handler = &handler{fn: fn}
		return p.calls.event(t.Context(), it)
	}
	effect := func(ctx context.Context, name string, ends ...error) {
		run, err := p.within(ctx, ev, name)
		require.NoError(t, err)
		for _, end := range ends {
			_ = run.finish(name, end)
		}
	}
	var failed *HandlerError
	for name, c := range map[string]struct {
		fn   FuncHandler
		want error
	}{
		"hidden": {func(ctx context.Context, _ Event) error {
			effect(ctx, "charge", io.EOF)
			effect(ctx, "mail", nil)
			return nil
		}, io.EOF},
		"unfinished": {func(ctx context.Context, _ Event) error { effect(ctx, "charge"); return nil }, fence.ErrUnfinished},
		"none":       {func(context.Context, Event) error { return nil }, ErrNoEffect},
	} {
		err := handle(c.fn)
		require.ErrorAs(t, err, &failed, name)
		require.ErrorIs(t, err, c.want, name)
		require.False(t, IsInfrastructure(err), name)
	}
	require.ErrorIs(t, handle(func(ctx context.Context, _ Event) error { effect(ctx, "charge", ErrInProgress); return nil }), ErrInProgress)
	require.True(t, IsInfrastructure(handle(func(ctx context.Context, _ Event) error {
		effect(ctx, "charge", &infrastructureError{io.EOF})
		return nil
	})))
	require.NoError(t, handle(func(ctx context.Context, _ Event) error { effect(ctx, "charge", nil); return nil }))
	require.NoError(t, handle(func(context.Context, Event) error { return ErrNothingToDo }))
}

// The attempt that uses the limit up is the last, not the one after.
func TestLastAttempt(t *testing.T) {
	for _, c := range []struct {
		counted string
		limit   int
		cause   error
		last    bool
	}{
		{"1", 3, io.EOF, false}, {"2", 3, io.EOF, false}, {"3", 3, io.EOF, true}, {"4", 3, io.EOF, true}, {"1", 1, io.EOF, true},
		{"1000", -1, io.EOF, false}, {"1", 3, DeadLetter(io.EOF), true}, {"1", -1, DeadLetter(io.EOF), true},
	} {
		p, _ := scriptedProcessor(t, map[string]answer{"CountAttempt": {columns: []uint32{pgtype.Int4OID}, rows: [][]string{{c.counted}}}})
		p.retry.MaxAttempts = c.limit
		failed := &HandlerError{Err: c.cause}
		attempts, last, err := p.attempts.failure(t.Context(), p.open(t), p.newItem(eventAt(t, time.Now())), failed)
		require.NoError(t, err)
		require.Equal(t, c.counted, strconv.Itoa(int(failed.Attempts)), "what the log of a member says")
		require.Equal(t, c.last, last, "%+v", c)
		require.Equal(t, c.counted, strconv.Itoa(int(attempts)))
	}
}

// A floor that was read is trusted for ten seconds.
func TestFloorsAreTrustedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Disconnected()
		obvious := func() bool { return p.windows.obvious(0, time.Now()) }
		require.False(t, obvious(), "nothing was read")
		f := *p.windows.known.Load()
		f.readAt = time.Now()
		p.windows.known.Store(&f)
		require.True(t, obvious())
		time.Sleep(claims.FloorsKept - time.Millisecond)
		require.True(t, obvious())
		time.Sleep(time.Millisecond)
		require.False(t, obvious())
	})
}

// A replay is claimed anew by the group that it names, and by no other.
func TestReprocessIsForOneGroup(t *testing.T) {
	p, _ := scriptedProcessor(t, nil)
	ev := eventAt(t, time.Now())
	ev.ReplayID = uuid.Must(uuid.NewV7())
	for _, c := range []struct {
		mode  record.ReplayMode
		group string
		want  uuid.UUID
	}{
		{record.ReplayReprocess, "billing", ev.ReplayID}, {record.ReplayReprocess, "ledger", ev.Key.UUID()}, {record.ReplayRedeliver, "", ev.Key.UUID()}, {record.ReplayRedeliver, "billing", ev.Key.UUID()},
	} {
		ev.ReplayMode, ev.ReplayGroup = c.mode, c.group
		require.Equal(t, c.want, p.claimID(ev), "%+v", c)
		require.Equal(t, c.want == ev.Key.UUID(), p.copied(&ev), "%+v", c)
	}
}

// A claim that is there is a duplicate only when the event was applied and is the
// same.
func TestClaimThatIsThere(t *testing.T) {
	p, _ := scriptedProcessor(t, nil)
	it := p.newItem(eventAt(t, time.Now()))
	other := make([]byte, 16)
	for _, c := range []struct {
		fingerprint []byte
		outcome     string
		want        Outcome
	}{
		{it.fingerprint[:], outcomeProcessed, Duplicate}, {it.fingerprint[:], outcomeDead, DeadLettered}, {other, outcomeProcessed, Mismatch}, {other, outcomeDead, Mismatch},
	} {
		got := claimant{processor: p}.compare(it, consumerdb.FindClaimsRow{EventID: it.id, Fingerprint: c.fingerprint, Outcome: c.outcome, Result: []byte("1"), ProcessedAt: time.Now()})
		require.Equal(t, c.want, got.Outcome, "%+v", c)
		require.Equal(t, c.want == Duplicate, got.Result != nil, "%+v", c)
		require.Equal(t, c.want == Mismatch, got.Mismatch != nil, "%+v", c)
	}
}

// The floor of a new class lies at no day whose claims may be gone.
func TestFloorOfANewClass(t *testing.T) {
	now := time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct{ oldest, want time.Time }{
		"nothing was dropped":     {now.AddDate(0, 0, -30), time.Date(2026, 11, 17, 0, 0, 0, 0, time.UTC)},
		"dropped within a window": {time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC), time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)},
		"there is no partition":   {time.Time{}, time.Date(2026, 11, 17, 0, 0, 0, 0, time.UTC)},
	} {
		p, _ := scriptedProcessor(t, nil)
		require.Equal(t, c.want, p.windows.registration(p.windows.classes[0], nil, now, c.oldest).Floor, name)
	}
}

// What may have killed a process is counted before it is handled, whoever has written
// its record, and whichever pattern its handler was registered for.
func TestCautionKnowsEveryHandler(t *testing.T) {
	k, err := outbox.NewKey("shop")
	require.NoError(t, err)
	text := func(name, value string) Header { return Header{Name: name, Value: []byte(value)} }
	for name, hs := range map[string][]Header{
		"ours":    {text("idempotency-key", k.String()), text("event-type", "OrderPaid")},
		"foreign": {text("id", k.UUID().String()), text("eventType", "OrderPaid")},
	} {
		for _, pattern := range []string{"OrderPaid", "Order*", "*"} {
			p, s := scriptedProcessor(t, map[string]answer{"CountStart": {columns: []uint32{pgtype.Int4OID}, rows: [][]string{{"1"}}}})
			p.readers = []RecordReader{record.DebeziumOutbox{Namespace: "shop"}.Read}
			r := NewRouter(p)
			r.Tx(pattern, func(context.Context, pgx.Tx, Event) error { return nil })
			_, _ = r.HandleCautiously(t.Context(), Record{Source: Source{Topic: "orders"}, Headers: hs}) // what the script answers then is no matter
			require.NotEmpty(t, s.statement("CountStart"), "%s, %s", name, pattern)
		}
	}
}

// What is said behind the commit is no statement's failure: the connection is the pool's again,
// and another's by now, perhaps.
func TestNothingIsJudgedAfterTheCommit(t *testing.T) {
	p, _ := scriptedProcessor(t, nil)
	tx, err := p.windows.begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	ended, end := context.WithCancel(t.Context())
	end()
	require.False(t, IsInfrastructure(judge(ended, tx, ErrNotApplied)))
}

// A plan that a change of tables made stale, a prepared statement that the server does not
// know, and a canceled statement of ours are no handler's failure.
func TestAStalePlanIsNoHandlersFailure(t *testing.T) {
	p, _ := scriptedProcessor(t, nil)
	tx, err := p.windows.begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(t.Context())) }()
	for code, ours := range map[string]bool{"0A000": true, "26000": true, "57014": true, "23505": false} {
		require.Equal(t, ours, IsInfrastructure(judge(t.Context(), tx, &pgconn.PgError{Code: code})), code)
	}
}

// A claim for which there is nothing to claim says so by an empty array, which NULL is not:
// the statement gives the lock timeout back.
func TestNothingToClaimIsNoNull(t *testing.T) {
	require.NotNil(t, claimParams("shop", nil).EventIds)
}

// A claim in a transaction that has ended touches no connection: it is the pool's again.
func TestAClaimInAnEndedTransaction(t *testing.T) {
	p, _ := scriptedProcessor(t, nil)
	tx, err := p.windows.db.Begin(t.Context())
	require.NoError(t, err)
	of := tx.Conn().PgConn().CustomData() // what another delivery knows of it by now
	of["onceward statements"] = "known"
	require.NoError(t, tx.Rollback(t.Context()))
	_, err = p.Claim(t.Context(), tx, eventAt(t, time.Now()))
	require.ErrorIs(t, err, pgx.ErrTxClosed)
	require.Contains(t, of, "onceward statements")
}
