//go:build e2e

package consumer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
)

// sender takes letters as a topic would.
type sender struct {
	got   []consumer.Letter
	large map[int64]bool // offsets of those that it refuses
	fail  int            // after so many, if > 0
	calls int
}

var errSend = errors.New("no answer from Kafka")

func (s *sender) send(_ context.Context, letters []consumer.Letter) (sent []consumer.Letter, err error) {
	s.calls++
	for _, l := range letters {
		if s.fail > 0 && len(s.got) == s.fail {
			return sent, errSend
		}
		if s.large[l.Record.Source.Offset] {
			continue
		}
		s.got, sent = append(s.got, l), append(sent, l)
	}
	return sent, nil
}

func TestSendLetters(t *testing.T) {
	t.Parallel()
	d := newLetterGroup(t)
	recs := d.dead(45)
	s := &sender{}
	n, err := d.router.SendLetters(t.Context(), s.send)
	require.NoError(t, err)
	require.Equal(t, 45, n)
	require.Len(t, s.got, 45)
	for i, l := range s.got {
		require.Equal(t, recs[i], l.Record)
		require.Equal(t, "handler", l.Reason)
		require.Equal(t, "handler: broken", l.Error)
		require.Equal(t, 1, l.Attempts)
		require.False(t, l.At.IsZero())
	}
	n, err = d.router.SendLetters(t.Context(), s.send)
	require.NoError(t, err)
	require.Zero(t, n, "each once")
	require.Equal(t, 3, s.calls)
}

// What does not arrive is sent again; one that is refused holds up no other.
func TestSendLettersAgain(t *testing.T) {
	t.Parallel()
	d := newLetterGroup(t)
	recs := d.dead(45)
	large := make(map[int64]bool)
	for _, rec := range recs[:21] {
		large[rec.Source.Offset] = true
	}
	s := &sender{large: large, fail: 5}
	n, err := d.router.SendLetters(t.Context(), s.send)
	require.ErrorIs(t, err, errSend)
	require.Equal(t, 5, n)
	s.fail = 0
	n, err = d.router.SendLetters(t.Context(), s.send)
	require.NoError(t, err)
	require.Equal(t, 19, n)
	s.large = nil
	n, err = d.router.SendLetters(t.Context(), s.send)
	require.NoError(t, err)
	require.Equal(t, 21, n)
	require.Len(t, s.got, 45)
}

// A process that dies between Kafka and its memory of it.
func TestSendLettersAtLeastOnce(t *testing.T) {
	t.Parallel()
	d := newLetterGroup(t)
	d.dead(1)
	s := &sender{}
	_, err := d.router.SendLetters(t.Context(), func(ctx context.Context, letters []consumer.Letter) ([]consumer.Letter, error) {
		sent, err := s.send(ctx, letters)
		exec(t, d.db, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`) //nolint:contextcheck // an administrator's statement, not part of the call
		return sent, err
	})
	require.True(t, consumer.IsInfrastructure(err), "%v", err)
	require.Eventually(t, func() bool { // the server frees the dead one's lock in its own time
		n, err := d.router.SendLetters(t.Context(), s.send)
		return err == nil && n == 1
	}, time.Minute, 10*time.Millisecond)
	require.Len(t, s.got, 2)
}

// One member sends at a time, and letters that were decided about are not sent.
func TestSendLettersOfOneMember(t *testing.T) {
	t.Parallel()
	d := newLetterGroup(t)
	d.dead(4)
	exec(t, d.db, `UPDATE onceward.consumer_dead_letters SET state = (ARRAY['open', 'requested', 'redriven', 'discarded'])[kafka_offset]`)
	s, other := &sender{}, d.member()
	n, err := d.router.SendLetters(t.Context(), func(ctx context.Context, letters []consumer.Letter) ([]consumer.Letter, error) {
		n, err := other.SendLetters(ctx, s.send)
		require.NoError(t, err)
		require.Zero(t, n)
		exec(t, d.db, `UPDATE onceward.consumer_dead_letters SET decided_why = 'an operator need not wait for Kafka'`) //nolint:contextcheck // an operator's statement, not part of the call
		return s.send(ctx, letters)
	})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, 1, s.calls)
	require.EqualValues(t, 2, s.got[1].Record.Source.Offset)
}

// A letter that was replaced between Kafka and the memory of it was not sent.
func TestSendLettersReplacedMeanwhile(t *testing.T) {
	t.Parallel()
	d := newLetterGroup(t)
	d.dead(2)
	s := &sender{}
	for _, want := range []int{2, 3} {
		_, err := d.router.SendLetters(t.Context(), func(ctx context.Context, letters []consumer.Letter) ([]consumer.Letter, error) {
			if want == 2 {
				exec(t, d.db, "UPDATE onceward.consumer_dead_letters SET generation = generation + 1, error = 'another one' WHERE kafka_offset = 2") //nolint:contextcheck // what another member does
			}
			return s.send(ctx, letters)
		})
		require.NoError(t, err)
		require.Len(t, s.got, want)
	}
	require.Equal(t, "another one", s.got[2].Error)
}
