package ledger

import "net/url"

// Lane is the unit that is held back: all aggregates of one type, so that the
// events of an aggregate stay in order wherever its route leads, or the replays
// that go to one topic of their own. It is made of the row alone: after a
// restart with other routes, what was held is still known to be held.
type Lane struct {
	Namespace, AggregateType string
	Topic                    string // of replays that name one; then the others are empty
}

// String returns the lane as logs and health pages have it.
func (l Lane) String() string {
	if l.Topic != "" {
		return ">" + url.QueryEscape(l.Topic)
	}
	return url.QueryEscape(l.Namespace) + "/" + url.QueryEscape(l.AggregateType)
}
