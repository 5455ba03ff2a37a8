package ledger

import (
	"cmp"
	"fmt"

	"github.com/jackc/pglogrepl"
)

// Place is where an item stands in the stream: the start of its transaction's
// commit record, its ordinal among the transaction's items (events, replays and
// controls alike), and, for a retry, how many of its letters are out. Places are
// those of the log, so they are the same whenever it is read again.
type Place struct {
	Commit  pglogrepl.LSN
	Ordinal uint32
	Letter  uint32
}

// Compare orders places as the stream does.
func (p Place) Compare(q Place) int {
	return cmp.Or(cmp.Compare(p.Commit, q.Commit), cmp.Compare(p.Ordinal, q.Ordinal), cmp.Compare(p.Letter, q.Letter))
}

// Before reports whether p comes before q in the stream.
func (p Place) Before(q Place) bool { return p.Compare(q) < 0 }

// After is the place behind the item.
func (p Place) After() Place { return Place{Commit: p.Commit, Ordinal: p.Ordinal + 1} }

// Item is the place without its letters.
func (p Place) Item() Place { return Place{Commit: p.Commit, Ordinal: p.Ordinal} }

// String returns the place as a checkpoint's text has it.
func (p Place) String() string { return fmt.Sprintf("%s,%d,%d", p.Commit, p.Ordinal, p.Letter) }

// ParseLSN reads a position as PostgreSQL writes it.
func ParseLSN(text string) (pglogrepl.LSN, error) {
	lsn, err := pglogrepl.ParseLSN(text)
	if err != nil {
		return 0, fmt.Errorf("parse position %q: %w", text, err)
	}
	return lsn, nil
}
