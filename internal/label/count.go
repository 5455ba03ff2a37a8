package label

import "strconv"

// Count is a number of things: "1 event", "2 events". The second form is given where an s
// is not all of it, as with a verb: Count(n, "event waits", "events wait").
func Count[N int | int16 | int32 | int64](n N, one string, many ...string) string {
	if n == 1 {
		return "1 " + one
	}
	if len(many) == 0 {
		many = []string{one + "s"}
	}
	return strconv.FormatInt(int64(n), 10) + " " + many[0]
}

// Are is the verb to a number.
func Are[N int | int64](n N) string {
	if n == 1 {
		return "is"
	}
	return "are"
}
