//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// toldEvent is what was published of an event.
type toldEvent struct {
	outbox.Event
	body
	future bool // its time will not come
	soon   bool // its time comes in a few seconds

	republished bool // some time later, as if it was new
	changed     bool // its key was used for something else, too
	again       int  // times that it was published for this group to reprocess
}

// effects are the names of those that an event has.
func (e *toldEvent) effects() []string {
	if e.Type == "Two" {
		return []string{booked, mailed}
	}
	return []string{theEffect}
}

// oneTransaction: what is applied of it is one transaction, and counted easily.
func (e *toldEvent) oneTransaction() bool {
	return e.Type == "Tx" || e.Type == "Batch" || e.Type == "Set"
}

// simple: nothing is wrong with it.
func (e *toldEvent) simple() bool {
	return e.oneTransaction() && !e.Dead && !e.Refused && !e.future && !e.soon && !e.changed && e.Trouble == ""
}

// draw makes an event, which has something wrong with it now and then.
func (m *mover) draw(eventType string) *toldEvent {
	e := &toldEvent{body: body{N: m.events}}
	at := time.Now()
	switch n := m.rng.IntN(1000); {
	case n < 10:
		e.Dead = true
	case n < 15:
		e.Refused = eventType == "Tx" || eventType == "Batch" || eventType == "Set"
	case n < 17:
		at, e.future = at.AddDate(0, 0, 5), true
	case n < 27: // a producer's clock goes ahead, within what is allowed
		at = at.Add(3 * time.Minute)
	case n < 127:
		at = at.Add(-time.Duration(m.rng.Int64N(int64(7 * day / 2))))
	}
	return m.plain(e, eventType, at)
}

// plain makes an event of a body, and keeps it; it is about to be published.
func (m *mover) plain(e *toldEvent, eventType string, at time.Time) *toldEvent {
	m.times = func() time.Time { return at }
	value, err := json.Marshal(e.body)
	require.NoError(m.t, err)
	e.Event = outbox.Event{Key: m.key(), AggregateType: "order", AggregateID: fmt.Sprintf("a-%d", m.rng.IntN(200)), Type: eventType, Payload: value}
	m.events++
	m.told[e.Key.String()] = e
	m.order = append(m.order, e)
	return e
}

// publish sends n events, some of them twice, and now and then one of before again,
// as relays do.
func (m *mover) publish(n int) {
	types := []string{"Tx", "Batch", "Set", "Call", "Two", seenType, knownType, readType}
	var batch []*sarama.ProducerMessage
	for range n {
		e := m.drawn(types[m.rng.IntN(len(types))])
		batch = append(batch, m.copyOf(e))
		switch m.rng.IntN(20) {
		case 0:
			batch = append(batch, m.copyOf(e))
		case 1:
			again := m.order[m.rng.IntN(len(m.order))]
			again.republished = true
			batch = append(batch, m.copyOf(again))
		}
	}
	m.sendAll(batch...)
}

func (m *mover) sendAll(batch ...*sarama.ProducerMessage) {
	require.NoError(m.t, m.producer.SendMessages(batch))
	for _, r := range batch {
		m.second.offer(r.Headers)
	}
}

// moveLetter is a letter as the model sees it.
type moveLetter struct {
	reason, state, why string
	generation         int // how often somebody has decided about it
}

// evidence is what the databases say of one group.
type evidence struct {
	effects        map[string]map[string]int
	late           map[string]int // effects that were flagged so
	letters        map[string][]moveLetter
	forgot         map[string]int // by an operator, to be applied again
	byHand         map[string]int // effects of which an operator said that they were made
	floor, horizon time.Time
	lateSet        bool         // an operator has said of a class what becomes of late events
	second         *secondGroup // nil: it is the first one
}

func (m *mover) look(group, schema string) (s evidence) {
	ctx := m.t.Context()
	s = evidence{effects: map[string]map[string]int{}, late: map[string]int{}, letters: map[string][]moveLetter{}, forgot: map[string]int{}, byHand: map[string]int{}}
	var key, name string
	var n, late int
	rows, err := m.w.pool.Query(ctx, `SELECT key, name, count(*)::int, (count(*) FILTER (WHERE late))::int FROM `+schema+`.effects GROUP BY 1, 2`)
	require.NoError(m.t, err)
	_, err = pgx.ForEachRow(rows, []any{&key, &name, &n, &late}, func() error {
		s.late[key] = max(s.late[key], late)
		if s.effects[key] == nil {
			s.effects[key] = map[string]int{}
		}
		s.effects[key][name] = n
		return nil
	})
	require.NoError(m.t, err)
	var l moveLetter
	rows, err = m.w.pool.Query(ctx, `SELECT COALESCE(namespace || ':' || event_id, ''), reason, state, left(error, 200), generation::int FROM onceward.consumer_dead_letters WHERE consumer_group = $1`, group)
	require.NoError(m.t, err)
	_, err = pgx.ForEachRow(rows, []any{&key, &l.reason, &l.state, &l.why, &l.generation}, func() error {
		s.letters[key] = append(s.letters[key], l)
		return nil
	})
	require.NoError(m.t, err)
	for action, counts := range map[string]map[string]int{"processed forget": s.forgot, "fences reconcile --made": s.byHand} {
		rows, err = m.w.pool.Query(ctx, `SELECT split_part(target, '/', 1), count(*)::int FROM onceward.consumer_actions WHERE action = $1 AND consumer_group = $2 GROUP BY 1`, action, group)
		require.NoError(m.t, err)
		_, err = pgx.ForEachRow(rows, []any{&key, &n}, func() error {
			counts[key] = n
			return nil
		})
		require.NoError(m.t, err)
	}
	s.lateSet = scalar[bool](m.w, `SELECT EXISTS (SELECT FROM onceward.consumer_actions WHERE action = 'windows set' AND target LIKE '%: late %' AND consumer_group = $1)`, group)
	s.floor = scalar[time.Time](m.w, `SELECT COALESCE(max(floor), 'epoch') FROM onceward.dedup_windows WHERE consumer_group = $1 AND keyed <> 'arrival'`, group)
	s.horizon = scalar[time.Time](m.w, `SELECT COALESCE(max(dropped_before), 'epoch') FROM onceward.dedup_horizon`)
	return s
}

