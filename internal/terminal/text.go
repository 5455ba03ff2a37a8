package terminal

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// PreviewBytes are shown of a text that anybody may have written, such as a payload.
const PreviewBytes = 120

// ErrorBytes bounds an error in a line for people. It ends with what mends it.
const ErrorBytes = 2000

// Stamp writes a time for a person, in UTC; nil is "-".
func Stamp(t *time.Time) string {
	if t == nil {
		return noStamp
	}
	return t.UTC().Format(stampLayout)
}

const (
	stampLayout = "2006-01-02 15:04:05.000Z"
	noStamp     = "-"
)

// isStamp tells whether a text is a time that Stamp wrote.
func isStamp(text string) bool {
	if len(text) != len(stampLayout) {
		return false
	}
	_, err := time.Parse(stampLayout, text)
	return err == nil
}

// Size writes a number of bytes for a person.
func Size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	div, exp := int64(unit), 0
	for m := n / unit; m >= unit; m /= unit {
		div *= unit
		exp++
	}
	return fmt.Sprintf("%.1f %ciB", float64(n)/float64(div), "KMGTPE"[exp])
}

// Preview returns at most limit bytes of data as one line that tells bytes apart:
// what is not printable, and a backslash, is escaped.
func Preview(data []byte, limit int) string {
	cut := len(data) > limit
	if cut {
		data = data[:limit]
	}
	quoted := fmt.Sprintf("%q", data)
	text := strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
	if cut {
		text += "…"
	}
	return text
}

// Length writes a duration with days: 1d12h.
func Length(d time.Duration) string {
	const day = 24 * time.Hour
	days := ""
	if d >= day {
		days = strconv.FormatInt(int64(d/day), 10) + "d"
		if d %= day; d == 0 {
			return days
		}
	}
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return days + text
}
