package partition

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/onceward/onceward/outbox"
)

// Errors that callers branch on.
var (
	// ErrDefault: the table has a DEFAULT partition.
	ErrDefault = errors.New("table has a DEFAULT partition")
	// ErrOverlap: a partition with other bounds covers a part of a day.
	ErrOverlap = errors.New("partitions overlap")
	// ErrTaken: a table with a partition's name exists and is not attached.
	ErrTaken = errors.New("name of a partition is taken")
)

// DefaultError: the table has a DEFAULT partition. It matches [ErrDefault].
type DefaultError struct {
	Table     string // "schema.table"
	Partition string // with its schema, quoted for SQL
}

// Error implements error.
func (e *DefaultError) Error() string {
	cure := "move its rows where they belong and drop it"
	switch e.Table {
	case claims:
		cure = "`outboxctl audit` prints what moves its rows to their days and drops it"
	case Outbox:
		cure = DetachCure(e.Partition)
	}
	return fmt.Sprintf("%v: %s; it hides that an event's day has no partition; %s", ErrDefault, e.Partition, cure)
}

// DetachCure says how a DEFAULT partition of the outbox, whose name is quoted for
// SQL, is taken away. Its rows are not moved: the relay would publish them again.
func DetachCure(name string) string {
	return Bounded + fmt.Sprintf("; ALTER TABLE onceward.outbox DETACH PARTITION %s; then run outboxctl partitions maintain --config relay.yaml, which makes the partitions of these days. "+
		"Its rows come by the stream all the same: when the relay has caught up, enqueue again by outbox.Enqueue only those that are not in their topics, and drop it", name)
}

// Unwrap returns [ErrDefault].
func (e *DefaultError) Unwrap() error { return ErrDefault }

// maxName is the longest identifier that PostgreSQL keeps, in bytes.
const maxName = 63

// nameLayout appends the UTC day to the parent's name.
const nameLayout = "_20060102"

// Partition is one partition of a table: a name and the half-open range of
// event ids [Lower, Upper) that it takes.
type Partition struct {
	Name         string
	Lower, Upper uuid.UUID
}

// Day returns the first instant of t's day in UTC.
func Day(t time.Time) time.Time {
	t = t.UTC()
	return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC)
}

// OfDay returns the partition of the UTC day in which t lies. table is the
// parent's name without its schema.
func OfDay(table string, t time.Time) Partition {
	day := Day(t)
	return Partition{
		Name:  table + day.Format(nameLayout),
		Lower: outbox.FirstID(day),
		Upper: outbox.FirstID(day.AddDate(0, 0, 1)),
	}
}

// Days returns the partitions of the UTC days from the one of first to the one
// of last, both included, in order; none when last lies before first.
func Days(table string, first, last time.Time) []Partition {
	var out []Partition
	for day := Day(first); !day.After(last); day = day.AddDate(0, 0, 1) {
		out = append(out, OfDay(table, day))
	}
	return out
}

// FewAhead: with fewer days ahead than this it is time to act.
const FewAhead = 7

// Ahead counts the whole UTC days after the one of now that are covered
// without a hole. Where ids of now have no partition it is 0: nobody can write.
func Ahead(existing []Partition, now time.Time) int {
	n := 0
	if !Has(existing, now) {
		return n
	}
	for {
		want := OfDay("", Day(now).AddDate(0, 0, n+1))
		if !slices.ContainsFunc(existing, func(p Partition) bool { return p.covers(want) }) {
			return n
		}
		n++
	}
}

// Has reports whether ids of the instant have a partition.
func Has(existing []Partition, now time.Time) bool {
	id := outbox.FirstID(now)
	return slices.ContainsFunc(existing, func(p Partition) bool {
		return compare(p.Lower, id) <= 0 &&
			compare(id, p.Upper) < 0
	})
}

// Extent returns the UTC days of the oldest and of the newest partition; false
// when there is none.
func Extent(existing []Partition) (first, last time.Time, ok bool) {
	for i, p := range existing {
		from, to := outbox.IDTime(p.Lower), outbox.IDTime(p.Upper).Add(-time.Millisecond)
		if i == 0 || from.Before(first) {
			first = from
		}
		if i == 0 || to.After(last) {
			last = to
		}
	}
	return Day(first), Day(last), len(existing) > 0
}

// missing returns what of wanted is not there yet. A wanted range must either
// be there with the same bounds or be free; anything between is [ErrOverlap].
func missing(existing, wanted []Partition) ([]Partition, error) {
	var out []Partition
	for _, w := range wanted {
		free := true
		for _, e := range existing {
			if e.Lower == w.Lower && e.Upper == w.Upper {
				free = false
				continue
			}
			if e.overlaps(w) {
				return nil, fmt.Errorf("%w: %s (%s) is in the way of %s (%s)", ErrOverlap, e.Name, e.span(), w.Name, w.span())
			}
		}
		if free {
			out = append(out, w)
		}
	}
	return out, nil
}

func (p Partition) overlaps(o Partition) bool {
	return compare(p.Lower, o.Upper) < 0 && compare(o.Lower, p.Upper) < 0
}

func (p Partition) covers(o Partition) bool {
	return compare(p.Lower, o.Lower) <= 0 && compare(o.Upper, p.Upper) <= 0
}

// span is the range in times, for messages.
func (p Partition) span() string {
	return outbox.IDTime(p.Lower).Format(time.RFC3339) + " to " + outbox.IDTime(p.Upper).Format(time.RFC3339)
}

// compare orders ids as PostgreSQL does: by their bytes.
func compare(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

// splitTable takes apart "schema.table". Both parts are plain names; they are
// quoted wherever they enter SQL.
func splitTable(table string) (schema, name string, err error) {
	schema, name, ok := strings.Cut(table, ".")
	if !ok || schema == "" || name == "" || strings.Contains(name, ".") {
		return "", "", fmt.Errorf("table %q: want schema.table", table)
	}
	if n := len(name) + len(nameLayout); n > maxName {
		return "", "", fmt.Errorf("table %q: its partitions' names would have %d bytes, at most %d are possible", table, n, maxName)
	}
	return schema, name, nil
}
