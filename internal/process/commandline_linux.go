package process

import (
	"bytes"
	"os"
	"strconv"
)

// commandLine returns the arguments of a process with spaces between them,
// empty when there is none. A zombie's is empty, too.
func commandLine(pid int) string {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return ""
	}
	return string(bytes.ReplaceAll(raw, []byte{0}, []byte{' '}))
}
