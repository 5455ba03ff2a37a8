package process

import (
	"bytes"
	"iter"
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

// commandLines goes through the processes of the machine.
func commandLines() iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		entries, _ := os.ReadDir("/proc") // none where it is not mounted
		for _, entry := range entries {
			if pid, err := strconv.Atoi(entry.Name()); err == nil && !yield(pid, commandLine(pid)) {
				return
			}
		}
	}
}
