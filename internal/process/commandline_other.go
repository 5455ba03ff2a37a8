//go:build !linux

package process

import (
	"os/exec"
	"strconv"
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
