package process

import (
	"io"
	"os"
	"strings"
)

// tailLines and tailBytes bound what of a log goes into an error.
const (
	tailLines = 20
	tailBytes = 16 << 10
)

// Tail returns the last lines of a log, at most 20 lines and 16 KiB, in a form
// that can be appended to an error: empty when the log is, otherwise with a
// heading that names the file. A log that cannot be read is said to be so.
func Tail(path string) string {
	file, err := os.Open(path) //nolint:gosec // G304: the path is a log of ours
	if err != nil {
		return "\n(no log: " + err.Error() + ")"
	}
	defer file.Close() //nolint:errcheck // only read
	if info, err := file.Stat(); err == nil && info.Size() > tailBytes {
		if _, err := file.Seek(-tailBytes, io.SeekEnd); err != nil {
			return "\n(no log: " + err.Error() + ")"
		}
	}
	text, err := io.ReadAll(io.LimitReader(file, tailBytes))
	if err != nil {
		return "\n(no log: " + err.Error() + ")"
	}
	quoted := quoteTail(string(text))
	if quoted == "" {
		return "\n(the log " + path + " is empty)"
	}
	return "\nthe end of " + path + ":" + quoted
}

// quoteTail indents the last lines of a text, each on a line of its own.
func quoteTail(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return ""
	}
	lines := strings.Split(text, "\n")
	lines = lines[max(0, len(lines)-tailLines):]
	return "\n  | " + strings.Join(lines, "\n  | ")
}
