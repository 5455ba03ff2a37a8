package loopback

import (
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPortsAreDifferentAndFree(t *testing.T) {
	r, err := Reserve(t.Context(), 20)
	require.NoError(t, err)
	ports := slices.Clone(r.Ports())
	require.Len(t, ports, 20)
	slices.Sort(ports)
	require.Len(t, slices.Compact(ports), 20, "a port was given twice")

	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", Address(ports[0]))
	require.NoError(t, err, "a port is still held")
	require.NoError(t, listener.Close())
	require.NoError(t, r.Release())
	require.NoError(t, r.Release())
}

// TestAReservedPortIsNobodyElses: not this process's, nor another's, though nobody
// listens on it.
func TestAReservedPortIsNobodyElses(t *testing.T) {
	r, err := Reserve(t.Context(), 1)
	require.NoError(t, err)
	port := r.Ports()[0]
	_, err = reserve(t.Context(), port)
	require.Error(t, err)
	require.Equal(t, "taken", inAnotherProcess(t, port))
	require.NoError(t, r.Release())
	require.Equal(t, "free", inAnotherProcess(t, port))
}

func TestAPortThatSomebodyListensOnIsNotReserved(t *testing.T) {
	r, err := Reserve(t.Context(), 1)
	require.NoError(t, err)
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", Address(r.Ports()[0]))
	require.NoError(t, err)
	defer listener.Close()
	require.NoError(t, r.Release())
	_, err = reserve(t.Context(), r.Ports()[0])
	require.Error(t, err)
}

// otherProcess tells the test program to be the other process.
const otherProcess = "ONCEWARD_LOOPBACK_TRY"

// inAnotherProcess says whether another program can reserve the port.
func inAnotherProcess(t *testing.T, port int) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestBeTheOtherProcess$", "-test.v")
	cmd.Env = append(os.Environ(), otherProcess+"="+strconv.Itoa(port))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	_, said, ok := strings.Cut(string(out), "the port is ")
	require.True(t, ok, string(out))
	return strings.Fields(said)[0]
}

// TestBeTheOtherProcess is no test, but what inAnotherProcess runs.
func TestBeTheOtherProcess(t *testing.T) {
	port, err := strconv.Atoi(os.Getenv(otherProcess))
	if err != nil {
		t.Skip("run by TestAReservedPortIsNobodyElses")
	}
	lock, err := reserve(t.Context(), port)
	if err != nil {
		t.Log("the port is taken")
		return
	}
	require.NoError(t, lock.Close())
	t.Log("the port is free")
}
