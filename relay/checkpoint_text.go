package relay

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"github.com/onceward/onceward/relay/internal/printed"
)

// metaVersion is that of the text below.
const metaVersion = "onceward/2"

// checkpoint is the whole of what a session needs to know to do each item of the
// stream once: what has ended, and what binds it to one history of one database.
type checkpoint struct {
	// order: every transaction with a commit end at or before it has ended.
	order pglogrepl.LSN
	reach

	timeline int32
	tick     int64 // of relay_state, committed before this checkpoint
	letters  int64 // writes ever made by this relay
	session  int64 // the number of the session that made it, to tell whose it was
	mended   mended

	// strange: what Kafka keeps was made by a session of which relay_state does not know.
	strange bool
}

// newSession draws the number of a session, by which relay_state knows what a checkpoint in
// Kafka has of it: a copy of the database has sessions of its own. Older releases wrote
// the epoch there, which is far below.
func newSession() int64 { return firstSession + rand.Int64N(1<<53) } //nolint:gosec // G404: tells sessions apart, keeps nobody out

const firstSession = 1 << 40

// knows says whether a checkpoint in Kafka, not behind that of relay_state, is of the session
// that relay_state knows as the last one. A session writes itself down there before its
// first transaction, so that what is further can be of no other.
func (c *checkpoint) knows(inKafka *checkpoint) bool {
	same := inKafka.order == c.order && inKafka.reach == c.reach
	return same || inKafka.session == c.session || inKafka.session < firstSession
}

// ended is the resume rule. Order is the end of a log record, so a commit record
// that starts before it also ends by there.
func (c *checkpoint) ended(at place) bool { return at.commit < c.order || at.before(c.upto) }

// meta is the checkpoint as one line of text of less than 200 bytes, and 64 more
// while a gap is repaired.
func (c *checkpoint) meta() string {
	text := fmt.Sprintf("%s at=%s timeline=%d tick=%d letters=%d epoch=%d upto=%s release=%d cursor=%d,%s",
		metaVersion, c.order, c.timeline, c.tick, c.letters, c.session, c.upto, c.release, c.cursor.lane, c.cursor.from)
	if c.mended.gap != uuid.Nil {
		text += fmt.Sprintf(" repair=%s@%d", c.mended.gap, c.mended.cursor)
	}
	return text
}

// parseCheckpoint reads what [checkpoint.meta] wrote, and the position beside it.
func parseCheckpoint(order uint64, meta string) (checkpoint, error) {
	c, err := readCheckpoint(meta)
	if err == nil && c.order != pglogrepl.LSN(order) {
		err = fmt.Errorf("parse checkpoint %q: it was made at %s, and is kept at %s", printed.Short(meta), c.order, pglogrepl.LSN(order))
	}
	return c, err
}

func readCheckpoint(meta string) (checkpoint, error) {
	var c checkpoint
	fields := strings.Split(meta, " ")
	if fields[0] != metaVersion {
		return c, fmt.Errorf("parse checkpoint %q: want it to begin with %s; it was written by another program, or by another version of the relay", printed.Short(meta), metaVersion)
	}
	seen := 0
	for _, field := range fields[1:] {
		key, value, _ := strings.Cut(field, "=")
		if err := c.parseField(key, value); err != nil {
			return c, fmt.Errorf("parse checkpoint %q: %s: %w", printed.Short(meta), key, err)
		}
		if key != "repair" {
			seen++
		}
	}
	if seen != 8 {
		return c, fmt.Errorf("parse checkpoint %q: it has %d fields, want 8", printed.Short(meta), seen)
	}
	return c, nil
}

func (c *checkpoint) parseField(key, value string) (err error) {
	switch key {
	case "at":
		c.order, err = parseLSN(value)
	case "timeline":
		var n int64
		n, err = strconv.ParseInt(value, 10, 32)
		c.timeline = int32(n)
	case "tick":
		c.tick, err = strconv.ParseInt(value, 10, 64)
	case "letters":
		c.letters, err = strconv.ParseInt(value, 10, 64)
	case "epoch":
		c.session, err = strconv.ParseInt(value, 10, 64)
	case "upto":
		c.upto, err = parsePlace(value)
	case "release":
		c.release, err = strconv.ParseInt(value, 10, 64)
	case "cursor":
		err = c.parseCursor(value)
	case "repair":
		c.mended, err = parseMended(value)
	default:
		err = fmt.Errorf("unknown field")
	}
	return err
}

func (c *checkpoint) parseCursor(value string) (err error) {
	number, from, _ := strings.Cut(value, ",")
	if c.cursor.lane, err = strconv.Atoi(number); err != nil {
		return err
	}
	c.cursor.from, err = parsePlace(from)
	return err
}

func parseMended(value string) (mended, error) {
	id, cursor, ok := strings.Cut(value, "@")
	if !ok {
		return mended{}, fmt.Errorf("%q has no cursor", value)
	}
	gap, err := uuid.Parse(id)
	if err != nil {
		return mended{}, fmt.Errorf("gap: %w", err)
	}
	seq, err := strconv.ParseInt(cursor, 10, 64)
	if err != nil {
		return mended{}, fmt.Errorf("cursor: %w", err)
	}
	return mended{gap: gap, cursor: seq}, nil
}

func parsePlace(text string) (place, error) {
	parts := strings.Split(text, ",")
	if len(parts) != 3 {
		return place{}, fmt.Errorf("%q is no place: want commit,ordinal,letter", text)
	}
	commit, err := parseLSN(parts[0])
	if err != nil {
		return place{}, err
	}
	ordinal, err := strconv.ParseUint(parts[1], 10, 32)
	if err != nil {
		return place{}, fmt.Errorf("ordinal: %w", err)
	}
	letter, err := strconv.ParseUint(parts[2], 10, 32)
	if err != nil {
		return place{}, fmt.Errorf("letter: %w", err)
	}
	return place{commit: commit, ordinal: uint32(ordinal), letter: uint32(letter)}, nil
}
