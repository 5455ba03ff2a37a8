// Package procfs reads what Linux says of a process: CPU time and peak memory. On other systems
// every reading is an error, and a benchmark shows no such figure.
package procfs

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU times in /proc/PID/stat: USER_HZ is 100 on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// What stands in the place of a process id for more than a process, in sum over the cores.
const (
	Machine = 0  // all processes, and what virtual machines beside this one took away
	Stolen  = -1 // the latter alone
)

// CPU returns the time that a process has spent on CPUs, its ended threads included, in steps of
// 10 ms.
func CPU(pid int) (time.Duration, error) {
	if pid == Machine || pid == Stolen {
		text, err := os.ReadFile("/proc/stat")
		if err != nil {
			return 0, err
		}
		all, stolen, err := parseMachine(string(text))
		if pid == Stolen {
			return stolen, err
		}
		return all, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStat(text)
}

// parseStat adds utime and stime, the 14th and the 15th field. The second is the program's name
// in brackets, in which anything may stand.
func parseStat(text []byte) (time.Duration, error) {
	const utime, stime = 14 - 3, 15 - 3
	at := bytes.LastIndexByte(text, ')')
	fields := strings.Fields(string(text[at+1:]))
	if at < 0 || len(fields) <= stime {
		return 0, fmt.Errorf("read /proc/PID/stat: %q has too few fields", text)
	}
	user, err := strconv.ParseInt(fields[utime], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read utime of /proc/PID/stat: %w", err)
	}
	system, err := strconv.ParseInt(fields[stime], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read stime of /proc/PID/stat: %w", err)
	}
	return time.Duration(user+system) * tick, nil
}

// Peak returns the most memory that a process has had resident (VmHWM), in bytes.
func Peak(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return parseStatus(string(text))
}

func parseStatus(text string) (int64, error) {
	_, rest, ok := strings.Cut(text, "\nVmHWM:")
	if !ok {
		return 0, fmt.Errorf("read /proc/PID/status: it has no VmHWM")
	}
	line, _, _ := strings.Cut(rest, "\n")
	kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(line), "kB")), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read VmHWM of /proc/PID/status: %w", err)
	}
	return kib << 10, nil
}

// parseMachine adds all but idle and iowait of the first line, and but guest times, which are in
// user and nice already.
func parseMachine(text string) (all, stolen time.Duration, err error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("read /proc/stat: %q is not the line of all CPUs", line)
	}
	const idle, iowait, steal = 3, 4, 7
	for i, field := range fields[1:9] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read /proc/stat: %w", err)
		}
		if i != idle && i != iowait {
			all += time.Duration(n) * tick
		}
		if i == steal {
			stolen = time.Duration(n) * tick
		}
	}
	return all, stolen, nil
}

// System says what Linux runs on: processor, memory and kernel. What it does not say is left out.
func System() string {
	field := func(file, name string) string {
		text, _ := os.ReadFile(file) //nolint:gosec // G304: one of two
		for line := range strings.Lines(string(text)) {
			if label, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(label) == name {
				return strings.TrimSpace(value)
			}
		}
		return ""
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	var words []string
	for _, word := range []string{field("/proc/cpuinfo", "model name"), field("/proc/meminfo", "MemTotal"), strings.TrimSpace(string(kernel))} {
		if word != "" {
			words = append(words, word)
		}
	}
	return strings.Join(words, ", ")
}
