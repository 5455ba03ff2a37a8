package procfs

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStatOfANameWithBrackets(t *testing.T) {
	cpu, err := parseStat([]byte("42 (a) (b) S 1 42 42 0 -1 4194560 1 2 3 4 150 25 0 0 20 0 1 0 9 0\n"))
	require.NoError(t, err)
	require.Equal(t, 1750*time.Millisecond, cpu)
	for _, text := range []string{"", "42 (a", "42 (a) S 1 2", "42 (a) S 1 42 42 0 -1 4194560 1 2 3 4 x 25 0"} {
		_, err := parseStat([]byte(text))
		require.Error(t, err, text)
	}
}

func TestStatus(t *testing.T) {
	peak, err := parseStatus("Name:\tx\nVmHWM:\t   2048 kB\nVmRSS:\t 1 kB\n")
	require.NoError(t, err)
	require.EqualValues(t, 2<<20, peak)
	_, err = parseStatus("Name:\tx\n")
	require.Error(t, err)
}

func TestTheMachineIsNotBusyWhileItIsIdle(t *testing.T) {
	used, stolen, err := parseMachine("cpu  10 20 30 4000 500 6 7 8 90 100\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
	require.NoError(t, err)
	require.Equal(t, (10+20+30+6+7+8)*tick, used)
	require.Equal(t, 8*tick, stolen)
	_, _, err = parseMachine("intr 1\n")
	require.Error(t, err)
}

func TestCPUBetweenTwoReadings(t *testing.T) {
	start := time.Unix(100, 0)
	points := []point{{start, 0}, {start.Add(time.Second), time.Second}, {start.Add(2 * time.Second), time.Second}}
	for at, want := range map[time.Duration]time.Duration{
		-time.Second: 0, 0: 0, 500 * time.Millisecond: 500 * time.Millisecond, 1500 * time.Millisecond: time.Second, time.Hour: time.Second,
	} {
		require.Equal(t, want, spent(points, start.Add(at)), at)
	}
}

func TestASamplerSeesThisProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there is no /proc")
	}
	s := Start()
	begin := time.Now()
	for cpu, err := time.Duration(0), error(nil); cpu == 0; cpu, err = CPU(os.Getpid()) {
		require.NoError(t, err)
	}
	s.WatchNew("new", os.Getpid())
	s.Watch("me", os.Getpid())
	s.Watch("machine", Machine)
	from := time.Now()
	s.Stop()
	whole, ok := s.Between("new", begin, time.Now())
	require.True(t, ok)
	require.Positive(t, whole, "what was spent before counts")
	_, ok = s.Between("me", from, time.Now())
	require.True(t, ok)
	require.Positive(t, s.Peak("me"))
	all, err := CPU(Machine)
	require.NoError(t, err)
	require.Positive(t, all)
	_, ok = s.Between("machine", from, time.Now())
	require.True(t, ok)
	require.Zero(t, s.Peak("machine"))
	_, ok = s.Between("nobody", from, time.Now())
	require.False(t, ok)
	require.Zero(t, s.Peak("nobody"))
}

// A backend is another process after its client has connected anew; what both spent counts.
func TestAProcessFollowsAnother(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there is no /proc")
	}
	s := Start()
	begin := time.Now()
	s.WatchNew("backend", os.Getpid())
	for cpu, err := time.Duration(0), error(nil); cpu == 0; cpu, err = CPU(os.Getpid()) {
		require.NoError(t, err)
	}
	s.WatchNew("backend", os.Getpid())
	first, ok := s.Between("backend", begin, time.Now())
	require.True(t, ok)
	require.Positive(t, first)
	s.WatchNew("backend", os.Getppid())
	s.Stop()
	both, ok := s.Between("backend", begin, time.Now())
	require.True(t, ok)
	parent, err := CPU(os.Getppid())
	require.NoError(t, err)
	require.GreaterOrEqual(t, both, first)
	require.LessOrEqual(t, both, first+parent+time.Second)
}