// check says what of the promise is broken.
func (m *mover) check() (wrong []string) {
	first := m.look(m.group, "public")
	wrong = m.checkGroup(first, m.group, m.malformed, m.malformed)
	groups := map[string]evidence{m.group: first}
	if m.second != nil {
		s := m.look(m.second.name, "second")
		s.second = m.second
		wrong = append(wrong, m.checkGroup(s, m.second.name, m.malformed-m.second.before, m.malformed)...)
		groups[m.second.name] = s
	}
	wrong = append(wrong, m.checkCharges(groups)...)
	slices.Sort(wrong)
	if more := len(wrong) - 20; more > 0 {
		wrong = append(wrong[:20], fmt.Sprintf("and %d more", more))
	}
	return wrong
}

// checkGroup says what of the promise to one group is broken; letters of malformed
// records are bounded.
func (m *mover) checkGroup(s evidence, group string, fewest, most int) (wrong []string) {
	for key, e := range m.told {
		for _, what := range e.check(s, key) {
			wrong = append(wrong, fmt.Sprintf("%s, %s, %s of %s, dead %t, refused %t, %s: %s", group, key, e.Type, e.Key.Time().UTC().Format(time.RFC3339), e.Dead, e.Refused, e.Trouble, what))
		}
	}
	for key := range s.effects {
		if m.told[key] == nil {
			wrong = append(wrong, key+" has effects and was never published")
		}
	}
	malformed := 0
	for key, letters := range s.letters {
		switch {
		case key == "":
			malformed = len(letters)
		case m.told[key] == nil:
			wrong = append(wrong, key+" has letters and was never published")
		}
	}
	if malformed < fewest || malformed > most {
		wrong = append(wrong, fmt.Sprintf("%s: letters of malformed records: %d, want %d to %d", group, malformed, fewest, most))
	}
	return wrong
}

// checkCharges demands that the provider was asked for what has its effect, and for
// nothing else: under its one key. The charge of an event that was mended stays,
// though the database lost that it was; so does that of which nobody has heard yet.
func (m *mover) checkCharges(groups map[string]evidence) (wrong []string) {
	rows, err := m.outside.pool.Query(m.t.Context(), `SELECT key FROM provider`)
	require.NoError(m.t, err)
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(m.t, err)
	charged := map[string]bool{}
	for _, key := range keys {
		charged[key] = !m.lostCommits || !strings.HasPrefix(key, "blind ") // a fence that was lost is begun anew
	}
	for key, e := range m.told {
		effect, name := mailed, mailed
		switch e.Type {
		case "Two":
		case "Call":
			effect, name = theEffect, "charge"
		default:
			continue
		}
		for group, s := range groups {
			provider := consumer.ProviderKey(e.Key, group, name)
			made := s.effects[key][effect] > 0
			late := s.isLate(key, m.lostCommits)
			if made && !charged[provider] || charged[provider] && !made && !e.Dead && e.Trouble != lost && !late {
				wrong = append(wrong, fmt.Sprintf("%s, %s, %s: charged %t, effects %v, letters %v", group, key, e.Type, charged[provider], s.effects[key], s.letters[key]))
			}
			delete(charged, provider)
		}
	}
	for key, is := range charged {
		if is {
			wrong = append(wrong, "charges of other keys: "+key)
		}
	}
	return wrong
}

// isLate: what was lost with the last commits came again, and is a late letter by now. So is one whose redrive
// failed behind the charge.
func (s evidence) isLate(key string, lost bool) bool {
	return s.lateSet && slices.ContainsFunc(s.letters[key], func(l moveLetter) bool {
		return l.reason == "late" && (lost || l.state == "open" && l.generation > 0)
	})
}

// lettersOf is what the letters of an event say.
type lettersOf struct {
	givenUp int  // were not redriven, and say why the event was not applied
	tried   bool // to redrive one of them
	changed int  // hold another event under its key
	late    int  // of the class's policy, whatever became of them
	ordered int  // were redriven, though the event may have been applied before
}

