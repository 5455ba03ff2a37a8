package ledger

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/internal/label"
)

// metaVersion is that of the text below.
const metaVersion = "onceward/2"

// Checkpoint is the whole of what a session needs to know to do each item of the
// stream once: what has ended, and what binds it to one history of one database.
type Checkpoint struct {
	// Order: every transaction with a commit end at or before it has ended.
	Order pglogrepl.LSN
	Reach

	Timeline int32
	Tick     int64 // of relay_state, committed before this checkpoint
	Letters  int64 // writes ever made by this relay
	Session  int64 // the number of the session that made it, to tell whose it was
	Repair   Repair

	// Gap: what lies below this transaction id is no matter of the stream that made it, as
	// the end of the last gap says in relay_state's database; 0: there was none.
	Gap uint64

	// Strange: what Kafka keeps was made by a session of which relay_state does not know.
	Strange bool
}

// Repair is how far a repair has come. In exactly-once mode it stands in the
// checkpoint too, so that it is moved by the transaction that moves the events.
type Repair struct {
	Gap    uuid.UUID
	Cursor int64
}

// NewSession draws the number of a session, by which relay_state knows what a checkpoint in
// Kafka has of it: a copy of the database has sessions of its own. Older releases wrote
// the epoch there, which is far below.
func NewSession() int64 { return firstSession + rand.Int64N(1<<53) } //nolint:gosec // G404: tells sessions apart, keeps nobody out

const firstSession = 1 << 40

// Knows says whether a checkpoint in Kafka, not behind that of relay_state, is of the session
// that relay_state knows as the last one. A session writes itself down there before its
// first transaction, so that what is further can be of no other.
func (c *Checkpoint) Knows(inKafka *Checkpoint) bool {
	same := inKafka.Order == c.Order && inKafka.Reach == c.Reach
	return same || inKafka.Session == c.Session || inKafka.Session < firstSession
}

// Ended is the resume rule. Order is the end of a log record, so a commit record
// that starts before it also ends by there.
func (c *Checkpoint) Ended(at Place) bool { return at.Commit < c.Order || at.Before(c.UpTo) }

// Meta is the checkpoint as one line of text of less than 200 bytes, 64 more while a gap
// is repaired, and 25 more behind one.
func (c *Checkpoint) Meta() string {
	text := fmt.Sprintf("%s at=%s timeline=%d tick=%d letters=%d epoch=%d upto=%s release=%d cursor=%d,%s",
		metaVersion, c.Order, c.Timeline, c.Tick, c.Letters, c.Session, c.UpTo, c.Release, c.Cursor.Lane, c.Cursor.From)
	if c.Repair.Gap != uuid.Nil {
		text += fmt.Sprintf(" repair=%s@%d", c.Repair.Gap, c.Repair.Cursor)
	}
	if c.Gap > 0 {
		text += fmt.Sprintf(" gap=%d", c.Gap)
	}
	return text
}

// Parse reads what [Checkpoint.Meta] wrote, and the position beside it.
func Parse(order uint64, meta string) (Checkpoint, error) {
	c, err := Read(meta)
	if err == nil && c.Order != pglogrepl.LSN(order) {
		err = fmt.Errorf("parse checkpoint %q: it was made at %s, and is kept at %s", label.Short(meta), c.Order, pglogrepl.LSN(order))
	}
	return c, err
}

// Read is [Parse] where nothing stands beside the text.
func Read(meta string) (Checkpoint, error) {
	var c Checkpoint
	fields := strings.Split(meta, " ")
	if fields[0] != metaVersion {
		return c, fmt.Errorf("parse checkpoint %q: want it to begin with %s; it was written by another program, or by another version of the relay", label.Short(meta), metaVersion)
	}
	seen := 0
	for _, field := range fields[1:] {
		key, value, _ := strings.Cut(field, "=")
		if err := c.parseField(key, value); err != nil {
			return c, fmt.Errorf("parse checkpoint %q: %s: %w", label.Short(meta), key, err)
		}
		if key != "repair" && key != "gap" {
			seen++
		}
	}
	if seen != 8 {
		return c, fmt.Errorf("parse checkpoint %q: it has %d fields, want 8", label.Short(meta), seen)
	}
	return c, nil
}

func (c *Checkpoint) parseField(key, value string) (err error) {
	switch key {
	case "at":
		c.Order, err = ParseLSN(value)
	case "timeline":
		var n int64
		n, err = strconv.ParseInt(value, 10, 32)
		c.Timeline = int32(n)
	case "tick":
		c.Tick, err = strconv.ParseInt(value, 10, 64)
	case "letters":
		c.Letters, err = strconv.ParseInt(value, 10, 64)
	case "epoch":
		c.Session, err = strconv.ParseInt(value, 10, 64)
	case "upto":
		c.UpTo, err = parsePlace(value)
	case "release":
		c.Release, err = strconv.ParseInt(value, 10, 64)
	case "cursor":
		err = c.parseCursor(value)
	case "repair":
		c.Repair, err = parseRepair(value)
	case "gap":
		c.Gap, err = strconv.ParseUint(value, 10, 64)
	default:
		err = fmt.Errorf("unknown field")
	}
	return err
}

func (c *Checkpoint) parseCursor(value string) (err error) {
	number, from, _ := strings.Cut(value, ",")
	if c.Cursor.Lane, err = strconv.Atoi(number); err != nil {
		return err
	}
	c.Cursor.From, err = parsePlace(from)
	return err
}

func parseRepair(value string) (Repair, error) {
	id, cursor, ok := strings.Cut(value, "@")
	if !ok {
		return Repair{}, fmt.Errorf("%q has no cursor", value)
	}
	gap, err := uuid.Parse(id)
	if err != nil {
		return Repair{}, fmt.Errorf("gap: %w", err)
	}
	seq, err := strconv.ParseInt(cursor, 10, 64)
	if err != nil {
		return Repair{}, fmt.Errorf("cursor: %w", err)
	}
	return Repair{Gap: gap, Cursor: seq}, nil
}

func parsePlace(text string) (Place, error) {
	parts := strings.Split(text, ",")
	if len(parts) != 3 {
		return Place{}, fmt.Errorf("%q is no place: want commit,ordinal,letter", text)
	}
	commit, err := ParseLSN(parts[0])
	if err != nil {
		return Place{}, err
	}
	ordinal, err := strconv.ParseUint(parts[1], 10, 32)
	if err != nil {
		return Place{}, fmt.Errorf("ordinal: %w", err)
	}
	letter, err := strconv.ParseUint(parts[2], 10, 32)
	if err != nil {
		return Place{}, fmt.Errorf("letter: %w", err)
	}
	return Place{Commit: commit, Ordinal: uint32(ordinal), Letter: uint32(letter)}, nil
}
