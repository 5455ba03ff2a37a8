package relays

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator"
)

func TestUnknownRoutesAreRefused(t *testing.T) {
	known := []string{"payments.invoice", "orders.order", "orders.order"}
	require.NoError(t, refuseUnknown("orders.order", known, "relay.yaml"))
	for route, want := range map[string]string{
		"payments.invoic": "neither relay.yaml nor the database knows topic payments.invoic; did you mean payments.invoice? --force pauses",
		"x":               "knows topic x, but orders.order, payments.invoice; --force pauses",
	} {
		err := refuseUnknown(route, known, "relay.yaml")
		var unclear *operator.UnclearError
		require.ErrorAs(t, err, &unclear, "the call was wrong, and nothing was done")
		require.ErrorContains(t, err, want)
	}
	require.ErrorContains(t, refuseUnknown("x", nil, "relay.yaml"), "but no topic yet")
}

func TestTopicsAreNotAllNamed(t *testing.T) {
	var many []string
	for i := range 23 {
		many = append(many, fmt.Sprintf("t%02d", i))
	}
	require.Regexp(t, `^t00, .*, t19 and 3 more$`, Topics(many))
}
