package process

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// foreignPoll is how often a process that is not our child is looked at.
const foreignPoll = 50 * time.Millisecond

// Runs reports whether a process with that id runs and has the marker in its
// command line. The marker, such as the server's data folder, keeps a process
// id that was given to another program meanwhile from being taken for ours. A
// zombie does not run.
func Runs(pid int, marker string) bool {
	return pid > 0 && marker != "" && strings.Contains(commandLine(pid), marker)
}

// Find returns the id of a process that has the marker in its command line, other than
// the caller; 0: none has.
func Find(marker string) int {
	for pid, line := range commandLines() {
		if marker != "" && pid != os.Getpid() && strings.Contains(line, marker) {
			return pid
		}
	}
	return 0
}

// StopForeign ends a process that another run of a program started: it sends
// the signal and waits until [Runs] says no. When ctx ends first, the process
// is killed and waited for once more. A process that does not run is no error.
func StopForeign(ctx context.Context, pid int, marker string, sig os.Signal) error {
	if !Runs(pid, marker) {
		return nil
	}
	child, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("find process %d: %w", pid, err)
	}
	if err := child.Signal(sig); err != nil && Runs(pid, marker) {
		return fmt.Errorf("send %v to process %d: %w", sig, pid, err)
	}
	ticker := time.NewTicker(foreignPoll)
	defer ticker.Stop()
	timeout := ctx.Done()
	for Runs(pid, marker) {
		select {
		case <-ticker.C:
		case <-timeout:
			if err := child.Kill(); err != nil && Runs(pid, marker) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
			timeout = nil // SIGKILL cannot be refused: from here on only the end is awaited
		}
	}
	return nil
}
