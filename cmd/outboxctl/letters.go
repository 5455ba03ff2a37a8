package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/consumerdb"
	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/states"
	"github.com/onceward/onceward/internal/terminal"
)

// place is where the record of a letter was read.
type place struct {
	Topic     string
	Partition int32
	Offset    int64
}

func (p place) String() string { return fmt.Sprintf("%s/%d@%d", p.Topic, p.Partition, p.Offset) }

var placeForm = regexp.MustCompile(`^([A-Za-z0-9._-]{1,249}(?:~[0-9a-f]{1,8})?)/([0-9]{1,10})@([0-9]{1,19})$`)

const placeExample = "a place looks like orders.order/3@4711: topic, partition, offset"

func readPlace(text string) (p place, err error) {
	m := placeForm.FindStringSubmatch(text)
	if m == nil {
		return p, usage("place %q: %s", text, placeExample)
	}
	partition, err1 := strconv.ParseInt(m[2], 10, 32)
	offset, err2 := strconv.ParseInt(m[3], 10, 64)
	if err1 != nil || err2 != nil {
		return p, usage("place %q: partition or offset is out of range; %s", text, placeExample)
	}
	return place{m[1], int32(partition), offset}, nil
}

// letterSelection says which letters of groups a command is about.
type letterSelection struct {
	operator.Selection
	places []place
	group  string
	cause  string
	topic  string
	older  time.Duration
}

// readLetterSelection checks arguments and filters; it needs no server.
func readLetterSelection(c *cli.Context) (s letterSelection, err error) {
	if err := checkOutput(c); err != nil {
		return s, err
	}
	var keys []string
	for _, text := range c.Args().Slice() {
		if !strings.Contains(text, "@") {
			keys = append(keys, text)
			continue
		}
		p, err := readPlace(text)
		if err != nil {
			return s, err
		}
		if !slices.Contains(s.places, p) {
			s.places = append(s.places, p)
		}
	}
	if s.Selection, err = readSelectionOf(c, keys); err != nil {
		return s, err
	}
	if s.older, err = readAge(c, "older"); err != nil {
		return s, err
	}
	s.group, s.cause, s.topic = c.String("group"), c.String("cause"), c.String("topic")
	switch {
	case s.cause != "" && !slices.Contains(states.Causes, s.cause):
		return s, usage("--cause %q: want one of %s", s.cause, strings.Join(states.Causes, ", "))
	case len(s.places) > 0 && (s.Filtered() || s.narrowed()):
		return s, usage("%s: give PLACEs or filters, not both; --group goes with both", c.Command.HelpName)
	}
	return s, nil
}

// narrowed tells whether a filter was given that only letters of groups have;
// the group is none: it also says whose letter at a place is meant.
func (s letterSelection) narrowed() bool { return s.cause+s.topic != "" || s.older > 0 }

// chosen tells whether anything says which letters are meant.
func (s letterSelection) chosen() bool {
	return len(s.Keys)+len(s.places) > 0 || s.Filtered() || s.narrowed() || s.group != ""
}

// query asks for one letter more than the limit, which tells whether there are
// more.
func (s letterSelection) query(states []string, limit int) consumerdb.ListGroupLettersParams {
	q := consumerdb.ListGroupLettersParams{
		States: states, ConsumerGroup: s.group, Reason: s.cause, Namespace: s.Namespace, EventType: s.EventType, Topic: s.topic,
		OlderSeconds: s.older.Seconds(), FromTime: s.From, ToTime: s.To, Ids: s.IDs(), Places: []string{},
		RowLimit: int32(limit) + 1,
	}
	if s.Aggregate != "" {
		q.RecordKey = []byte(s.Aggregate)
	}
	for _, p := range s.places {
		q.Places = append(q.Places, p.String())
	}
	return q
}

// groupLetter is a letter of a consumer group without its record.
type groupLetter struct {
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

	at place
	id *uuid.UUID
}

// why is the cause and the error, which may begin with it, cut to so many bytes.
func (l groupLetter) why(limit int) string {
	return l.Cause + ": " + terminal.Preview([]byte(strings.TrimPrefix(l.Error, l.Cause+": ")), limit)
}

func newGroupLetter(v consumerdb.ListGroupLettersRow) groupLetter {
	at := place{v.Topic, v.KafkaPartition, v.KafkaOffset}
	l := groupLetter{
		Group: v.ConsumerGroup, Place: at.String(), EventType: operator.Deref(v.EventType), Cause: v.Reason, Error: v.Error, Attempts: v.Attempts,
		State: v.State, Generation: v.Generation, KeptAt: v.CreatedAt.UTC(), SentAt: v.SentAt,
		DecidedAt: v.DecidedAt, DecidedBy: v.DecidedBy, DecidedWhy: v.DecidedWhy, ExpiresAt: v.ExpiresAt, at: at, id: v.EventID,
	}
	if v.EventID != nil {
		l.Key = operator.KeyText(operator.Deref(v.Namespace), *v.EventID)
	}
	return l
}
