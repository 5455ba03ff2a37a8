package relay

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
}

const (
	checkpointLog = 9000 // bytes of a checkpoint, a whole page included
	recordLog     = 56
	recordEvery   = 25 * time.Second
)

func (s *quietServer) second() {
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
// event. The event's checkpoint, one that lets go of its log, and one per hour.
func TestOneIdleCheckpointFollowsACausedOne(t *testing.T) {
	rule, server := idleRule{}, &quietServer{end: 1 << 30}
	durable, savedAt, passed := pglogrepl.LSN(1<<30-500), time.Duration(0), true
	var checkpoints []time.Duration
	var released pglogrepl.LSN // the record that the checkpoint before the hourly ones has passed
	for now := time.Second; now <= 10*time.Hour; now += time.Second {
		if position := server.end; rule.due(passed, position-durable, now-savedAt) {
			rule.saved(passed, position-durable)
			durable, savedAt, passed = position, now, false
			checkpoints = append(checkpoints, now)
			if len(checkpoints) == 2 {
				released = server.recorded
			}
			server.end += checkpointLog
		}
		server.second()
	}
	require.Equal(t, []time.Duration{time.Second, time.Second + followUpTime}, checkpoints[:2])
	require.Greater(t, released, pglogrepl.LSN(1<<30), "the log before the event can go")
	require.LessOrEqual(t, len(checkpoints), 2+10, "%v", checkpoints)
}

func TestIdleRule(t *testing.T) {
	for _, tc := range []struct {
		name   string
		owed   bool
		passed bool
		ahead  pglogrepl.LSN
		since  time.Duration
		due    bool
		owes   bool
	}{
		{name: "an event", passed: true, ahead: 1, due: true, owes: true},
		{name: "much foreign log", ahead: idleBytes, due: true, owes: true},
		{name: "little foreign log", ahead: idleBytes - 1, since: idleTime - 1},
		{name: "an hour", ahead: 1, since: idleTime, due: true},
		{name: "the follow-up", owed: true, ahead: 1, since: followUpTime, due: true},
		{name: "before the follow-up", owed: true, ahead: idleBytes - 1, since: followUpTime - 1, owes: true},
		{name: "nothing new", owed: true, since: 2 * idleTime, owes: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rule := idleRule{owed: tc.owed}
			require.Equal(t, tc.due, rule.due(tc.passed, tc.ahead, tc.since))
			if tc.due {
				rule.saved(tc.passed, tc.ahead)
			}
			require.Equal(t, tc.owes, rule.owed)
		})
	}
}
