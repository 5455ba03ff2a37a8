package relay

import (
	"cmp"
	"fmt"
	"net/url"

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

// item is the place without its letters.
func (p place) item() place { return place{commit: p.commit, ordinal: p.ordinal} }

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
