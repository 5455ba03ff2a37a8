//go:build !linux

package process

import (
	"iter"
	"os/exec"
	"strconv"
	"strings"
)

// commandLine asks ps, which prints a zombie as its name in brackets; empty
// when there is no such process, or no ps.
func commandLine(pid int) string {
	out, err := exec.Command("ps", "-ww", "-o", "command=", "-p", strconv.Itoa(pid)).Output() //nolint:gosec,noctx // G204: the argument is a number; ps ends by itself
	if err != nil {
		return ""
	}
	return string(out)
}

// commandLines goes through the processes of the machine.
func commandLines() iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		out, _ := exec.Command("ps", "-axww", "-o", "pid=,command=").Output() //nolint:noctx // ps ends by itself
		for line := range strings.Lines(string(out)) {
			first, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			if pid, err := strconv.Atoi(first); err == nil && !yield(pid, rest) {
				return
			}
		}
	}
}
