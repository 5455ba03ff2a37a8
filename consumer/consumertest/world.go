package consumertest

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/migrations"
	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/record"
)

// topic is what the events are read from.
const topic = "consumertest"

// exercise is one call of [Check].
type exercise struct {
	Service
	admin     *pgx.Conn
	name      string // of the database that all others are made of
	topicID   uuid.UUID
	began     time.Time
	events    []outbox.Event
	reference [][]string // the effects of the first n events, each delivered once
	size      int        // how many events are delivered together: more than one for a batch
	cuts      int        // how many it takes to cut at each statement
	report    Report
}

func newExercise(ctx context.Context, s Service) (*exercise, error) {
	admin, err := pgx.Connect(ctx, s.DSN)
	if err != nil {
		return nil, fmt.Errorf("reach the server for tests: %w", err)
	}
	return &exercise{Service: s, admin: admin, name: "consumertest_" + strings.ToLower(rand.Text()[:12]),
		topicID: uuid.New(), began: time.Now().Add(-time.Second)}, nil
}

// prepare makes the database that all others are made of.
func (e *exercise) prepare(ctx context.Context) error {
	if _, err := e.admin.Exec(ctx, "CREATE DATABASE "+e.name); err != nil {
		return err
	}
	db, err := e.connect(ctx, e.name, func(*pgxpool.Config) {})
	if err != nil {
		return err
	}
	defer db.Close()
	m, err := migrations.New(migrations.Config{Pool: db, Side: migrations.Consumer})
	if err == nil {
		_, err = m.Up(ctx)
	}
	if err == nil && e.Prepare != nil {
		err = e.Prepare(ctx, db)
	}
	return err
}

func (e *exercise) connect(ctx context.Context, name string, set func(*pgxpool.Config)) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(e.DSN)
	if err != nil {
		return nil, fmt.Errorf("read the DSN: %w", err)
	}
	cfg.ConnConfig.Database = name
	set(cfg)
	return pgxpool.NewWithConfig(ctx, cfg)
}

