package ledger

import (
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
)

// quietServer is a server on which nobody works: its log grows by what a
// checkpoint writes, and by the record of the open transactions that its
// background writer adds up to 25 s after anything was written.
type quietServer struct {
	end, recorded pglogrepl.LSN // of the log, and of that record
	since         time.Duration // something was written, and not recorded
	archive       time.Duration // archive_timeout, 0 for none
	switched      pglogrepl.LSN // the log's end when the last segment was switched
	unswitched    time.Duration // since then
}

const (
	checkpointLog = 9000 // bytes of a checkpoint, a whole page included
	recordLog     = 56
	recordEvery   = 25 * time.Second
	testSegment   = 16 << 20
	segmentHead   = 40
)

func (s *quietServer) second() {
	if s.unswitched += time.Second; s.archive > 0 && s.unswitched >= s.archive && s.end > s.switched+recordLog {
		s.end = (s.end/testSegment+1)*testSegment + segmentHead
		s.switched, s.unswitched = s.end, 0
	}
	if s.end == s.recorded {
		s.since = 0
		return
	}
	if s.since += time.Second; s.since >= recordEvery {
		s.end += recordLog
		s.recorded, s.since = s.end, 0
	}
}

// TestOneIdleCheckpointFollowsACausedOne: ten hours of a quiet server after one
// event. The event's checkpoint, one that lets go of its log, and one per hour;
// also where the server makes a segment of whatever is written.
func TestOneIdleCheckpointFollowsACausedOne(t *testing.T) {
	for _, archive := range []time.Duration{0, 2 * time.Second, time.Minute, 5 * time.Minute} {
		t.Run("archive_timeout "+archive.String(), func(t *testing.T) {
			rule, server := Idle{Segment: testSegment}, &quietServer{end: 1 << 30, archive: archive}
			durable, savedAt, passed := pglogrepl.LSN(1<<30-500), time.Duration(0), true
			var checkpoints []time.Duration
			var released pglogrepl.LSN // the record that the checkpoint before the hourly ones has passed
			for now := time.Second; now <= 10*time.Hour; now += time.Second {
				if position := server.end; rule.Due(passed, durable, position, now-savedAt) {
					rule.Saved(passed, durable, position, now-savedAt)
					durable, savedAt, passed = position, now, false
					checkpoints = append(checkpoints, now)
					if len(checkpoints) == 2 {
						released = server.recorded
					}
					server.end += checkpointLog
				}
				server.second()
			}
			require.Equal(t, []time.Duration{time.Second, time.Second + FollowUpTime}, checkpoints[:2])
			require.Greater(t, released, pglogrepl.LSN(1<<30), "the log before the event can go")
			require.LessOrEqual(t, len(checkpoints), 2+10+10/idleSegments, "%v", checkpoints)
		})
	}
}

// TestRelaysOfAServerDoNotFeedEachOther: ten hours after one event each, on a server
// that has a checkpoint of its own five minutes after something was written, and makes
// a segment of whatever is written.
func TestRelaysOfAServerDoNotFeedEachOther(t *testing.T) {
	type quietRelay struct {
		Idle
		durable pglogrepl.LSN
		savedAt time.Duration
	}
	for relays := range 5 {
		for _, archive := range []time.Duration{2 * time.Second, 10 * time.Second, time.Minute, 5 * time.Minute} {
			server := &quietServer{end: 1 << 30, archive: archive}
			all := make([]quietRelay, relays)
			for i := range all {
				all[i] = quietRelay{Idle{Segment: testSegment}, 1<<30 - 500, 0}
			}
			var written bool
			var flushed time.Duration
			late := 0
			for now := time.Second; now <= 10*time.Hour; now += time.Second {
				for i := range all {
					r := &all[i]
					passed := now == time.Duration(1+i*97)*time.Second
					if !r.Due(passed, r.durable, server.end, now-r.savedAt) {
						continue
					}
					r.Saved(passed, r.durable, server.end, now-r.savedAt)
					r.durable, r.savedAt = server.end, now
					server.end += checkpointLog
					written = true
					if now > 5*time.Hour {
						late++
					}
				}
				if written && now-flushed >= 5*time.Minute {
					server.end += checkpointLog
					written, flushed = false, now
				}
				server.second()
			}
			require.LessOrEqual(t, late, relays*10, "%d relays, archive_timeout %s: in the last five hours", relays, archive)
		}
	}
}

// A release is a reason of its own: the log of the burst before it is let go of all the same.
func TestAReleaseLeavesWhatIsOwed(t *testing.T) {
	rule := Idle{Segment: testSegment, Owed: true}
	rule.Saved(false, 100, 200, time.Second)
	require.True(t, rule.Due(false, 200, 300, FollowUpTime))
	rule.Saved(false, 200, 300, FollowUpTime)
	require.False(t, rule.Due(false, 300, 400, FollowUpTime))
}

// TestAQuietServerKeepsNoSegments: somebody else writes a row every minute, and the
// server makes a segment of each.
func TestAQuietServerKeepsNoSegments(t *testing.T) {
	rule, server := Idle{Segment: testSegment}, &quietServer{end: 1 << 30, archive: time.Minute}
	durable, savedAt := server.end, time.Duration(0)
	for now := time.Second; now <= 10*time.Hour; now += time.Second {
		if rule.Due(false, durable, server.end, now-savedAt) {
			rule.Saved(false, durable, server.end, now-savedAt)
			durable, savedAt = server.end, now
			server.end += checkpointLog
		}
		require.Less(t, server.end-durable, pglogrepl.LSN((idleSegments+1)*testSegment))
		if now%time.Minute == 0 {
			server.end += 200
		}
		server.second()
	}
}

func TestIdleRule(t *testing.T) {
	for _, tc := range []struct {
		name   string
		owed   bool
		passed bool
		ahead  pglogrepl.LSN
		from   pglogrepl.LSN // of a segment
		since  time.Duration
		due    bool
		owes   bool
	}{
		{name: "an event", passed: true, ahead: 1, due: true, owes: true},
		{name: "much foreign log", ahead: IdleBytes, due: true, owes: true},
		{name: "little foreign log", ahead: IdleBytes - 1, since: IdleTime - 1},
		{name: "an hour", ahead: 1, since: IdleTime, due: true},
		{name: "the follow-up", owed: true, ahead: 1, since: FollowUpTime, due: true},
		{name: "before the follow-up", owed: true, ahead: IdleBytes - 1, since: FollowUpTime - 1, owes: true},
		{name: "into the next segment", from: testSegment - IdleBytes, ahead: IdleBytes + beginBytes, due: true, owes: true},
		{name: "a segment was switched", ahead: testSegment + beginBytes - 1, since: IdleTime - 1},
		{name: "behind a burst", owed: true, ahead: testSegment, since: FollowUpTime, due: true},
		{name: "several were", ahead: idleSegments * testSegment, due: true},
		{name: "the last of several was", from: 3*testSegment + 100, ahead: testSegment, due: true},
		{name: "nothing new", owed: true, since: 2 * IdleTime, owes: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rule, last := Idle{Segment: testSegment, Owed: tc.owed}, 64*testSegment+tc.from
			require.Equal(t, tc.due, rule.Due(tc.passed, last, last+tc.ahead, tc.since))
			if tc.due {
				rule.Saved(tc.passed, last, last+tc.ahead, tc.since)
			}
			require.Equal(t, tc.owes, rule.Owed)
		})
	}
}
