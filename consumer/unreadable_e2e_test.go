//go:build e2e

package consumer_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
)

// A range that nobody could read is one letter, however often it is met, and no
// redrive takes it, so that what it says stays.
func TestUnreadableRangeIsOneLetter(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	at := consumer.Source{Topic: "orders", Partition: 3, Offset: 5}
	u := consumer.Unreadable{From: at, Until: 12, Why: errors.New("it unpacks to too much")}
	for range 2 {
		require.NoError(t, d.router.KeepUnreadable(t.Context(), u))
	}
	rec := consumer.Record{Source: at}
	want := letterNow{State: "open", Reason: "unreadable", Error: "offsets from 5 until 12 of orders/3: it unpacks to too much"}
	require.Equal(t, want, d.letter(rec))
	require.Equal(t, 1, count(t, d.db, `SELECT count(*) FROM onceward.consumer_dead_letters
		WHERE record_key IS NULL AND record_value IS NULL AND record_headers = '[]' AND event_id IS NULL`))
	d.request()
	d.redrive(0)
	want.State = "requested"
	require.Equal(t, want, d.letter(rec))

	for _, wrong := range []consumer.Unreadable{
		{From: at, Until: 5, Why: u.Why}, {From: at, Until: 6}, {From: consumer.Source{Offset: 5}, Until: 6, Why: u.Why},
	} {
		require.ErrorIs(t, d.router.KeepUnreadable(t.Context(), wrong), consumer.ErrEvent)
	}

	// It is copied to the topic of dead letters like every other one.
	exec(t, d.db, "UPDATE onceward.consumer_dead_letters SET state = 'open'")
	s := &sender{}
	n, err := d.router.SendLetters(t.Context(), s.send)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, "unreadable", s.got[0].Reason)
	require.Nil(t, s.got[0].Record.Value)
}
