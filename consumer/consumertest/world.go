package consumertest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
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
	report    Report
}

func newExercise(ctx context.Context, s Service) (*exercise, error) {
	admin, err := pgx.Connect(ctx, s.DSN)
	if err != nil {
		return nil, fmt.Errorf("reach the server for tests: %w", err)
	}
	e := &exercise{Service: s, admin: admin, name: "consumertest_" + strings.ToLower(rand.Text()[:12]), topicID: uuid.New(),
		began: time.Now().Add(-time.Second)}
	if err := e.prepare(ctx); err != nil {
		return nil, errors.Join(err, e.close(ctx))
	}
	return e, nil
}

// prepare makes the database that all others are made of.
func (e *exercise) prepare(ctx context.Context) error {
	if err := e.create(ctx, e.name, "template1"); err != nil {
		return err
	}
	db, err := e.open(ctx, e.name)
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
	if err != nil {
		return fmt.Errorf("prepare a database: %w", err)
	}
	return nil
}

func (e *exercise) create(ctx context.Context, name, template string) error {
	if _, err := e.admin.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+template); err != nil {
		return fmt.Errorf("make a database of %s: %w", template, err)
	}
	return nil
}

func (e *exercise) drop(ctx context.Context, name string) error {
	if _, err := e.admin.Exec(context.WithoutCancel(ctx), "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("drop a database: %w", err)
	}
	return nil
}

func (e *exercise) open(ctx context.Context, name string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(e.DSN)
	if err != nil {
		return nil, fmt.Errorf("read the DSN: %w", err)
	}
	cfg.ConnConfig.Database = name
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("make a pool: %w", err)
	}
	return pool, nil
}

func (e *exercise) close(ctx context.Context) error {
	return errors.Join(e.drop(ctx, e.name), e.admin.Close(context.WithoutCancel(ctx)))
}

// event returns the n-th event, which is the same in all worlds.
func (e *exercise) event(n int) (outbox.Event, error) {
	for len(e.events) <= n {
		ev := e.Event(len(e.events))
		for i, other := range e.events {
			if other.AggregateID == ev.AggregateID {
				return ev, fmt.Errorf("events %d and %d are both of aggregate %q; give each one of its own, so that they are independent", i, len(e.events), ev.AggregateID)
			}
		}
		if ev.Key.IsZero() {
			if err := e.rekey(&ev, len(e.events)); err != nil {
				return ev, err
			}
		}
		if err := ev.Validate(time.Now()); err != nil {
			return ev, fmt.Errorf("event %d: %w", len(e.events), err)
		}
		e.events = append(e.events, ev)
	}
	return e.events[n], nil
}

// rekey gives an event a key of its own.
func (e *exercise) rekey(ev *outbox.Event, n int) (err error) {
	at := e.began.Add(time.Duration(n) * time.Millisecond)
	id, first := uuid.New(), outbox.FirstID(at)
	copy(id[:6], first[:6])
	id[6] = 0x70 | id[6]&0x0f
	if ev.Key, err = outbox.KeyFrom("consumertest", id, at, outbox.NoSkewLimit); err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	return nil
}

// label is what reports call an event.
func (e *exercise) label(n int) string {
	ev := e.events[n]
	return fmt.Sprintf("%d, %s of %s %q, key %s", n, ev.Type, ev.AggregateType, ev.AggregateID, ev.Key)
}

// world is what one promise is tried in: a database, and a process after the other.
type world struct {
	*exercise
	promise  Promise
	database string
	reader   *pgxpool.Pool // what nobody cuts
	process  *process
	offset   int64 // of the next record
}

// in tries a promise in a world of its own.
func (e *exercise) in(ctx context.Context, promise Promise, try func(context.Context, *world) error) (err error) {
	w := &world{exercise: e, promise: promise, database: fmt.Sprintf("%s_%s", e.name, strings.ToLower(rand.Text()[:6]))}
	if e.Reset != nil {
		e.Reset()
	}
	if err := e.create(ctx, w.database, e.name); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.drop(ctx, w.database)) }()
	if w.reader, err = e.open(ctx, w.database); err != nil {
		return err
	}
	defer w.reader.Close()
	defer func() {
		if w.process != nil {
			err = errors.Join(err, w.process.stop())
		}
	}()
	if err := w.restart(ctx); err != nil {
		return err
	}
	return try(ctx, w)
}

