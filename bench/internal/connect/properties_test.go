package connect_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/bench/internal/connect"
)

func TestProperties(t *testing.T) {
	s := connect.Source{Brokers: "a:1,b:2", Password: `p\w`, Slot: "s", Topic: "t"}
	require.Contains(t, s.Worker(), "bootstrap.servers=a:1,b:2\n")
	plain := s.Connector()
	require.Contains(t, plain, "database.password=p\\\\w\n", "a backslash is not the beginning of an escape")
	require.Contains(t, plain, "slot.name=s\n")
	require.NotContains(t, plain, "linger")
	s.Tuned = true
	require.Contains(t, s.Connector(), "producer.override.linger.ms=5\n")
	require.Contains(t, s.Connector(), "producer.override.max.in.flight.requests.per.connection=5\n")
	require.Greater(t, strings.Count(s.Connector(), "\n"), strings.Count(plain, "\n"))
}
