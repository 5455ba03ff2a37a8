//go:build e2e

package stream

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
	"github.com/onceward/onceward/relay/internal/letters"
	"github.com/onceward/onceward/relay/internal/testoutbox"
)

// tables are those of dead letters and of what waits, on a real server, between
// sessions that own them.
type tables struct {
	*testoutbox.Outbox
	first func(ctx context.Context, q *outboxdb.Queries) error // of the next session
	*letters.Store
}

func onTables(t *testing.T, tests map[string]func(*tables)) {
	testoutbox.OnServers(t, func(t *testing.T, server *pgserver.Server) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				b := &tables{Outbox: testoutbox.New(t, server)}
				b.reopen(0)
				test(b)
			})
		}
	})
}

// reopen is the next session, which starts at a position.
func (b *tables) reopen(checkpoint pglogrepl.LSN) {
	b.T.Helper()
	var err error
	b.Store, err = letters.Open(b.T.Context(), b.Take(), letters.Config{Checkpoint: checkpoint, MaxParked: 1000, First: b.first})
	require.NoError(b.T, err)
}

// deadRow is event n of an aggregate, in a transaction of its own at 16 × n.
func deadRow(n int, aggregate string, change ...func(*letters.Dead)) letters.Dead {
	c := letters.Dead{
		Row: &outbox.Row{
			ID: testoutbox.ID(n), Namespace: "orders", AggregateType: "order", AggregateID: []byte(aggregate), Type: "Paid", Payload: []byte(fmt.Sprint("payload ", n)),
			ContentType: "text/plain", Headers: []byte(`{"a": "b"}`), Traceparent: []byte("00-trace"),
			CreatedAt: time.Date(2026, 11, 21, 5, 0, n%60, 123456000, time.UTC), TxID: uint64(700 + n), Seq: int64(n),
		},
		Commit: testoutbox.LSN(n), Class: letters.ClassRecord, Cause: "record too large", Holds: true,
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

// parks admits letters as the pump does, and writes them.
func (b *tables) parks(cs ...letters.Dead) {
	b.T.Helper()
	for i := range cs {
		require.Nil(b.T, b.Admit(&cs[i]))
	}
	require.NoError(b.T, b.Write(b.T.Context(), cs...))
}

// controlOf is control n about an aggregate or, if it is a number, one letter.
func controlOf(n int, action string, of any) *cdc.Control {
	c := &cdc.Control{ID: testoutbox.ID(1_000_000 + n), Action: action, Reason: fmt.Sprint("reason ", n), RequestedBy: "alice"}
	if letter, ok := of.(int); ok {
		c.LetterID = testoutbox.ID(letter)
		return c
	}
	c.Namespace, c.AggregateType, c.AggregateID = "orders", "order", []byte(of.(string))
	return c
}

func (b *tables) pages(r *letters.Release) (all []*letters.Letter) {
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

func numbersOf(all []*letters.Letter) (out []int) {
	for _, l := range all {
		out = append(out, int(binary.BigEndian.Uint32(l.ID[12:])))
	}
	return out
}

// states returns number=state of all letters in order.
func (b *tables) states() string {
	b.T.Helper()
	return strings.ReplaceAll(b.Text(`SELECT ('x' || right(letter_id::text, 8))::bit(32)::int || '=' || state FROM onceward.dead_letters
		WHERE slot = $1 ORDER BY position, seq, letter_id`, b.Slot), "\n", " ")
}