func (e *exercise) drop(ctx context.Context, name string) error {
	_, err := e.admin.Exec(context.WithoutCancel(ctx), "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	return err
}

func (e *exercise) close(ctx context.Context) error {
	return errors.Join(e.drop(ctx, e.name), e.admin.Close(context.WithoutCancel(ctx)))
}

// event makes the next event.
func (e *exercise) event() error {
	n := len(e.events)
	ev := e.Event(n)
	at := slices.IndexFunc(e.events, func(o outbox.Event) bool { return o.AggregateID == ev.AggregateID })
	switch {
	case at >= 0:
		return fmt.Errorf("events %d and %d are both of aggregate %q; give each one of its own, so that they are independent", at, n, ev.AggregateID)
	case ev.Key.IsZero():
		ev.Key = e.key(n)
	}
	if err := ev.Validate(time.Now()); err != nil {
		return fmt.Errorf("event %d: %w", n, err)
	}
	e.events = append(e.events, ev)
	return nil
}

// key makes a key with a time of its own.
func (e *exercise) key(n int) outbox.Key {
	at := e.began.Add(time.Duration(n) * time.Millisecond)
	id, first := uuid.New(), outbox.FirstID(at)
	copy(id[:6], first[:6])
	id[6] = 0x70 | id[6]&0x0f
	key, _ := outbox.KeyFrom("consumertest", id, at, outbox.NoSkewLimit) // which keeps all rules
	return key
}

// world is what promises are tried in: a database, and one process after the other. Of
// its methods none does anything after the first failure.
type world struct {
	*exercise
	promise  Promise // that is tried
	database string
	reader   *pgxpool.Pool // what nobody cuts
	process  *process
	applied  int   // how many events are, the first ones
	offset   int64 // of the next record
	late     bool  // other events come too late here, since time has passed
	err      error // the first failure
}

func (e *exercise) world() *world {
	return &world{exercise: e, database: e.name + "_" + strings.ToLower(rand.Text()[:6])}
}

// open makes the database, and starts the first process.
func (w *world) open(ctx context.Context) {
	if w.Reset != nil {
		w.Reset()
	}
	if _, err := w.admin.Exec(ctx, "CREATE DATABASE "+w.database+" TEMPLATE "+w.name); err != nil {
		w.err = fmt.Errorf("copy the database: %w", err)
		return
	}
	if w.reader, w.err = w.connect(ctx, w.database, func(*pgxpool.Config) {}); w.err == nil {
		w.restart(ctx)
	}
}

// close ends the process, and drops the database.
func (w *world) close(ctx context.Context) (err error) {
	if w == nil {
		return nil
	}
	if w.process != nil {
		err = w.process.stop()
	}
	if w.reader != nil {
		w.reader.Close()
	}
	return errors.Join(err, w.drop(ctx, w.database))
}

// next takes so many events, which are applied from now on, and returns the first.
func (w *world) next(events int) (first int) {
	first = w.applied
	w.applied += events
	return first
}

// exec runs a statement that nobody cuts.
func (w *world) exec(ctx context.Context, sql string, args ...any) {
	if w.err == nil {
		_, w.err = w.reader.Exec(ctx, sql, args...)
	}
}

// records are the events as they come, each at the next offset of the topic.
func (w *world) records(events ...int) (recs []record.Record) {
	for _, n := range events {
		for n >= len(w.events) && w.err == nil {
			w.err = w.event()
		}
		if w.err == nil {
			recs = append(recs, w.record(&w.events[n]))
		}
	}
	return recs
}

// record is what a relay makes of an event.
func (w *world) record(ev *outbox.Event) record.Record {
	row := outbox.Row{
		ID: ev.Key.UUID(), Namespace: ev.Key.Namespace(), CreatedAt: ev.Key.Time(),
		AggregateType: ev.AggregateType, AggregateID: []byte(ev.AggregateID), Type: ev.Type, Payload: ev.Payload,
		ContentType: cmp.Or(ev.ContentType, outbox.DefaultContentType),
	}
	if ev.Traceparent != "" {
		row.Traceparent = []byte(ev.Traceparent)
	}
	if len(ev.Headers) > 0 {
		row.Headers, _ = json.Marshal(ev.Headers) // texts always can be
	}
	rec := record.Record{Key: row.AggregateID, Value: row.Payload}
	rec.Source = record.Source{Topic: topic, Offset: w.offset, TopicID: w.topicID}
	headers, err := record.AppendHeaders[struct{ Key, Value []byte }](nil, record.Copy{Row: &row}, record.StyleOnceward)
	for _, h := range headers {
		rec.Headers = append(rec.Headers, record.Header{Name: string(h.Key), Value: h.Value})
	}
	w.err = errors.Join(w.err, err)
	w.offset++
	return rec
}

// effects reads what is there.
func (w *world) effects(ctx context.Context) (lines []string) {
	if w.err == nil {
		if lines, w.err = w.Effects(ctx, w.reader); w.err != nil {
			w.err = fmt.Errorf("read the effects: %w", w.err)
		}
	}
	return lines
}

// expect compares what is there with what the events leave when each is delivered once.
func (w *world) expect(ctx context.Context, n int, how string) {
	if d := differ(w.effects(ctx), w.reference[w.applied]); !d.none() {
		w.broken(n, how, d.String(), d.advice(w.promise))
	}
}

// broken ends the world with a promise that is not kept.
func (w *world) broken(n int, how, found, do string) {
	if w.err == nil {
		ev := &w.events[n]
		event := fmt.Sprintf("%d, %s of %s %q, key %s", n, ev.Type, ev.AggregateType, ev.AggregateID, ev.Key)
		w.err = &BrokenError{Promise: w.promise, Event: event, Delivery: how, Found: found, Do: do}
	}
}

// window returns the class of the events, and its window.
func (w *world) window(ctx context.Context) (class string, window time.Duration) {
	if w.err != nil {
		return "", 0
	}
	rows, _ := w.reader.Query(ctx, "SELECT class, time_window FROM onceward.dedup_windows")
	classes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c consumer.Class, err error) {
		return c, row.Scan(&c.Pattern, &c.Window)
	})
	at := consumer.ClassOf(classes, w.events[0].Type)
	if at < 0 {
		w.err = fmt.Errorf("find the class of %s: %w", w.events[0].Type, errors.Join(consumer.ErrNoClass, err))
		return "", 0
	}
	return classes[at].Pattern, classes[at].Window
}

// pass lets so much time pass since event n, as retention shows it: the floor
// rises, and beyond the window claims and ended effects are gone.
func (w *world) pass(ctx context.Context, n int, class string, window, passed time.Duration) {
	if w.err != nil {
		return
	}
	floor := w.events[n].Key.Time().Add(passed - window)
	w.exec(ctx, "UPDATE onceward.dedup_windows SET floor = $1 WHERE class OPERATOR(pg_catalog.=) $2", floor, class)
	if passed > window {
		w.exec(ctx, "DELETE FROM onceward.processed_events")
		w.exec(ctx, "DELETE FROM onceward.fences")
	}
	w.restart(ctx)
}
