package letters_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator/letters"
)

func TestParsePlace(t *testing.T) {
	aside, err := letters.ParsePlace("orders.order~0a1b2c3d/3@4711")
	require.NoError(t, err)
	require.Equal(t, letters.Place{Topic: "orders.order~0a1b2c3d", Partition: 3, Offset: 4711}, aside)
	p, err := letters.ParsePlace("orders.order/3@4711")
	require.NoError(t, err)
	require.Equal(t, letters.Place{Topic: "orders.order", Partition: 3, Offset: 4711}, p)
	require.Equal(t, "orders.order/3@4711", p.String())
	from, err := letters.ParsePlace("from:stripe/0@4611686018427387903")
	require.NoError(t, err)
	require.Equal(t, letters.Place{Topic: "from:stripe", Offset: 1<<62 - 1}, from)
	for _, text := range []string{"", "@", "from:/0@1", "to:stripe/0@1", "a/1", "a/1@", "a/-1@1", "/1@1", "a b/1@1", "a/1@1 ", "a/1@1/2"} {
		_, err := letters.ParsePlace(text)
		require.Error(t, err, text)
	}
}

func TestWhyALetterIsKept(t *testing.T) {
	require.Equal(t, "handler: no account", letters.GroupLetter{Cause: "handler", Error: "handler: no account"}.Why(100))
	require.Equal(t, "late: the event time", letters.GroupLetter{Cause: "late", Error: "the event time"}.Why(100))
}
