package rest_test

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/publisher/internal/rest"
)

// A topic rests for a pause after a refusal, and two that lie less than two pauses apart are
// in a row, although it was tried between them.
func TestATopicRestsForAPauseAndCountsWhatComesInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var topics rest.Topics
		rests := func(topic string) (times int) {
			r, is := topics.Of(topic)
			if !is {
				return 0
			}
			return r.Times
		}
		require.Zero(t, rests("a"))
		topics.Refused("a", io.EOF)
		r, is := topics.Of("a")
		require.True(t, is)
		require.Equal(t, rest.Refusal{At: time.Now(), Cause: io.EOF, Times: 1}, r)
		require.Zero(t, rests("b"), "another one")
		time.Sleep(rest.Pause - 1)
		require.Equal(t, 1, rests("a"))
		time.Sleep(time.Nanosecond)
		require.Zero(t, rests("a"))
		topics.Refused("a", io.EOF)
		require.Equal(t, 2, rests("a"))
		time.Sleep(2*rest.Pause - 1)
		require.Zero(t, rests("a"))
		topics.Refused("a", io.EOF)
		require.Equal(t, 3, rests("a"))
		time.Sleep(2 * rest.Pause)
		require.Zero(t, rests("a"))
		topics.Refused("a", io.EOF)
		require.Equal(t, 1, rests("a"), "the last one is long ago")
	})
}
