package stream

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/cdc"
	"github.com/onceward/onceward/publisher"
	"github.com/onceward/onceward/record"
)

// What stops the relay until it is started again writes the letters before it too.
func TestAStandstillWritesTheLettersBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, behind := of("a"), typed(200, "user")
		sink := newFakeSink()
		sink.refuse = func(ev publisher.Event) error {
			if ev.Row.ID == first.Row.ID {
				return &record.RowError{Field: "size", Detail: "too large"}
			}
			return &publisher.PartitionError{Topic: "t", From: 3, To: 6}
		}
		p := testPump(sink)
		kept := p.letters.store.(*fakeLetters)
		pumping(t, p, [][]cdc.Item{{first, behind}}, func() {
			pass(time.Hour)
			require.Equal(t, []uuid.UUID{first.Row.ID}, kept.order)
		})
	})
}
