//go:build onceward_defects

package fault

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

var injected = Defect(os.Getenv("DEFECT"))

// Is reports whether a defect is injected.
func Is(d Defect) bool { return injected == d }

// place and times are what CRASH_AT says, came how often it was passed.
var (
	place, times = crashAt(os.Getenv("CRASH_AT"))
	came         atomic.Int64
)

func crashAt(text string) (Place, int64) {
	name, times, _ := strings.Cut(text, ":")
	n, err := strconv.ParseInt(times, 10, 64)
	if err != nil {
		n = 1
	}
	return Place(name), n
}

// Crash ends the process, by SIGKILL, if it is to die at this place.
func Crash(p Place) {
	if place == p && came.Add(1) == times {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way
	}
}
