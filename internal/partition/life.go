package partition

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// State is how far retention has got with one leaf. Which of them there are on its way,
// and what has to be true before each, is the policy of a side; from Detaching on it is
// the same for both.
type State string

// States of a leaf.
const (
	Open      State = "open"
	Waiting   State = "waiting"
	Closed    State = "closed"
	Detaching State = "detaching"
	Dropped   State = "dropped"
)

// Report is what became of one leaf.
type Report struct {
	Name     string    // without its schema
	From, To time.Time // its event times, To excluded
	State    State
	Why      string // what it waits for, or would be done; empty: nothing to say
	Wrong    bool   // it will not mend itself: Why says what an operator does
	Rows     int64  // at the last ANALYZE; -1: there was none
	Bytes    int64  // on disk, with indexes
}

// Report says so of the leaf.
func (l *Leaf) Report(state State, why string, args ...any) Report {
	return Report{Name: l.Name, From: l.From(), To: l.To(), State: state, Why: fmt.Sprintf(why, args...), Rows: l.Rows,
		Bytes: l.Bytes}
}

// ToMend is a report of what an operator has to do.
func (r Report) ToMend() Report {
	r.Wrong = true
	return r
}

// Exit takes leaves out of "schema.table", one after the other, in one run of retention.
type Exit struct {
	Conn  *pgx.Conn
	Table string
	// Pending is the leaf whose detach is not finished; PostgreSQL allows one at a time.
	Pending string
	// Detached is called between a detach that is committed and the drop, by tests.
	Detached func()
}

// Gate is what a side says of a leaf that is about to go.
type Gate struct {
	// Holds says why it may, for while it waits for the detach of another one.
	Holds string
	// Detach is asked before the leaf is detached, or a detach is finished; with a report,
	// which comes with every error, it stays. Nil: there is nothing more to ask.
	Detach func(ctx context.Context) (*Report, error)
	// Drop is asked in the transaction of the drop, with the leaf locked; with reasons it
	// is kept beside the table.
	Drop func(ctx context.Context, tx pgx.Tx) (reasons []string, err error)
	// Stuck: those reasons do not pass by themselves.
	Stuck bool
}

// Leave detaches and drops a leaf that nothing needs. Each step commits before the next,
// and what is cut short anywhere the next run takes up. What waits for a lock is in the
// report and no error.
func (x *Exit) Leave(ctx context.Context, l *Leaf, gate Gate) (Report, error) {
	if l.Attached {
		if report, err := x.detach(ctx, l, gate); report != nil {
			return *report, err
		}
	}
	if x.Detached != nil {
		x.Detached()
	}
	reasons, err := Drop(ctx, x.Conn, x.Table, *l, gate.Drop)
	switch {
	case TimedOut(err):
		return l.Report(Detaching, "detached; somebody reads it still"), nil
	case err != nil:
		return l.Report(Detaching, "detached, not dropped"), err
	case len(reasons) > 0:
		kept := l.Report(Waiting, "detached and kept: %s", strings.Join(reasons, "; "))
		kept.Wrong = gate.Stuck
		return kept, nil
	}
	return l.Report(Dropped, ""), nil
}

// detach returns a report when the leaf is in the table still, and with every error.
func (x *Exit) detach(ctx context.Context, l *Leaf, gate Gate) (*Report, error) {
	stays := func(state State, why string, args ...any) *Report {
		r := l.Report(state, why, args...)
		return &r
	}
	if x.Pending != "" && x.Pending != l.Name {
		return stays(Closed, "%s; waits for the detach of %s", gate.Holds, x.Pending), nil
	}
	if gate.Detach != nil {
		if report, err := gate.Detach(ctx); report != nil {
			return report, err
		}
	}
	begun := time.Now()
	if err := Detach(ctx, x.Conn, x.Table, *l); err != nil {
		x.Pending = l.Name // it may have begun; the next run looks
		if TimedOut(err) {
			return stays(Detaching, "waits for transactions that are older than the detach%s", Holders(ctx, x.Conn, x.Table, "", time.Since(begun))), nil
		}
		return stays(Closed, "not detached"), err
	}
	x.Pending = ""
	return nil, nil //nolint:nilnil // it is out
}
