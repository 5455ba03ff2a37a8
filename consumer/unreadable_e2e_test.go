//go:build e2e

package consumer_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
)

// Who sets the offset into the middle of a batch finds the rest of it, which has a letter.
func TestRestOfAnUnreadableRange(t *testing.T) {
	t.Parallel()
	d := newLetterGroup(t)
	keep := func(topic uuid.UUID, from, until int64) int {
		u := consumer.Unreadable{From: consumer.Source{Topic: "orders", TopicID: topic, Partition: 3, Offset: from}, Until: until, Why: errors.New("it unpacks to too much")}
		require.NoError(t, d.router.KeepUnreadable(t.Context(), u))
		return d.letters()
	}
	topic := uuid.New()
	require.Equal(t, 1, keep(topic, 5, 12))
	require.Equal(t, 1, keep(topic, 8, 12), "the rest of it")
	require.Equal(t, 2, keep(topic, 8, 13), "more than it")
	require.Equal(t, 3, keep(uuid.New(), 9, 12), "in another life of the topic")
	require.Equal(t, 4, keep(uuid.Nil, 10, 12), "nobody knows in which")
}

// A range that nobody could read is one letter, however often it is met, and no
// redrive takes it, so that what it says stays.
func TestUnreadableRangeIsOneLetter(t *testing.T) {
	t.Parallel()
	d := newLetterGroup(t)
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

// TestUnreadableAfterItWasRead: what was read and finished, and is unreadable when its offset is
// set back, by a lower limit, has no letter that puts it in doubt; the rest of its range has one.
func TestUnreadableAfterItWasRead(t *testing.T) {
	l := newLives(t)
	topic, other := uuid.New(), uuid.New()
	seen, beyond := l.in(topic, 7), l.in(topic, 22)
	require.NoError(t, deliver(t.Context(), l.router, seen, consumer.Processed))
	require.NoError(t, l.router.SaveProgress(t.Context(), l.history, []consumer.Mark{{Topic: "orders", TopicID: topic, Low: 4, High: 20}}))
	keep := func(topic uuid.UUID, from, until int64) (letters string) {
		u := consumer.Unreadable{From: consumer.Source{Topic: "orders", TopicID: topic, Offset: from}, Until: until, Why: errBroken}
		require.NoError(t, l.router.KeepUnreadable(t.Context(), u))
		require.NoError(t, l.db.QueryRow(t.Context(), `WITH gone AS (DELETE FROM onceward.consumer_dead_letters RETURNING *)
			SELECT COALESCE(string_agg(kafka_offset || '-' || unreadable_until, ' ' ORDER BY kafka_offset), '') FROM gone`).Scan(&letters))
		return letters
	}
	require.Empty(t, keep(topic, 5, 10))
	require.Contains(t, l.log.String(), "passed over")
	require.Empty(t, keep(topic, 4, 21), "all that the mark proves")
	require.Equal(t, "2-4", keep(topic, 2, 10), "before the group's first it may have been applied from another topic")
	require.Equal(t, "1-3", keep(topic, 1, 3))
	require.Equal(t, "21-30", keep(topic, 21, 30))
	require.Equal(t, "5-10", keep(other, 5, 10), "of another life nothing is proven")
	require.Equal(t, "5-10", keep(uuid.Nil, 5, 10))
	l.outage()
	require.NoError(t, deliver(t.Context(), l.start(), seen, consumer.Duplicate))

	u := consumer.Unreadable{From: consumer.Source{Topic: "orders", TopicID: topic, Offset: 15}, Until: 25, Why: errBroken}
	for range 2 {
		require.NoError(t, l.router.KeepUnreadable(t.Context(), u))
		require.Equal(t, 1, count(t, l.db, "SELECT count(*) FROM onceward.consumer_dead_letters WHERE kafka_offset = 21 AND unreadable_until = 25"))
		require.Equal(t, 1, l.letters())
		l.saveMark(topic, 30)
	}
	require.NoError(t, deliver(t.Context(), l.start(), beyond, consumer.Processed), "nobody has read it")
	require.Equal(t, 2, l.effects())
}
