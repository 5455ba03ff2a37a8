package relay

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
)

// place is where an item stands in the stream: the start of its transaction's
// commit record, its ordinal among the transaction's items (events, replays and
// controls alike), and, for a retry, how many of its letters are out. Places are
// those of the log, so they are the same whenever it is read again.
type place struct {
	commit  pglogrepl.LSN
	ordinal uint32
	letter  uint32
}

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p.commit, q.commit), cmp.Compare(p.ordinal, q.ordinal), cmp.Compare(p.letter, q.letter))
}

func (p place) before(q place) bool { return p.compare(q) < 0 }

// after is the place behind the item.
func (p place) after() place { return place{commit: p.commit, ordinal: p.ordinal + 1} }

func (p place) String() string { return fmt.Sprintf("%s,%d,%d", p.commit, p.ordinal, p.letter) }

// lane is the unit that is held back: all aggregates of one type, so that the
// events of an aggregate stay in order wherever its route leads, or the replays
// that go to one topic of their own. It is made of the row alone: after a
// restart with other routes, what was held is still known to be held.
type lane struct {
	namespace, aggregateType string
	topic                    string // of replays that name one; then the others are empty
}

func (l lane) String() string {
	if l.topic != "" {
		return ">" + url.QueryEscape(l.topic)
	}
	return url.QueryEscape(l.namespace) + "/" + url.QueryEscape(l.aggregateType)
}

// horizon says which items of the stream have ended. It is the whole of what a
// new session needs to know to do each of the others exactly once.
type horizon struct {
	// order: every transaction with a commit end at or before it has ended.
	order pglogrepl.LSN
	// upto: every item before it has ended, unless its lane is held.
	upto place
	// held: for each lane that is held, its first item that has not ended.
	held map[lane]place
}

// ended is the resume rule. Order is the end of a log record, so a commit
// record that starts before it also ends by there.
func (h *horizon) ended(at place, of lane) bool {
	if at.commit < h.order {
		return true
	}
	if !at.before(h.upto) {
		return false
	}
	from, held := h.held[of]
	return !held || at.before(from)
}

// move returns the horizon of a session that began at h, has ended every
// transaction up to order and every item before next, except that the lanes in
// heads wait since the given places. While the session is still behind the
// horizon that it began at, what had ended there has ended; a lane that was held
// there is done as far as next, or as far as it waits again.
func (h *horizon) move(order pglogrepl.LSN, next place, heads map[lane]place) horizon {
	moved := horizon{order: max(order, h.order), upto: next, held: heads}
	if !next.before(h.upto) || h.upto.commit < moved.order {
		return moved
	}
	moved.upto, moved.held = h.upto, maps.Clone(heads)
	for of, from := range h.held {
		if from.before(next) {
			from = next
		}
		if head, waits := heads[of]; waits && head.before(from) {
			continue
		}
		if moved.held == nil {
			moved.held = make(map[lane]place, len(h.held))
		}
		moved.held[of] = from
	}
	return moved
}

// metaLimit bounds what Kafka keeps beside an offset (offset.metadata.max.bytes).
const metaLimit = 4096

// metaVersion is that of the text below.
const metaVersion = "onceward/1"

// checkpoint is what exactly-once mode keeps in Kafka: the horizon, and what
// binds it to one history of one database.
type checkpoint struct {
	horizon
	timeline int32
	tick     int64 // of relay_state, committed before this checkpoint
	letters  int64 // ever written by this relay
	epoch    int64 // of the session, to tell whose it was
	mended   mended
}

// meta is the checkpoint as one line of text, without the order, which Kafka
// keeps as the offset. Lanes are sorted, so that equal checkpoints look equal.
func (c *checkpoint) meta() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s timeline=%d tick=%d letters=%d epoch=%d upto=%s", metaVersion, c.timeline, c.tick, c.letters, c.epoch, c.upto)
	if c.mended.gap != uuid.Nil {
		fmt.Fprintf(&b, " repair=%s@%d", c.mended.gap, c.mended.cursor)
	}
	names := make([]string, 0, len(c.held))
	for of, from := range c.held {
		names = append(names, of.String()+"@"+from.String())
	}
	slices.Sort(names)
	for _, name := range names {
		b.WriteString(" held=" + name)
	}
	return b.String()
}

// parseCheckpoint reads what [checkpoint.meta] wrote.
func parseCheckpoint(order uint64, meta string) (checkpoint, error) {
	c := checkpoint{horizon: horizon{order: pglogrepl.LSN(order)}}
	fields := strings.Split(meta, " ")
	if fields[0] != metaVersion {
		return c, fmt.Errorf("parse checkpoint %q: want it to begin with %s; it was written by another program, or by a newer relay", clipText(meta), metaVersion)
	}
	seen := 0
	for _, field := range fields[1:] {
		key, value, _ := strings.Cut(field, "=")
		if err := c.parseField(key, value); err != nil {
			return c, fmt.Errorf("parse checkpoint %q: %s: %w", clipText(meta), key, err)
		}
		if key != "held" && key != "repair" {
			seen++
		}
	}
	if seen != 5 {
		return c, fmt.Errorf("parse checkpoint %q: it has %d fields, want timeline, tick, letters, epoch and upto", clipText(meta), seen)
	}
	return c, nil
}

func (c *checkpoint) parseField(key, value string) (err error) {
	switch key {
	case "timeline":
		var n int64
		n, err = strconv.ParseInt(value, 10, 32)
		c.timeline = int32(n)
	case "tick":
		c.tick, err = strconv.ParseInt(value, 10, 64)
	case "letters":
		c.letters, err = strconv.ParseInt(value, 10, 64)
	case "epoch":
		c.epoch, err = strconv.ParseInt(value, 10, 64)
	case "upto":
		c.upto, err = parsePlace(value)
	case "repair":
		c.mended, err = parseMended(value)
	case "held":
		err = c.parseHeld(value)
	default:
		err = fmt.Errorf("unknown field")
	}
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

func (c *checkpoint) parseHeld(value string) error {
	name, at, ok := strings.Cut(value, "@")
	if !ok {
		return fmt.Errorf("%q has no place", value)
	}
	from, err := parsePlace(at)
	if err != nil {
		return err
	}
	of, err := parseLane(name)
	if err != nil {
		return err
	}
	if c.held == nil {
		c.held = make(map[lane]place)
	}
	c.held[of] = from
	return nil
}

func parseLane(name string) (lane, error) {
	if escaped, ok := strings.CutPrefix(name, ">"); ok {
		topic, err := url.QueryUnescape(escaped)
		return lane{topic: topic}, err
	}
	namespace, aggregateType, ok := strings.Cut(name, "/")
	if !ok {
		return lane{}, fmt.Errorf("%q is no namespace/aggregate_type", name)
	}
	of := lane{}
	var err error
	if of.namespace, err = url.QueryUnescape(namespace); err != nil {
		return of, err
	}
	of.aggregateType, err = url.QueryUnescape(aggregateType)
	return of, err
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

// clipText shortens what came from elsewhere for an error.
func clipText(s string) string {
	const limit = 120
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "…"
}
