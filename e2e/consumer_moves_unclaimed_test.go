//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	readings "github.com/onceward/onceward/consumer/fingerprint"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// Types of TestConsumerMoves whose events have no claim, or no key.
const (
	seenType  = "Seen"  // has its effect at least once
	knownType = "Known" // the same, and where there is Redis it is remembered; the second version has it the other way round
	readType  = "Read"  // a reading of a source without keys
)

// readWindow is that of readings, longer than any run.
const readWindow = time.Hour

// readingHeader tells the records of that source, and the test what it has published.
const readingHeader = "reading"

// readingsOf makes the events of readings, of what they say. One by which every copy is another is a
// mistake.
func readingsOf(defect string) (*readings.Source, error) {
	cfg := readings.Config{Namespace: "meters", Type: readType, Fields: []string{"/n", "/dead"}}
	if defect == newReadings {
		cfg.Fields = nil
	}
	return readings.New(cfg)
}

// reading is the [consumer.RecordReader] of the source.
func (c *consumerProgram) reading(rec record.Record) (ev record.Event, mine bool, err error) {
	for _, h := range rec.Headers {
		if h.Name == readingHeader {
			source, err := readingsOf(c.Defect)
			if err != nil {
				return ev, true, err
			}
			return source.Read(rec)
		}
	}
	return ev, false, nil
}

func (c *consumerProgram) registerUnclaimed(r *consumer.Router) {
	var options []consumer.AtLeastOnceOption
	if c.Redis != "" {
		options = append(options, consumer.Remembered)
	}
	if c.Version == 1 {
		r.AtLeastOnce(seenType, c.see)
		r.AtLeastOnce(knownType, c.see, options...)
		r.Tx(readType, c.apply)
		return
	}
	r.AtLeastOnce(seenType, c.see, options...)
	r.AtLeastOnce(knownType, c.see)
	r.Batch(readType, consumer.BatchOptions{Max: 20}, c.apply)
}

// see makes an effect with a commit of its own, in the database that may lose it.
func (c *consumerProgram) see(ctx context.Context, ev consumer.Event) error {
	if err := c.possible(ctx, c.pool, ev); err != nil {
		if c.Defect == swallows {
			return nil
		}
		return err
	}
	if err := c.trouble(ctx, nil, ev); err != nil {
		return err
	}
	if _, err := c.pool.Exec(ctx, `INSERT INTO effects (key, pid, late) VALUES ($1, $2, $3)`, ev.Key.String(), os.Getpid(), ev.Late); err != nil {
		return err
	}
	if c.chance(c.Fail) {
		return errUnlucky
	}
	return nil
}

// registerReadings makes the class of readings of a group that has begun with a class of all events, before
// a member does: an event type does not become one by arrival.
func (m *mover) registerReadings(group string) {
	m.w.execute(`INSERT INTO onceward.dedup_windows (consumer_group, class, time_window, floor, keyed, bucket)
		VALUES ($1, $2, $3, date_trunc('day', now(), 'UTC'), 'arrival', $3)`, group, readType, readWindow)
}

// unclaimed: every delivery of it may be handled.
func (e *toldEvent) unclaimed() bool { return e.Type == seenType || e.Type == knownType }

// drawn makes an event of any type.
func (m *mover) drawn(eventType string) *toldEvent {
	switch eventType {
	case seenType, knownType: // windows are not looked at
		return m.plain(&toldEvent{body: body{N: m.events, Dead: m.rng.IntN(100) == 0}}, eventType, time.Now())
	case readType:
		return m.read()
	}
	return m.draw(eventType)
}

// read makes a reading, and keeps it; it is about to be published.
func (m *mover) read() *toldEvent {
	e := &toldEvent{body: body{N: m.events, Dead: m.rng.IntN(50) == 0}}
	e.Event = outbox.Event{AggregateID: fmt.Sprintf("a-%d", m.rng.IntN(200)), Type: readType}
	source, err := readingsOf("")
	require.NoError(m.t, err)
	ev, err := source.Event(e.AggregateID, fmt.Appendf(nil, `{"n": %d, "dead": %t}`, e.N, e.Dead))
	require.NoError(m.t, err)
	e.Key = ev.Key
	m.events++
	m.told[e.Key.String()] = e
	m.order = append(m.order, e)
	return e
}

// copyOf is a record of an event, one of as many as are wanted. Those of a reading differ in what does not
// matter, and come in any partition.
func (m *mover) copyOf(e *toldEvent) *sarama.ProducerMessage {
	if e.Type != readType {
		return m.message(e.Event)
	}
	forms := []string{`{"n":%d,"sent":%d,"dead":%t}`, `{ "dead": %[3]t, "sent": %[2]d, "n": %[1]d.0 }`, `{"sent":%[2]d,"dead":%[3]t,"n":%[1]de0}`}
	return &sarama.ProducerMessage{
		Topic: m.w.topic(), Partition: int32(m.rng.IntN(int(m.w.partitions))), Key: sarama.StringEncoder(e.AggregateID),
		Value:   sarama.StringEncoder(fmt.Sprintf(forms[m.rng.IntN(len(forms))], e.N, m.rng.IntN(1_000_000), e.Dead)),
		Headers: []sarama.RecordHeader{header(readingHeader, e.Key.String())},
	}
}

// readingsCopied publishes many copies of readings at once, which are under way in several
// partitions, and so in several members.
func (m *mover) readingsCopied() bool {
	var batch []*sarama.ProducerMessage
	for range 10 {
		e := m.read()
		for range 6 {
			batch = append(batch, m.copyOf(e))
		}
	}
	m.sendAll(batch...)
	return true
}

// readingsSet changes for how long readings are known, longer than any run; once, for a day.
func (m *mover) readingsSet() bool {
	return m.command(operatorLogin, "windows", "set", m.group, readType, "--window", []string{"45m", "2h", "1d"}[m.rng.IntN(3)])
}

// handledAgain says how many effects there are of events without a claim.
func (m *mover) handledAgain() (says string) {
	s := m.look(m.group, "public")
	for _, eventType := range []string{seenType, knownType} {
		events, effects := 0, 0
		for key, e := range m.told {
			if e.Type == eventType {
				events, effects = events+1, effects+s.effects[key][theEffect]
			}
		}
		says += fmt.Sprintf(", %d %s with %d effects", events, eventType, effects)
	}
	return says
}
