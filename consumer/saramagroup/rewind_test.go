package saramagroup_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
)

// The database goes back a second time before anything of the first rewind is
// finished: the offset of the rewind says what the database had then.
func TestDatabaseGoesBackTwice(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		h := k.worksOff(10)

		h.db.set(func(d *database) {
			d.history = "promoted"
			m := d.marks[0]
			m.High = 5
			d.marks[0] = m
		})
		fails := newHandler(func(context.Context, consumer.Record, int) (consumer.Outcome, error) { return 0, errors.New("not yet") })
		fails.db = h.db
		stop, _ := k.run(fails, defect{})
		<-time.After(5 * time.Second)
		require.NoError(t, stop())
		require.EqualValues(t, 6, k.committed()[0])

		h.db.set(func(d *database) { // the backup that was restored then is older
			d.history = "restored"
			m := d.marks[0]
			m.High = 2
			d.marks[0] = m
		})
		again := newHandler(nil)
		again.db = h.db
		stop, _ = k.run(again, defect{})
		recs, err := again.await(7)
		require.NoError(t, err)
		<-time.After(5 * time.Second)
		require.NoError(t, stop())
		got := offsets(recs, 0)
		slices.Sort(got)
		require.Equal(t, []int64{3, 4, 5, 6, 7, 8, 9}, got)
	})
}

// worksOff has so many records in each partition, and all of them handled and committed.
func (k *kafka) worksOff(each int64) *handler {
	k.t.Helper()
	k.produce(int(each))
	h := newHandler(nil)
	stop, _ := k.run(h, defect{})
	_, err := h.await(2 * int(each))
	require.NoError(k.t, err)
	<-time.After(2 * time.Second)
	require.NoError(k.t, stop())
	require.Equal(k.t, [2]int64{each, each}, k.committed())
	return h
}

// The group's offset is in Kafka, and the database has no mark of it, because it is another
// one: all is applied again, which is said, with the database's name; nothing is called a
// duplicate.
func TestAnotherDatabase(t *testing.T) {
	inFakeTime(t, func(k *kafka) {
		k.worksOff(10)

		var log bytes.Buffer
		again := newHandler(nil) // its database is a new one
		stop, _ := k.run(again, defect{}, withLog(&log))
		_, err := again.await(20)
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Contains(t, log.String(), "this database knows nothing of it")
		require.Contains(t, log.String(), "database=shop ")
		require.NotContains(t, log.String(), "has lost commits")
	})
}
