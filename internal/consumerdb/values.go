package consumerdb

import (
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// LettersKept is for how long a letter is kept after it was redriven.
const LettersKept = 30 * 24 * time.Hour

// Interval is a duration as the queries take it.
func Interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

// Texts are ids as the queries take many of them.
func Texts(ids []uuid.UUID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = id.String()
	}
	return out
}

// Micros is a duration as the queries return it.
func Micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
