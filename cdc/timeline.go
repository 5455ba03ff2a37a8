package cdc

import (
	"bufio"
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"
)

// switchPoint reads a timeline history file: one line per ancestor, its number
// and the position at which it was left (PostgreSQL documentation, "Continuous
// Archiving", "Timelines"). ok is false when the timeline is not an ancestor.
func switchPoint(history []byte, timeline int32) (at pglogrepl.LSN, ok bool, err error) {
	lines := bufio.NewScanner(bytes.NewReader(history))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		number, err := strconv.ParseInt(fields[0], 10, 32)
		if err != nil {
			return 0, false, fmt.Errorf("read timeline history: line %q: %w", lines.Text(), err)
		}
		if number != int64(timeline) {
			continue
		}
		at, err := pglogrepl.ParseLSN(fields[1])
		if err != nil {
			return 0, false, fmt.Errorf("read timeline history: line %q: %w", lines.Text(), err)
		}
		return at, true, nil
	}
	return 0, false, nil
}
