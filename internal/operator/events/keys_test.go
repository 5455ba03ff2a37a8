package events

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOfferedKeys(t *testing.T) {
	const id, other = ":01a20101-a14d-7d01-acac-1702a8503a9d", ":01a20101-a14e-7d02-b1b2-0203a4050607"
	keys := []string{"payments" + id, "$(reboot)" + id, "payments" + other, "payments" + id, "orders" + id}
	require.Equal(t, []string{"payments" + id, "payments" + other, "orders" + id}, offered(keys, "", nil))
	require.Equal(t, []string{"payments" + id, "payments" + other}, offered(keys, "pay", nil))
	require.Equal(t, []string{"payments" + other}, offered(keys, "payments:", []string{"payments" + id}))
	var many []string
	for i := range 60 {
		many = append(many, fmt.Sprintf("payments:01a20101-a14d-7d01-acac-1702a85030%02d", i))
	}
	require.Len(t, offered(many, "", nil), maxKeys)
}
