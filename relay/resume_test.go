package relay

import (
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func lsn(n uint64) pglogrepl.LSN { return pglogrepl.LSN(n) }

func drawPlace(t *rapid.T) place {
	return place{commit: lsn(rapid.Uint64().Draw(t, "commit")), ordinal: rapid.Uint32().Draw(t, "ordinal"), letter: rapid.Uint32().Draw(t, "letter")}
}

func TestACheckpointIsReadAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := checkpoint{
			order: lsn(rapid.Uint64().Draw(t, "order")),
			reach: reach{
				upto: drawPlace(t), release: rapid.Int64().Draw(t, "release"),
				cursor: cursor{lane: rapid.IntRange(0, 1<<31).Draw(t, "lane"), from: drawPlace(t)},
			},
			timeline: rapid.Int32().Draw(t, "timeline"), tick: rapid.Int64().Draw(t, "tick"),
			letters: rapid.Int64().Draw(t, "letters"), session: rapid.Int64().Draw(t, "session"),
		}
		got, err := parseCheckpoint(uint64(want.order), want.meta())
		require.NoError(t, err)
		require.Equal(t, want, got)
		_, err = parseCheckpoint(uint64(want.order)+1, want.meta())
		require.ErrorContains(t, err, "is kept at")
	})
}

func TestTheCheckpointsTextIsFixed(t *testing.T) {
	c := checkpoint{
		order: 0x16B3748, reach: reach{upto: place{0x16B3800, 12, 0}, release: 7, cursor: cursor{lane: 3, from: place{0x16B3748, 3, 2}}},
		timeline: 2, tick: 77, letters: 5, session: 9,
	}
	require.Equal(t, "onceward/2 at=0/16B3748 timeline=2 tick=77 letters=5 epoch=9 upto=0/16B3800,12,0 release=7 cursor=3,0/16B3748,3,2", c.meta())
}

func TestTheResumeRule(t *testing.T) {
	c := checkpoint{order: 0x16B3748, reach: reach{upto: place{0x16B3800, 12, 0}}}
	for at, want := range map[place]bool{
		{0x16B3747, 9, 0}: true, {0x16B3748, 3, 2}: true, {0x16B3800, 11, 7}: true, {0x16B3800, 12, 0}: false, {0x16B3801, 0, 0}: false,
	} {
		require.Equal(t, want, c.ended(at), "%s", at)
	}
}

func FuzzACheckpointOfSomebodyElseIsRefusedOrUnderstood(f *testing.F) {
	for _, seed := range []string{
		"", "onceward/2", "onceward/1 timeline=1 tick=1 letters=1 epoch=1 upto=0/1,2,3", "onceward/2 at=x", "onceward/2 at=0/1 timeline=x",
		"onceward/2 at=0/1 timeline=1 tick=1 letters=1 epoch=1 upto=0/1,2,3 release=7 cursor=3,0/1,2,3", "onceward/2 at=0/1 cursor=3", "onceward/2 release=1 release=1 cursor=x,0/1,2,3",
		"onceward/2 at=0/1 timeline=1 tick=1 letters=1 epoch=1 upto=0/1,2,3 release=7 cursor=3,0/1,2,3 repair=0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a@7",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, meta string) {
		c, err := parseCheckpoint(1, meta)
		if err != nil {
			return
		}
		again, err := parseCheckpoint(1, c.meta())
		require.NoError(t, err)
		require.Equal(t, c, again)
	})
}

// A repair's place in the checkpoint comes back, whatever else is in it.
func TestMendedIsPartOfTheCheckpoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := checkpoint{order: 1, timeline: 1, tick: 2, letters: 3, session: 4}
		copy(c.mended.gap[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "gap"))
		c.mended.gap[0] |= 1
		c.mended.cursor = rapid.Int64().Draw(t, "cursor")
		again, err := parseCheckpoint(1, c.meta())
		require.NoError(t, err)
		require.Equal(t, c, again)
	})
	for _, bad := range []string{"repair=x", "repair=x@1", "repair=0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a@x"} {
		_, err := parseCheckpoint(1, (&checkpoint{}).meta()+" "+bad)
		require.Error(t, err, bad)
	}
}
