package letters

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/internal/fault"
	"github.com/onceward/onceward/internal/ledger"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/relay/internal/state"
)

// States of a letter, as the table has them.
const (
	letterOpen      = "open"
	letterRetrying  = "retrying"
	letterDiscarded = "discarded"
)

// BatchBytes is how many bytes of letters go to the database at once; one that
// is larger goes alone.
const BatchBytes = 1 << 20

// idleLimit is how long the server lets a transaction of letters stand idle; one
// with a large letter as much longer as it may be on its way, over a link of so many
// bytes a second.
const (
	idleLimit = 10 * time.Second
	slowLink  = 256 << 10
)

// Store is the only writer of onceward.dead_letters. The invariants:
//
//   - a row that has a letter has ended: whatever reads it again leaves it alone;
//   - while a letter that holds is open, no later event of its aggregate is
//     published, and its own letters only in their order;
//   - a control acts once. Its effect is recorded in the transaction that makes
//     it, and read again it gives the same letters in the same order;
//   - a write counts only for the session that owns the slot: each locks the
//     relay's row and checks the epoch.
//
// A letter is open, then retrying from the moment a control releases it until
// the checkpoint has passed that control, then replayed; or discarded. A new
// session takes back what is retrying beyond its checkpoint: the control is read
// again.
//
// It is owned by the pump's goroutine and has a connection of its own. After an
// error it is of no more use, and what was written is for the next session to
// find.
type Store struct {
	State      *state.State // of the pump's connection
	maxParked  int
	checkpoint pglogrepl.LSN

	beyond    *endedLetters
	oldest    parkedSet
	unsettled []pglogrepl.LSN // of controls whose letters are retrying, ascending
}

// holder is where the oldest letter stands that holds an aggregate.
type holder struct {
	commit pglogrepl.LSN
	seq    int64
}

func (h holder) before(commit pglogrepl.LSN, seq int64) bool {
	return h.commit < commit || h.commit == commit && h.seq < seq
}

// Config is what a session tells its letters.
type Config struct {
	// Checkpoint is where the session starts: every transaction with a commit end
	// at or before it has ended and is not read again. Controls after it are.
	Checkpoint pglogrepl.LSN
	MaxParked  int // aggregates of one kind
	// First is done in the transaction that takes up what the last session left.
	First func(ctx context.Context, q *outboxdb.Queries) error
}

// Open settles what the last session left, and loads the parked set. The
// connection becomes its own: commits on it are durable, and a transaction that
// stands idle, because the process was stopped in it, gives its locks back.
func Open(ctx context.Context, st *state.State, cfg Config) (*Store, error) {
	l := &Store{State: st, maxParked: cfg.MaxParked, checkpoint: cfg.Checkpoint, oldest: newParkedSet()}
	if _, err := st.Conn.Exec(ctx, fmt.Sprintf("SET synchronous_commit = on; SET idle_in_transaction_session_timeout = %d", idleLimit.Milliseconds())); err != nil {
		return nil, fmt.Errorf("open letters of slot %s: %w", l.State.Slot, err)
	}
	if err := l.takeBack(ctx, cfg.First); err != nil {
		return nil, err
	}
	var err error
	if l.beyond, err = openEnded(ctx, l.State.Queries, l.State.Slot); err != nil {
		return nil, err
	}
	return l, l.loadParked(ctx)
}

// takeBack ends the retries that the checkpoint has passed, and opens the others
// again. The positions are starts of commit records and the checkpoint is the end
// of one, so that equal means not passed.
func (l *Store) takeBack(ctx context.Context, first func(context.Context, *outboxdb.Queries) error) error {
	return l.State.Count(ctx, "settle letters", func(q *outboxdb.Queries) (none state.Counted, err error) {
		if first != nil {
			if err := first(ctx, q); err != nil {
				return none, err
			}
		}
		if _, err = q.SettleLetters(ctx, outboxdb.SettleLettersParams{Slot: l.State.Slot,
			Checkpoint: new(l.checkpoint.String())}); err != nil {
			return none, err
		}
		_, err = q.ReopenLetters(ctx, l.State.Slot)
		return none, err
	})
}

