//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/outbox"
)

// toldEvent is what was published of an event.
type toldEvent struct {
	outbox.Event
	body
	future  bool // its time will not come
	changed bool // its key was used for something else, too
	again   int  // times that it was published for this group to reprocess
}

// effects are the names of those that an event has.
func (e *toldEvent) effects() []string {
	if e.Type == "Two" {
		return []string{booked, mailed}
	}
	return []string{theEffect}
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
	types := []string{"Tx", "Batch", "Set", "Call", "Two"}
	var batch []*sarama.ProducerMessage
	for range n {
		e := m.draw(types[m.rng.IntN(len(types))])
		batch = append(batch, m.message(e.Event))
		switch m.rng.IntN(20) {
		case 0:
			batch = append(batch, m.message(e.Event))
		case 1:
			batch = append(batch, m.message(m.order[m.rng.IntN(len(m.order))].Event))
		}
	}
	m.sendAll(batch...)
}

func (m *mover) sendAll(batch ...*sarama.ProducerMessage) {
	require.NoError(m.t, m.producer.SendMessages(batch))
}

// moveLetter is a letter as the model sees it.
type moveLetter struct {
	reason, state, why string
	generation         int // how often somebody has decided about it
}

// evidence is what the databases say.
type evidence struct {
	effects map[string]map[string]int
	letters map[string][]moveLetter
	forgot  map[string]int
	floor   time.Time
}

func (m *mover) look() (s evidence) {
	ctx := m.t.Context()
	s = evidence{effects: map[string]map[string]int{}, letters: map[string][]moveLetter{}, forgot: map[string]int{}}
	var key, name string
	var n int
	rows, err := m.w.pool.Query(ctx, `SELECT key, name, count(*)::int FROM effects GROUP BY 1, 2`)
	require.NoError(m.t, err)
	_, err = pgx.ForEachRow(rows, []any{&key, &name, &n}, func() error {
		if s.effects[key] == nil {
			s.effects[key] = map[string]int{}
		}
		s.effects[key][name] = n
		return nil
	})
	require.NoError(m.t, err)
	var l moveLetter
	rows, err = m.w.pool.Query(ctx, `SELECT COALESCE(namespace || ':' || event_id, ''), reason, state, left(error, 200), generation::int FROM onceward.consumer_dead_letters`)
	require.NoError(m.t, err)
	_, err = pgx.ForEachRow(rows, []any{&key, &l.reason, &l.state, &l.why, &l.generation}, func() error {
		s.letters[key] = append(s.letters[key], l)
		return nil
	})
	require.NoError(m.t, err)
	rows, err = m.w.pool.Query(ctx, `SELECT target, count(*)::int FROM onceward.consumer_actions WHERE action = 'processed forget' GROUP BY 1`)
	require.NoError(m.t, err)
	_, err = pgx.ForEachRow(rows, []any{&key, &n}, func() error {
		s.forgot[key] = n
		return nil
	})
	require.NoError(m.t, err)
	s.floor = scalar[time.Time](m.w, `SELECT max(floor) FROM onceward.dedup_windows`)
	return s
}

// check says what of the promise is broken.
func (m *mover) check() (wrong []string) {
	s := m.look()
	for key, e := range m.told {
		for _, what := range e.check(s, key) {
			wrong = append(wrong, fmt.Sprintf("%s, %s of %s, dead %t, refused %t, %s: %s", key, e.Type, e.Key.Time().UTC().Format(time.RFC3339), e.Dead, e.Refused, e.Trouble, what))
		}
	}
	for key := range s.effects {
		if m.told[key] == nil {
			wrong = append(wrong, key+" has effects and was never published")
		}
	}
	for key := range s.letters {
		if key != "" && m.told[key] == nil {
			wrong = append(wrong, key+" has letters and was never published")
		}
	}
	wrong = append(wrong, count{`SELECT count(*) FROM onceward.consumer_dead_letters WHERE event_id IS NULL AND reason = 'malformed'`, m.malformed}.check(m.w, "letters of malformed records")...)
	wrong = append(wrong, m.checkCharges(s)...)
	slices.Sort(wrong)
	if more := len(wrong) - 20; more > 0 {
		wrong = append(wrong[:20], fmt.Sprintf("and %d more", more))
	}
	return wrong
}

