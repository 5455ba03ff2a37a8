//go:build e2e

package e2e

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/saramagroup"
)

// Mistakes of a consumer that are built into its program.
const (
	outsideEffect = "the effect is made outside of the transaction"
	newKeys       = "the provider gets a new key at every attempt"
	swallows      = "what cannot be applied is taken for done"
	skipsSecond   = "the second effect is not made when the first was there"
	givesUp       = "an event is given up at the first failure"
	newReadings   = "a fingerprint holds what every copy has its own of"
)

// brokenConsumers are mistakes between the group and Kafka.
var brokenConsumers = map[string]func(*tapped) saramagroup.Handler{
	"a failure is acknowledged":                func(t *tapped) saramagroup.Handler { return acknowledging{t} },
	"an event is remembered before it is done": func(t *tapped) saramagroup.Handler { return &remembering{tapped: t} },
	"the database's history is not looked at":  func(t *tapped) saramagroup.Handler { return trusting{t} },
	"Kafka's offsets are believed":             func(t *tapped) saramagroup.Handler { return believing{t} },
	"a letter is settled without its effect":   func(t *tapped) saramagroup.Handler { return settling{t} },
}

// acknowledging takes every delivery for finished.
type acknowledging struct{ *tapped }

func (a acknowledging) HandleRecord(ctx context.Context, rec consumer.Record) (consumer.Outcome, error) {
	if outcome, err := a.tapped.HandleRecord(ctx, rec); err == nil && outcome.Acknowledges() {
		return outcome, nil
	}
	return consumer.Processed, nil
}

func (a acknowledging) HandleRecords(ctx context.Context, recs []consumer.Record) []consumer.Delivery {
	deliveries := a.tapped.HandleRecords(ctx, recs)
	for i, d := range deliveries {
		if !d.Finished() {
			deliveries[i] = consumer.Delivery{Outcome: consumer.Processed}
		}
	}
	return deliveries
}

// remembering is the SET NX before the work.
type remembering struct {
	*tapped
	known sync.Map
}

func (r *remembering) HandleRecord(ctx context.Context, rec consumer.Record) (consumer.Outcome, error) {
	if _, known := r.known.LoadOrStore(keyOf(rec), true); known {
		return consumer.Duplicate, nil
	}
	return r.tapped.HandleRecord(ctx, rec)
}

func keyOf(rec consumer.Record) string {
	var all strings.Builder
	for _, h := range rec.Headers {
		all.WriteString(h.Name + "=" + string(h.Value) + ";")
	}
	return all.String()
}

// trusting saves marks in whatever history the database has by now.
type trusting struct{ *tapped }

func (t trusting) Progress(ctx context.Context) (consumer.Progress, error) {
	p, err := t.tapped.Progress(ctx)
	p.History = "any"
	return p, err
}

func (t trusting) SaveProgress(ctx context.Context, _ string, marks []consumer.Mark) error {
	p, err := t.tapped.Progress(ctx)
	if err != nil {
		return err
	}
	return t.tapped.SaveProgress(ctx, p.History, marks)
}

func (t trusting) BeginProgress(ctx context.Context, _ string, marks []consumer.Mark) error {
	p, err := t.tapped.Progress(ctx)
	if err != nil {
		return err
	}
	return t.tapped.BeginProgress(ctx, p.History, marks)
}

// believing finds every mark where Kafka's offset is.
type believing struct{ *tapped }

func (b believing) Progress(ctx context.Context) (consumer.Progress, error) {
	p, err := b.tapped.Progress(ctx)
	for i := range p.Marks {
		p.Marks[i].High = 1 << 40
	}
	return p, err
}

// settling redrives letters by calling them redriven.
type settling struct{ *tapped }

func (s settling) Redrive(ctx context.Context, _ int) (int, error) {
	tag, err := s.program.pool.Exec(ctx, `UPDATE onceward.consumer_dead_letters SET state = 'redriven' WHERE state = 'requested'`)
	return int(tag.RowsAffected()), err
}

// brokenStatement has the database do something else than the product asked for.
func brokenStatement(table, when, condition, body string) string {
	return `CREATE FUNCTION public.broken() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN ` + body + ` END $$;
		CREATE TRIGGER broken ` + when + ` ON onceward.` + table + ` FOR EACH ROW WHEN (` + condition + `) EXECUTE FUNCTION public.broken()`
}

