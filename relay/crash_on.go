//go:build onceward_defects

package relay

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// crashName and crashTimes are what CRASH_AT says.
var (
	crashName, crashTimes = crashAt(os.Getenv("CRASH_AT"))
	crashed               atomic.Int64
)

func crashAt(text string) (string, int64) {
	name, times, _ := strings.Cut(text, ":")
	n, err := strconv.ParseInt(times, 10, 64)
	if err != nil {
		n = 1
	}
	return name, n
}

// crash ends the process at the place that CRASH_AT names.
func crash(name string) {
	if crashName == name && crashed.Add(1) == crashTimes {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way
	}
}