// checkCharges demands that the provider was asked for what has its effect, and for
// nothing else: under its one key. The charge of an event that was mended stays,
// though the database lost that it was.
func (m *mover) checkCharges(s evidence) (wrong []string) {
	rows, err := m.outside.pool.Query(m.t.Context(), `SELECT key FROM provider`)
	require.NoError(m.t, err)
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(m.t, err)
	charged := map[string]bool{}
	for _, key := range keys {
		charged[key] = true
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
		provider := consumer.ProviderKey(e.Key, m.group, name)
		made := s.effects[key][effect] > 0
		if made && !charged[provider] || charged[provider] && !made && !e.Dead {
			wrong = append(wrong, fmt.Sprintf("%s, %s: charged %t, effects %v, letters %v", key, e.Type, charged[provider], s.effects[key], s.letters[key]))
		}
		delete(charged, provider)
	}
	if len(charged) > 0 {
		wrong = append(wrong, fmt.Sprintf("%d charges of other keys", len(charged)))
	}
	return wrong
}

// check says what is wrong with one event.
func (e *toldEvent) check(s evidence, key string) (wrong []string) {
	givenUp, changed, tried := 0, 0, false
	for _, l := range s.letters[key] {
		allowed := false
		switch l.reason {
		case "handler":
			allowed = e.Dead || e.Refused
		case "from-future":
			allowed = e.future
		case "replay": // of a copy: it says nothing of the first delivery
			if !e.Key.Time().Before(s.floor) {
				wrong = append(wrong, fmt.Sprintf("letter of a replay from above the floor %s: %s", s.floor, l.why))
			}
			continue
		case "mismatch":
			changed++
			continue
		}
		if !allowed {
			wrong = append(wrong, fmt.Sprintf("a letter that should not be: %s, %s: %s", l.reason, l.state, l.why))
		}
		if l.state != "redriven" {
			givenUp++
			tried = tried || l.generation > 0
		}
	}
	// A copy of an event from the future has a letter of its own: nothing claims it.
	if givenUp > 1 && !e.future {
		wrong = append(wrong, fmt.Sprintf("%d letters", givenUp))
	}
	if changed > 0 != e.changed {
		wrong = append(wrong, fmt.Sprintf("%d letters of mismatches", changed))
	}
	for i, name := range e.effects() {
		want, got := 1+s.forgot[key]+e.again, s.effects[key][name]
		switch {
		case givenUp > 0 && e.Type == "Two" && i == 0 && !e.future:
			want = 1 // it was made before the event was given up
		case givenUp > 0 && (e.Type == "Two" || e.Type == "Call") && tried && !e.future:
			want = min(got, 1) // two members redrove it, and the one that failed came first
		case givenUp > 0:
			want = 0
		}
		if got != want {
			wrong = append(wrong, fmt.Sprintf("effect %s is there %d times, want %d; letters %v", name, got, want, s.letters[key]))
		}
	}
	return wrong
}

// applied draws an event that has its effect by now, of those that are simple to
// say something of; nil: none.
func (m *mover) applied() *toldEvent {
	for range 20 {
		e := m.order[m.rng.IntN(len(m.order))]
		plain := e.Type == "Tx" || e.Type == "Batch" || e.Type == "Set"
		if !plain || e.Dead || e.Refused || e.future || e.changed || e.Trouble != "" || time.Since(e.Key.Time()) > time.Hour {
			continue
		}
		if scalar[int](m.w, `SELECT count(*) FROM onceward.processed_events WHERE event_id = $1 AND outcome = 'p'`, e.Key.UUID()) == 1 {
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
	return m.message(e.Event, header(outbox.HeaderReplayID, uuid.Must(uuid.NewV7()).String()), header(outbox.HeaderReplayMode, "reprocess"), header(outbox.HeaderReplayGroup, m.group))
}
