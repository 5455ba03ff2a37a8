package letters

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/label"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
)

// WaitingStates are those of letters that wait for somebody's decision, or for
// what was decided.
var WaitingStates = []string{states.LetterOpen, states.LetterRequested}

// UnsettledStates are those of letters that can be given up.
var UnsettledStates = append(slices.Clone(WaitingStates), states.LetterParked)

// EveryState has also those that are settled.
var EveryState = append(slices.Clone(UnsettledStates), states.LetterRedriven, states.LetterDiscarded)

// GroupFilter says which letters of groups are meant: those of the places and keys, or
// those that all the filters given match.
type GroupFilter struct {
	operator.Selection
	Places []Place
	Group  string
	Cause  string
	Topic  string
	Older  time.Duration // than that they were kept; 0: of any age
}

// Narrowed tells whether a filter was given that only letters of groups have;
// the group is none: it also says whose letter at a place is meant.
func (s GroupFilter) Narrowed() bool { return s.Cause+s.Topic != "" || s.Older > 0 }

// Chosen tells whether anything says which letters are meant.
func (s GroupFilter) Chosen() bool {
	return len(s.Keys)+len(s.Places) > 0 || s.Filtered() || s.Narrowed() || s.Group != ""
}

// ofGroup are the words that say whose letters are meant.
func (s GroupFilter) ofGroup() string {
	if s.Group == "" {
		return ""
	}
	return " of group " + s.Group
}

// query asks for one letter more than the limit, which tells whether there are
// more.
func (s GroupFilter) query(meant []string, limit int) consumerdb.ListGroupLettersParams {
	q := consumerdb.ListGroupLettersParams{
		States: meant, ConsumerGroup: s.Group, Reason: s.Cause, Namespace: s.Namespace, EventType: s.EventType,
		Topic:        s.Topic,
		OlderSeconds: s.Older.Seconds(), FromTime: s.From, ToTime: s.To, Ids: s.IDs(), Places: []string{},
		RowLimit: int32(limit) + 1,
	}
	if s.Aggregate != "" {
		q.RecordKey = []byte(s.Aggregate)
	}
	for _, p := range s.Places {
		q.Places = append(q.Places, p.String())
	}
	return q
}

// elsewhere tells a letter that has the UUID of a KEY in another namespace.
func (s GroupFilter) elsewhere(l GroupLetter) bool {
	texts := s.given()
	return len(texts) > 0 && !slices.Contains(texts, l.Key) && !slices.Contains(texts, l.Place)
}

// given are the PLACEs and KEYs as texts.
func (s GroupFilter) given() (texts []string) {
	for _, k := range s.Keys {
		texts = append(texts, k.String())
	}
	for _, p := range s.Places {
		texts = append(texts, p.String())
	}
	return texts
}

// GroupLetter is a letter of a consumer group without its record.
type GroupLetter struct {
	Group      string     `json:"group"`
	Place      string     `json:"place"`
	Key        string     `json:"key,omitempty"` // none where the record has none
	EventType  string     `json:"event_type,omitempty"`
	Cause      string     `json:"cause"`
	Error      string     `json:"error"`
	Attempts   int32      `json:"attempts"`
	State      string     `json:"state"`
	Generation int32      `json:"generation"` // how often a redrive was asked for
	KeptAt     time.Time  `json:"kept_at"`
	SentAt     *time.Time `json:"sent_at,omitempty"` // copied to the Kafka topic of dead letters
	DecidedAt  *time.Time `json:"decided_at,omitempty"`
	DecidedBy  *string    `json:"decided_by,omitempty"`
	DecidedWhy *string    `json:"decided_why,omitempty"`
	ExpiresAt  *time.Time `json:"expires_at,omitempty"` // removed after that
	Behind     int64      `json:"behind,omitempty"`     // letters of its key that are parked behind it

	At Place `json:"-"`
}

// Standing is the state, and how many letters wait until it is settled.
func (l GroupLetter) Standing() string {
	if l.Behind == 0 {
		return l.State
	}
	return l.State + ", " + label.Count(l.Behind, "letter waits behind it", "letters wait behind it")
}

// Brief is Why in a list, which has no place for the stack of a panic.
func (l GroupLetter) Brief() string {
	l.Error, _, _ = strings.Cut(l.Error, "\ngoroutine ")
	return l.Why(terminal.ErrorBytes)
}

// Why is the cause and the error, which may begin with it, cut to so many bytes.
func (l GroupLetter) Why(limit int) string {
	return l.Cause + ": " + terminal.Preview([]byte(strings.TrimPrefix(l.Error, l.Cause+": ")), limit)
}

// Next are the commands about a letter that waits for a decision, which are a choice. What
// can never be applied can be given up only.
func (l GroupLetter) Next() (commands []string) {
	if l.State != states.LetterOpen {
		return nil
	}
	group := terminal.Word(l.Group)
	if l.Cause != states.CauseMismatch && l.Cause != states.CauseUnreadable {
		commands = append(commands, fmt.Sprintf("outboxctl dead redrive %s --group %s --reason \"…\"", l.Place, group))
	}
	return append(commands, fmt.Sprintf("outboxctl dead discard --side consumer %s --group %s --reason \"…\"", l.Place, group))
}

func newGroupLetter(v consumerdb.ListGroupLettersRow) GroupLetter {
	at := Place{v.Topic, v.KafkaPartition, v.KafkaOffset}
	l := GroupLetter{
		Group: v.ConsumerGroup, Place: at.String(), EventType: operator.Deref(v.EventType), Cause: v.Reason,
		Error: v.Error, Attempts: v.Attempts,
		State: v.State, Generation: v.Generation, KeptAt: v.CreatedAt.UTC(), SentAt: v.SentAt,
		DecidedAt: v.DecidedAt, DecidedBy: v.DecidedBy, DecidedWhy: v.DecidedWhy, ExpiresAt: v.ExpiresAt, At: at,
		Behind: v.Behind,
	}
	if v.EventID != nil {
		l.Key = operator.KeyText(operator.Deref(v.Namespace), *v.EventID)
	}
	return l
}

// GivenUp reports whether the letter says, for good, that its event was given up.
func (l GroupLetter) GivenUp() bool {
	ended := []string{states.CauseHandler, states.CauseCrash, states.CauseNoHandler, states.CauseLate,
		states.CauseFromFuture, states.LetterParked}
	return l.State == states.LetterDiscarded && slices.Contains(ended, l.Cause)
}

// Unsettled reports whether somebody can still decide about the letter.
func (l GroupLetter) Unsettled() bool { return slices.Contains(UnsettledStates, l.State) }
