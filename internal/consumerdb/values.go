package consumerdb

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

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

// KeyHash is a record's key as the queries compare it.
func KeyHash(recordKey []byte) string {
	sum := sha256.Sum256(recordKey)
	return hex.EncodeToString(sum[:])
}

// Micros is a duration as the queries return it.
func Micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// IsText reports whether a text column can hold s.
func IsText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// Reason is the error in a form that a text column can hold.
func Reason(err error) string {
	return strings.ReplaceAll(strings.ToValidUTF8(err.Error(), "\uFFFD"), "\x00", "\uFFFD")
}

// Decode reads a result that was stored for duplicates; a handler with a transaction has stored none.
func Decode(stored []byte, result any) error {
	if stored == nil {
		return nil
	}
	if err := json.Unmarshal(stored, result); err != nil {
		return fmt.Errorf("decode the result of the first time, which another version of this program may have written: %w", err)
	}
	return nil
}