func (l *Store) loadParked(ctx context.Context) error {
	rows, err := l.State.Queries.ParkedSet(ctx, l.State.Slot)
	if err != nil {
		return fmt.Errorf("load parked aggregates of slot %s: %w", l.State.Slot, err)
	}
	for _, r := range rows {
		commit, err := ledger.ParseLSN(r.Position)
		if err != nil {
			return err
		}
		l.oldest.set(aggregate{r.Namespace, r.AggregateType, r.AggregateID}, holder{commit, r.Seq})
	}
	return nil
}

// Ended reports whether the row that is read now, of an event or a replay, has a
// letter from an earlier session, and so has ended. Commit positions must not
// run backwards from call to call; it asks the database only for rows that are
// read again.
func (l *Store) Ended(ctx context.Context, id uuid.UUID, commit pglogrepl.LSN) (bool, error) {
	return l.beyond.has(ctx, id, commit)
}

// Parked reports whether an event must follow its aggregate into letters. One
// that committed before the oldest letter is not held: it comes first anyway.
func (l *Store) Parked(row *outbox.Row, commit pglogrepl.LSN) bool {
	if len(l.oldest.oldest) == 0 {
		return false
	}
	h, ok := l.oldest.oldest[aggregateOf(row)]
	return ok && h.before(commit, row.Seq)
}

// Around returns where the letters stand that hold the event's aggregate: the newest
// whose event is older by seq, 0 without any; and the oldest of all, 0 without any.
func (l *Store) Around(ctx context.Context, row *outbox.Row) (last, oldest pglogrepl.LSN, err error) {
	h, ok := l.oldest.oldest[aggregateOf(row)]
	if !ok {
		return 0, 0, nil
	}
	text, err := l.State.Queries.LastBefore(ctx, outboxdb.LastBeforeParams{
		Slot: l.State.Slot, Seq: row.Seq, Namespace: row.Namespace, AggregateType: row.AggregateType,
		AggregateID: string(row.AggregateID),
	})
	if err != nil {
		return 0, 0, fmt.Errorf("look for letters of an aggregate of slot %s: %w", l.State.Slot, err)
	}
	last, err = ledger.ParseLSN(text)
	return last, h.commit, err
}

// ParkedCount is how many aggregates are parked.
func (l *Store) ParkedCount() int { return len(l.oldest.oldest) }

// Admit parks the aggregate of an event whose letter is about to be written, so
// that the next event of it follows. Each kind of aggregate has its own limit:
// what one producer does wrong holds up its own events only. After an error of
// park nothing here counts any more.
func (l *Store) Admit(dead *Dead) *publisher.RouteError {
	if !dead.Parks() {
		return nil
	}
	a := aggregateOf(dead.Row)
	if _, parked := l.oldest.oldest[a]; !parked && l.oldest.of(a) >= l.maxParked {
		return overLimit(a, l.maxParked, l.State.Slot, dead)
	}
	l.oldest.hold(a, holder{dead.Commit, dead.Row.Seq})
	return nil
}

// Write writes letters, all or none, durably; the events have ended when it
// returns. An event that has a letter already keeps that one.
func (l *Store) Write(ctx context.Context, dead ...Dead) error {
	return l.write(ctx, letterOpen, nil, dead)
}

// Skip writes a letter that is discarded from the start, because an operator
// said so in a command that is state, and forgets the command. It does nothing when the
// command was taken back.
func (l *Store) Skip(ctx context.Context, dead Dead) (done bool, err error) {
	id := dead.ID()
	dead.Class, dead.Holds = classSkipped, false
	if dead.Cause == "" {
		dead.Cause = "an operator told the relay to skip it"
	}
	err = l.write(ctx, letterDiscarded, &id, []Dead{dead})
	if errors.Is(err, errTakenBack) {
		return false, nil
	}
	return err == nil, err
}

// errTakenBack: the command to skip does not stand any more.
var errTakenBack = errors.New("the command was taken back")

