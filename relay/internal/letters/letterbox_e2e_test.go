//go:build e2e

package letters

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/internal/outboxdb"
	"github.com/onceward/onceward/internal/pgserver"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/relay/internal/testoutbox"
)

// letterbox is a database with letters, written by the relay's role, which is no
// superuser. Rows and controls are made here: what reads them from the log is
// tested elsewhere.
type letterbox struct {
	*testoutbox.Outbox
	first func(ctx context.Context, q *outboxdb.Queries) error // of the next session
	*Store
}

// onEachServer runs the tests on the oldest and the newest server.
func onEachServer(t *testing.T, tests map[string]func(*letterbox)) {
	testoutbox.OnServers(t, func(t *testing.T, server *pgserver.Server) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) { test(newLetterbox(t, server)) })
		}
	})
}

func newLetterbox(t *testing.T, server *pgserver.Server) *letterbox {
	b := &letterbox{Outbox: testoutbox.New(t, server)}
	b.reopen(0)
	return b
}

// reopen is the next session, which starts at a position.
func (b *letterbox) reopen(checkpoint pglogrepl.LSN) {
	b.T.Helper()
	var err error
	b.Store, err = Open(b.T.Context(), b.Take(), b.config(checkpoint))
	require.NoError(b.T, err)
}

func (b *letterbox) config(checkpoint pglogrepl.LSN) Config {
	return Config{Checkpoint: checkpoint, MaxParked: 1000, First: b.first}
}

// deadEvent is event n of an aggregate, in a transaction of its own at 16 × n.
func deadEvent(n int, aggregate string, change ...func(*Dead)) Dead {
	c := Dead{
		Row: &outbox.Row{
			ID: testoutbox.ID(n), Namespace: "orders", AggregateType: "order", AggregateID: []byte(aggregate), Type: "Paid", Payload: []byte(fmt.Sprint("payload ", n)),
			ContentType: "text/plain", Headers: []byte(`{"a": "b"}`), Traceparent: []byte("00-trace"),
			CreatedAt: time.Date(2026, 11, 21, 5, 0, n%60, 123456000, time.UTC), TxID: uint64(700 + n), Seq: int64(n),
		},
		Commit: testoutbox.LSN(n), Class: ClassRecord, Cause: "record too large", Holds: true,
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func holdsNothing(c *Dead) { c.Holds = false }

// replayed makes a replay of the event; the replay's id is that of event n.
func replayOf(n int) func(*Dead) {
	return func(c *Dead) {
		c.Replay = &cdc.Replay{ID: c.Row.ID, Mode: cdc.ModeReprocess, Group: "billing", Topic: "elsewhere", Reason: "r", RequestedBy: "w"}
		c.Row.ID = testoutbox.ID(n)
	}
}

// park admits the letters as the pump does, and writes them.
func (b *letterbox) park(ctx context.Context, cs ...Dead) error {
	for i := range cs {
		if full := b.Admit(&cs[i]); full != nil {
			return full
		}
	}
	return b.Write(ctx, cs...)
}

func (b *letterbox) parks(cs ...Dead) {
	b.T.Helper()
	require.NoError(b.T, b.park(b.T.Context(), cs...))
}

// wordOf is the word n about an aggregate or, if it is a number, one letter.
func wordOf(n int, action string, of any) *cdc.Control {
	c := &cdc.Control{ID: testoutbox.ID(1_000_000 + n), Action: action, Reason: fmt.Sprint("reason ", n), RequestedBy: "alice"}
	if letter, ok := of.(int); ok {
		c.LetterID = testoutbox.ID(letter)
		return c
	}
	c.Namespace, c.AggregateType, c.AggregateID = "orders", "order", []byte(of.(string))
	return c
}

// say lets the relay read word n at 16 × n, and returns the numbers of the
// letters that it released.
func (b *letterbox) say(n int, action string, of any) (*Release, []int) {
	b.T.Helper()
	r, err := b.Apply(b.T.Context(), wordOf(n, action, of), nil, testoutbox.LSN(n), false)
	require.NoError(b.T, err)
	return r, numbers(b.pages(r))
}

func (b *letterbox) pages(r *Release) (all []*Letter) {
	b.T.Helper()
	for r != nil {
		page, err := r.Next(b.T.Context())
		require.NoError(b.T, err)
		if len(page) == 0 {
			break
		}
		all = append(all, page...)
	}
	return all
}

func numbers(all []*Letter) (out []int) {
	for _, l := range all {
		out = append(out, int(binary.BigEndian.Uint32(l.ID[12:])))
	}
	return out
}

// states returns number=state of all letters in order.
func (b *letterbox) states() string {
	b.T.Helper()
	return strings.ReplaceAll(b.Text(`SELECT ('x' || right(letter_id::text, 8))::bit(32)::int || '=' || state FROM onceward.dead_letters
		WHERE slot = $1 ORDER BY position, seq, letter_id`, b.Slot), "\n", " ")
}

// note returns what was recorded of word n.
func (b *letterbox) note(n int) string {
	b.T.Helper()
	return b.Text(`SELECT letters || ' ' || note FROM onceward.control_results WHERE slot = $1 AND control_id = $2`, b.Slot, testoutbox.ID(1_000_000+n))
}

func (b *letterbox) has(n int) bool {
	b.T.Helper()
	found, err := b.Ended(b.T.Context(), testoutbox.ID(n), testoutbox.LSN(n))
	require.NoError(b.T, err)
	return found
}

func (b *letterbox) follows(n int, aggregate string) bool {
	c := deadEvent(n, aggregate)
	return b.Parked(c.Row, c.Commit)
}

// everything is what a fenced writer must leave as it is.
func (b *letterbox) everything() string {
	b.T.Helper()
	return b.Text(`SELECT d::text FROM onceward.dead_letters d UNION ALL SELECT c::text FROM onceward.control_results c
		UNION ALL SELECT s::text FROM onceward.relay_state s ORDER BY 1`)
}
