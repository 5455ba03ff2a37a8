package completed_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/onceward/onceward/consumer/internal/completed"
	"github.com/onceward/onceward/record"
)

// texts are such as the marks between the parts of a value could be in.
var texts = []string{"", "a", "a b", `a"`, `" "`, "1", "a 1"}

// all is what a value says.
type all struct {
	life    completed.Life
	event   uuid.UUID
	content record.Fingerprint
}

func (a all) value() string { return a.life.Value(a.event, a.content) }

// change draws one part anew.
func (a *all) change(t *rapid.T) {
	text, n := rapid.SampledFrom(texts).Draw(t, "text"), rapid.IntRange(0, 2).Draw(t, "number")
	switch rapid.IntRange(0, 8).Draw(t, "part") {
	case 0:
		a.life.History = text
	case 1:
		a.life.Tables = text
	case 2:
		a.life.Group = text
	case 3:
		a.life.Class = text
	case 4:
		a.life.Registered = time.UnixMicro(int64(n))
	case 5:
		a.life.Forgotten = int64(n)
	case 6:
		a.event[15] = byte(n)
	case 7:
		a.content[15] = byte(n)
	case 8:
		a.life.Unclaimed = n > 0
	}
}

// TestValuesTellLivesApart: two values are equal exactly when life, event and content
// are.
func TestValuesTellLivesApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := all{life: completed.Life{Registered: time.UnixMicro(0)}}
		for range rapid.IntRange(0, 12).Draw(t, "before") {
			a.change(t)
		}
		b := a
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			b.change(t)
		}
		require.Equal(t, a == b, a.value() == b.value(), "%+v %+v", a, b)
	})
}

func TestKeyOfAGroup(t *testing.T) {
	id := uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057")
	require.Equal(t, "billing:01890a5d-ac96-774b-bcce-b302099a8057", completed.Key("billing", id))
	require.Len(t, completed.Life{}.Value(id, record.Fingerprint{}), 32)
}