// stands makes sure, inside a transaction, that a command to skip an event stands.
func (l *Store) stands(ctx context.Context, q *outboxdb.Queries, id uuid.UUID) error {
	stands, err := q.SkipStands(ctx, outboxdb.SkipStandsParams{ID: id, Slot: l.State.Slot})
	if err == nil && !stands {
		err = errTakenBack
	}
	return err
}

// decide says in a letter that was skipped who asked for it.
func decide(ctx context.Context, q *outboxdb.Queries, letter *outboxdb.InsertLetterParams) error {
	who, err := q.WhoSkipped(ctx, &letter.LetterID)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		letter.DecidedBy, letter.DecidedWhy = new("an operator"), new("relay_state.skip")
		return nil
	case err != nil:
		return err
	}
	letter.ControlID, letter.DecidedBy, letter.DecidedWhy = &who.ControlID, &who.RequestedBy, &who.Reason
	return nil
}

// write writes letters in a state.
func (l *Store) write(ctx context.Context, as string, skipped *uuid.UUID, dead []Dead) error {
	return l.State.Count(ctx, "write letters", func(q *outboxdb.Queries) (state.Counted, error) {
		fresh := state.Counted{Skipped: skipped}
		if skipped != nil {
			if err := l.stands(ctx, q, *skipped); err != nil {
				return fresh, err
			}
		}
		for chunk := range chunks(dead) {
			added, err := l.insert(ctx, q, as, chunk)
			if err != nil {
				return fresh, err
			}
			fresh.Writes += added
		}
		return fresh, nil
	})
}

// insert returns how many had no letter.
func (l *Store) insert(ctx context.Context, q *outboxdb.Queries, as string, dead []Dead) (added int, failed error) {
	rows := make([]outboxdb.InsertLetterParams, len(dead))
	size := 0
	for i := range dead {
		size += dead[i].Size()
		rows[i] = dead[i].insert(l.State.Slot, as)
		if as == letterDiscarded {
			if err := decide(ctx, q, &rows[i]); err != nil {
				return 0, err
			}
		}
	}
	if size > BatchBytes {
		if err := q.AllowIdle(ctx, int64(idleLimit.Seconds())+int64(size/slowLink)); err != nil {
			return 0, err
		}
	}
	q.InsertLetter(ctx, rows).QueryRow(func(_ int, _ uuid.UUID, err error) {
		switch {
		case err == nil:
			added++
		case !errors.Is(err, pgx.ErrNoRows) && failed == nil:
			failed = err
		}
	})
	return added, failed
}

// chunks cuts letters into pieces of bounded size.
func chunks(dead []Dead) func(yield func([]Dead) bool) {
	return func(yield func([]Dead) bool) {
		for len(dead) > 0 {
			n, size := 0, 0
			for n < len(dead) && (n == 0 || size < BatchBytes) {
				size += dead[n].Size()
				n++
			}
			if !yield(dead[:n]) {
				return
			}
			dead = dead[n:]
		}
	}
}

// Settle tells it that everything before a position has ended, as far as that is
// durable where it counts: what controls before it released was replayed. It
// asks the database only when there is any.
func (l *Store) Settle(ctx context.Context, checkpoint pglogrepl.LSN) error {
	n := passed(l.unsettled, checkpoint)
	if n == 0 {
		return nil
	}
	fault.Crash(fault.BeforeSettle)
	err := l.State.Write(ctx, "settle letters", func(q *outboxdb.Queries) error {
		_, err := q.SettleLetters(ctx, outboxdb.SettleLettersParams{Slot: l.State.Slot,
			Checkpoint: new(checkpoint.String())})
		return err
	})
	if err != nil {
		return err
	}
	l.unsettled = slices.Delete(l.unsettled, 0, n)
	return nil
}

// passed is how many of the positions, ascending starts of commit records, a
// checkpoint has passed. It is the end of a record: equal means not passed.
func passed(controls []pglogrepl.LSN, checkpoint pglogrepl.LSN) int {
	n, _ := slices.BinarySearch(controls, checkpoint)
	return n
}
