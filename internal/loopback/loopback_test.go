package loopback_test

import (
	"net"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/loopback"
)

func TestPortsAreDifferentAndFree(t *testing.T) {
	ports, err := loopback.Ports(t.Context(), 20)
	require.NoError(t, err)
	require.Len(t, ports, 20)
	slices.Sort(ports)
	require.Len(t, slices.Compact(ports), 20, "a port was given twice")

	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", loopback.Address(ports[0]))
	require.NoError(t, err, "a port is still held")
	require.NoError(t, listener.Close())
}
