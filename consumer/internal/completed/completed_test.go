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

// life draws one of few, so that equal ones are drawn, with names in which the marks
// between the parts could be.
func life(t *rapid.T) completed.Life {
	text := rapid.SampledFrom([]string{"", "a", "a b", `a"`, `" "`, "1", "a 1"})
	return completed.Life{
		History: text.Draw(t, "history"), Tables: text.Draw(t, "tables"), Group: text.Draw(t, "group"), Class: text.Draw(t, "class"),
		Registered: time.UnixMicro(rapid.Int64Range(0, 2).Draw(t, "registered")),
		Forgotten:  rapid.Int64Range(0, 2).Draw(t, "forgotten"),
	}
}

// TestValuesTellLivesApart: two values are equal exactly when life, event and content
// are.
func TestValuesTellLivesApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := life(t), life(t)
		if rapid.Bool().Draw(t, "same life") {
			b = a
		}
		var f, g record.Fingerprint
		f[15], g[15] = rapid.Byte().Draw(t, "content"), rapid.Byte().Draw(t, "other content")
		if rapid.Bool().Draw(t, "same content") {
			g = f
		}
		var id, other uuid.UUID
		id[0], other[0] = rapid.Byte().Draw(t, "event"), rapid.Byte().Draw(t, "other event")
		if rapid.Bool().Draw(t, "same event") {
			other = id
		}
		require.Equal(t, a == b && f == g && id == other, a.Value(id, f) == b.Value(other, g), "%+v %+v", a, b)
	})
}

func TestKeyOfAGroup(t *testing.T) {
	id := uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057")
	require.Equal(t, "billing:01890a5d-ac96-774b-bcce-b302099a8057", completed.Key("billing", id))
	require.Len(t, completed.Life{}.Value(id, record.Fingerprint{}), 32)
}