// record is the n-th event at the next offset.
func (w *world) record(n int) (record.Record, error) {
	ev, err := w.event(n)
	if err != nil {
		return record.Record{}, err
	}
	rec, err := encode(&ev)
	rec.Source = record.Source{Topic: topic, Offset: w.offset, TopicID: w.topicID}
	w.offset++
	return rec, err
}

// records are those of several events, or one of each where it is asked for again.
func (w *world) records(events ...int) (recs []record.Record, err error) {
	for _, n := range events {
		rec, err := w.record(n)
		if err != nil {
			return nil, err
		}
		recs = append(recs, rec)
	}
	return recs, nil
}

// encode makes the record of an event, as a relay does.
func encode(ev *outbox.Event) (rec record.Record, err error) {
	row := outbox.Row{ID: ev.Key.UUID(), Namespace: ev.Key.Namespace(), AggregateType: ev.AggregateType, AggregateID: []byte(ev.AggregateID),
		Type: ev.Type, Payload: ev.Payload, ContentType: ev.ContentType, CreatedAt: ev.Key.Time()}
	if row.ContentType == "" {
		row.ContentType = outbox.DefaultContentType
	}
	if ev.Traceparent != "" {
		row.Traceparent = []byte(ev.Traceparent)
	}
	if len(ev.Headers) > 0 {
		if row.Headers, err = json.Marshal(ev.Headers); err != nil {
			return rec, fmt.Errorf("encode headers: %w", err)
		}
	}
	headers, err := record.AppendHeaders[struct{ Key, Value []byte }](nil, record.Copy{Row: &row}, record.StyleOnceward)
	if err != nil {
		return rec, fmt.Errorf("encode event %s: %w", ev.Key, err)
	}
	rec = record.Record{Key: row.AggregateID, Value: row.Payload}
	for _, h := range headers {
		rec.Headers = append(rec.Headers, record.Header{Name: string(h.Key), Value: h.Value})
	}
	return rec, nil
}

// effects reads what is there.
func (w *world) effects(ctx context.Context) ([]string, error) {
	lines, err := w.Effects(ctx, w.reader)
	if err != nil {
		return nil, fmt.Errorf("read the effects: %w", err)
	}
	return lines, nil
}

// expect compares what is there with what the first events leave when each is delivered
// once.
func (w *world) expect(ctx context.Context, n int, how string, applied int) error {
	got, err := w.effects(ctx)
	if err != nil {
		return err
	}
	if d := differ(got, w.reference[applied]); !d.none() {
		return w.broken(n, how, d.String(), d.advice(w.promise))
	}
	return nil
}

func (w *world) broken(n int, how, found, do string) error {
	return &BrokenError{Promise: w.promise, Event: w.label(n), Delivery: how, Found: found, Do: do}
}

// window returns that of the class of the events.
func (w *world) window(ctx context.Context) (class string, window time.Duration, err error) {
	rows, err := w.reader.Query(ctx, "SELECT class, time_window FROM onceward.dedup_windows WHERE consumer_group = $1", w.process.router.Group())
	if err != nil {
		return "", 0, fmt.Errorf("read the windows: %w", err)
	}
	classes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c consumer.Class, err error) {
		return c, row.Scan(&c.Pattern, &c.Window)
	})
	if err != nil {
		return "", 0, fmt.Errorf("read the windows: %w", err)
	}
	at := consumer.ClassOf(classes, w.events[0].Type)
	if at < 0 {
		return "", 0, fmt.Errorf("group %q has no class for %s", w.process.router.Group(), w.events[0].Type)
	}
	return classes[at].Pattern, classes[at].Window, nil
}

// pass lets so much time pass since the first event, as retention sees it: the floor
// rises, and beyond the window claims and ended effects are gone.
func (w *world) pass(ctx context.Context, class string, window, passed time.Duration) error {
	group := w.process.router.Group()
	_, err := w.reader.Exec(ctx, "UPDATE onceward.dedup_windows SET floor = $3 WHERE consumer_group = $1 AND class = $2", group, class,
		w.events[0].Key.Time().Add(passed-window))
	for _, table := range []string{"processed_events", "fences"} {
		if err == nil && passed > window {
			_, err = w.reader.Exec(ctx, "DELETE FROM onceward."+table+" WHERE consumer_group = $1", group)
		}
	}
	if err != nil {
		return fmt.Errorf("let %s pass: %w", passed, err)
	}
	return nil
}
