package ledger

import (
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func drawPlace(t *rapid.T) Place {
	return Place{Commit: pglogrepl.LSN(rapid.Uint64().Draw(t, "commit")), Ordinal: rapid.Uint32().Draw(t, "ordinal"), Letter: rapid.Uint32().Draw(t, "letter")}
}

func TestACheckpointIsReadAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Checkpoint{
			Order: pglogrepl.LSN(rapid.Uint64().Draw(t, "order")),
			Reach: Reach{
				UpTo: drawPlace(t), Release: rapid.Int64().Draw(t, "release"),
				Cursor: Cursor{Lane: rapid.IntRange(0, 1<<31).Draw(t, "lane"), From: drawPlace(t)},
			},
			Timeline: rapid.Int32().Draw(t, "timeline"), Tick: rapid.Int64().Draw(t, "tick"),
			Letters: rapid.Int64().Draw(t, "letters"), Session: rapid.Int64().Draw(t, "session"), Gap: rapid.Uint64().Draw(t, "gap"),
		}
		got, err := Parse(uint64(want.Order), want.Meta())
		require.NoError(t, err)
		require.Equal(t, want, got)
		_, err = Parse(uint64(want.Order)+1, want.Meta())
		require.ErrorContains(t, err, "is kept at")
	})
}

func TestTheCheckpointsTextIsFixed(t *testing.T) {
	c := Checkpoint{
		Order: 0x16B3748, Reach: Reach{UpTo: Place{0x16B3800, 12, 0}, Release: 7, Cursor: Cursor{Lane: 3, From: Place{0x16B3748, 3, 2}}},
		Timeline: 2, Tick: 77, Letters: 5, Session: 9,
	}
	require.Equal(t, "onceward/2 at=0/16B3748 timeline=2 tick=77 letters=5 epoch=9 upto=0/16B3800,12,0 release=7 cursor=3,0/16B3748,3,2", c.Meta())
	c.Gap = 790
	require.Equal(t, " gap=790", c.Meta()[len(c.Meta())-8:])
}

func TestTheResumeRule(t *testing.T) {
	c := Checkpoint{Order: 0x16B3748, Reach: Reach{UpTo: Place{0x16B3800, 12, 0}}}
	for at, want := range map[Place]bool{
		{0x16B3747, 9, 0}: true, {0x16B3748, 3, 2}: true, {0x16B3800, 11, 7}: true, {0x16B3800, 12, 0}: false, {0x16B3801, 0, 0}: false,
	} {
		require.Equal(t, want, c.Ended(at), "%s", at)
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
		c, err := Parse(1, meta)
		if err != nil {
			return
		}
		again, err := Parse(1, c.Meta())
		require.NoError(t, err)
		require.Equal(t, c, again)
	})
}

// A repair's place in the checkpoint comes back, whatever else is in it.
func TestMendedIsPartOfTheCheckpoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Checkpoint{Order: 1, Timeline: 1, Tick: 2, Letters: 3, Session: 4}
		copy(c.Repair.Gap[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "gap"))
		c.Repair.Gap[0] |= 1
		c.Repair.Cursor = rapid.Int64().Draw(t, "cursor")
		again, err := Parse(1, c.Meta())
		require.NoError(t, err)
		require.Equal(t, c, again)
	})
	for _, bad := range []string{"repair=x", "repair=x@1", "repair=0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a@x"} {
		_, err := Parse(1, (&Checkpoint{}).Meta()+" "+bad)
		require.Error(t, err, bad)
	}
}