// TestConsumerMovesCatchesDefects: what TestConsumerMoves demands is not there when
// the consumer, or the product, has a mistake. The short form has some of them.
func TestConsumerMovesCatchesDefects(t *testing.T) {
	nothing := func(*mover) {}
	again := func(m *mover) { m.groupDeleted() }
	for i, tc := range []struct {
		name   string
		sql    string // that breaks a statement
		server bool   // of its own
		do     func(m *mover)
		found  string
	}{
		{name: "a failure is acknowledged", do: nothing, found: "is there 0 times, want 1"},
		{name: outsideEffect, do: nothing, found: "is there 2 times, want 1"},
		{name: newKeys, do: nothing, found: "charges of other keys"},
		{name: "a claim is not kept", sql: brokenStatement("processed_events", "AFTER INSERT", "true",
			"DELETE FROM onceward.processed_events WHERE event_id = NEW.event_id AND consumer_group = NEW.consumer_group; RETURN NULL;"), do: again, found: "is there 2 times, want 1"},
		{name: swallows, do: (*mover).deadOnes, found: "is there 0 times, want 1"},
		{name: "a letter is settled without its effect", do: (*mover).redriveAll, found: "is there 0 times, want 1"},
		{name: "the database's history is not looked at", server: true, do: (*mover).backAndForth, found: "is there 0 times, want 1"},
		{name: "an event is remembered before it is done", do: nothing, found: "is there 0 times, want 1"},
		{name: "Kafka's offsets are believed", server: true, do: (*mover).backAndForth, found: "is there 0 times, want 1"},
		{name: skipsSecond, do: nothing, found: "effect mail is there 0 times, want 1"},
		{name: newReadings, do: func(m *mover) { m.readingsCopied() }, found: "Read of 2015-01-01T00:00:00Z, .*is there 0 times, want 1"},
		{name: givesUp, do: nothing, found: "a letter that should not be: handler"},
		{name: "a claim is taken for one that was there", sql: brokenStatement("processed_events", "BEFORE INSERT", "hashtext(NEW.event_id::text) % 50 = 0", "RETURN NULL;"), do: nothing, found: "is there 0 times, want 1|lag [1-9]"},
		{name: "retention takes claims that are needed", do: func(m *mover) { m.w.execute(`DELETE FROM onceward.processed_events`); m.groupDeleted() }, found: "is there 2 times, want 1"},
		{name: "an effect is forgotten when it is complete", sql: brokenStatement("fences", "AFTER INSERT OR UPDATE", "NEW.status = 'COMPLETE'",
			"DELETE FROM onceward.fences WHERE event_id = NEW.event_id AND name = NEW.name; RETURN NULL;"), do: nothing, found: "is there 2 times, want 1|lag [1-9]"},
		{name: "marks run ahead", sql: brokenStatement("progress", "BEFORE INSERT OR UPDATE", "true", "NEW.high_offset := NEW.high_offset + 100; RETURN NEW;"), do: (*mover).oldOnes, found: "is there 0 times, want 1"},
		{name: "letters are not written", sql: brokenStatement("consumer_dead_letters", "BEFORE INSERT", "true", "RETURN NULL;"), do: nothing, found: "is there 0 times, want 1|letters of malformed records|lag [1-9]"},
	} {
		if !full() && i > 2 {
			break
		}
		t.Run(tc.name, func(t *testing.T) {
			began := time.Now()
			m := newMover(t, versions[0], uint64(i), map[bool]string{true: onSnapshots, false: onShared}[tc.server], tc.name)
			m.limit = 12 * time.Second
			if tc.sql != "" {
				m.w.execute(tc.sql)
			}
			m.begin()
			m.malformedRecord()
			m.publish(600)
			eventually(t, "it goes on", time.Minute, func() bool { return scalar[int](m.w, `SELECT count(*) FROM effects`) > 200 })
			tc.do(m)
			m.settle()
			for _, c := range m.members {
				c.kill()
			}
			t.Logf("%s after %s", m.found[:min(1, len(m.found))], time.Since(began).Round(time.Second))
			require.Regexp(t, tc.found, strings.Join(m.found, "\n"))
		})
	}
}

// deadOnes publishes events that cannot be applied; few of those that are drawn are so.
func (m *mover) deadOnes() {
	for _, eventType := range []string{"Tx", "Batch", "Set", seenType} {
		m.sendAll(m.message(m.plain(&toldEvent{body: body{N: m.events, Dead: true}}, eventType, time.Now()).Event))
	}
}

// redriveAll mends what cannot be applied and redrives it, once there is something.
func (m *mover) redriveAll() {
	eventually(m.t, "there are letters", time.Minute, func() bool { return m.letters()["handler"] > 0 })
	require.True(m.t, m.command(operatorLogin, "dead", "redrive", "--group", m.group, "--cause", "handler", "--wait", "0"))
}

// backAndForth restores a snapshot of before the last effects.
func (m *mover) backAndForth() {
	workedOff(m.t, "records are not finished", m.lag)
	require.True(m.t, m.snapshotTaken())
	m.publish(200)
	workedOff(m.t, "records are not finished", m.lag)
	require.True(m.t, m.snapshotRestored())
}

// oldOnes publishes events below the floor, which has come to lie where it can.
func (m *mover) oldOnes() {
	workedOff(m.t, "records are not finished", m.lag)
	m.partitionsMaintained()
	m.partitionsMaintained()
	for range 50 {
		m.sendAll(m.message(m.plain(&toldEvent{body: body{N: m.events}}, "Tx", time.Now().Add(-3*day)).Event))
	}
}