// check says what is wrong with one event.
func (e *toldEvent) check(s evidence, key string) (wrong []string) {
	l, wrong := e.judge(s, key)
	again := 0
	if s.second == nil {
		again = e.again
	}
	// A copy of an event from the future has a letter of its own: nothing claims it.
	if l.givenUp > 1+again && !e.future && !e.soon {
		wrong = append(wrong, fmt.Sprintf("%d letters", l.givenUp))
	}
	// The other group may have been offered one of the two only.
	if l.changed > 0 && !e.changed || l.changed == 0 && e.changed && s.second == nil {
		wrong = append(wrong, fmt.Sprintf("%d letters of mismatches", l.changed))
	}
	for i, name := range e.effects() {
		low, high := e.want(s, key, l, i)
		if got := s.effects[key][name]; got < low || got > high {
			wrong = append(wrong, fmt.Sprintf("effect %s is there %d times, want %d to %d; letters %v", name, got, low, high, s.letters[key]))
		}
	}
	return wrong
}

// judge reads the letters of an event, and says which should not be.
func (e *toldEvent) judge(s evidence, key string) (found lettersOf, wrong []string) {
	for _, l := range s.letters[key] {
		allowed := false
		switch l.reason {
		case "handler":
			allowed = e.Dead || e.Refused || e.Trouble == lost
		case "from-future":
			allowed = e.future || e.soon
		case "replay", "late": // replay, of a copy: it says nothing of the first delivery
			if !e.Key.Time().Before(s.floor) || l.reason == "late" && e.Type != "Set" && !s.lateSet {
				wrong = append(wrong, fmt.Sprintf("letter %s, not below the floor %s: %s", l.reason, s.floor, l.why))
			}
			if l.reason == "late" {
				found.late++
			}
			if l.state == "redriven" {
				found.ordered++
			}
			continue
		case "mismatch":
			found.changed++
			continue
		}
		if !allowed {
			wrong = append(wrong, fmt.Sprintf("a letter that should not be: %s, %s: %s", l.reason, l.state, l.why))
		}
		if l.state != "redriven" {
			found.givenUp++
			found.tried = found.tried || l.generation > 0
		}
	}
	return found, wrong
}

// want says how often one of an event's effects has to be there.
func (e *toldEvent) want(s evidence, key string, l lettersOf, i int) (low, high int) {
	if e.unclaimed() {
		if l.givenUp > 0 || s.second != nil && !s.second.offered[key] {
			return 0, math.MaxInt
		}
		return 1, math.MaxInt
	}
	n := 1 + s.forgot[key]
	if s.second == nil {
		n += e.again
	}
	low, high = n, n
	switch {
	case s.byHand[key] > 0:
		low, high = 1, 1
	case l.givenUp > 0 && e.soon:
		low, high = 0, 1 // of a copy that came when the time had
	case l.givenUp > 0 && e.Type == "Two" && i == 0 && !e.future:
		low, high = 1, 1 // it was made before the event was given up
	case l.givenUp > 0 && (e.Type == "Two" || e.Type == "Call") && l.tried && !e.future:
		low, high = 0, 1 // two members redrove it, and the one that failed came first
	case l.givenUp > 0 && e.future:
		low, high = 0, 0
	case l.givenUp > 0:
		low, high = max(0, n-l.givenUp), max(0, n-l.givenUp)
	}
	// A letter that was kept for the time of its event is applied by an operator's order:
	// once more, where the claim of what was applied before may be gone.
	if l.late > 0 {
		low = max(0, low-1)
		if l.ordered > 0 {
			low = max(1, low)
		}
	}
	// So is a copy that looks like a first delivery: it is taken for one, and flagged.
	if e.Key.Time().Before(s.horizon) {
		high += l.ordered
		if e.republished && s.late[key] > 0 {
			high++
		}
	}
	if s.second != nil && !s.second.offered[key] {
		low = 0
	}
	return low, high
}

// applied draws an event that has its effect by now, of those that are simple to
// say something of; nil: none.
func (m *mover) applied() *toldEvent {
	for range 20 {
		e := m.order[m.rng.IntN(len(m.order))]
		if !e.simple() || time.Since(e.Key.Time()) > time.Hour {
			continue
		}
		if scalar[int](m.w, `SELECT count(*) FROM onceward.processed_events WHERE event_id = $1 AND consumer_group = $2 AND outcome = 'p'`, e.Key.UUID(), m.group) == 1 {
			return e
		}
	}
	return nil
}

// header is a record's header.
func header(name, value string) sarama.RecordHeader {
	return sarama.RecordHeader{Key: []byte(name), Value: []byte(value)}
}

// reprocessed is an event's record as a replay that this group applies again.
func (m *mover) reprocessed(e *toldEvent) *sarama.ProducerMessage {
	return m.message(e.Event, header(record.HeaderReplayID, uuid.Must(uuid.NewV7()).String()), header(record.HeaderReplayMode, "reprocess"), header(record.HeaderReplayGroup, m.group))
}
