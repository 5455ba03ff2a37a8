package main

import (
	"context"
	"errors"
	"fmt"
)

// minEvents is what the demo must move to count.
const minEvents = 1000

// summary compares table, topic and effects.
type summary struct {
	enqueued   int   // rows of the outbox: committed events
	published  int   // distinct keys in the topic
	effects    int64 // shipments
	duplicates int64 // deliveries that the consumer removed
	lost       int   // committed events without an effect or without a record
	doubled    int   // events with more than one effect
	invented   int   // records or effects of no committed event
	starts     int   // of the relay
}

// String is the demo's last line.
func (s summary) String() string {
	return fmt.Sprintf("demo: enqueued=%d published=%d effects=%d duplicates_removed=%d lost=%d doubled=%d",
		s.enqueued, s.published, s.effects, s.duplicates, s.lost, s.doubled)
}

// judge says what the demo did not show.
func (s summary) judge() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(s.enqueued >= minEvents, "only %d events were enqueued, want at least %d", s.enqueued, minEvents)
	check(s.published == s.enqueued && s.effects == int64(s.enqueued), "the counts differ")
	check(s.lost == 0 && s.doubled == 0 && s.invented == 0, "%d lost, %d doubled, %d of no committed event", s.lost, s.doubled, s.invented)
	check(s.duplicates >= redeliveries-1, "only %d duplicates were removed", s.duplicates)
	check(s.starts >= 2, "the relay was not restarted")
	return errors.Join(errs...)
}

// compare goes through every key of the table, the topic and the effects.
func compare(ctx context.Context, s *stage, w *watcher, o *outcomes) (summary, error) {
	sum := summary{published: w.distinct(), duplicates: o.duplicates.Load(), starts: s.relay.starts}
	rows, err := s.db.Query(ctx, `
		SELECT o.namespace || ':' || o.id, e.key, coalesce(e.n, 0)
		FROM onceward.outbox o
		FULL JOIN (SELECT key, count(*) AS n FROM shipments GROUP BY key) e ON e.key = o.namespace || ':' || o.id`)
	if err != nil {
		return sum, fmt.Errorf("compare: %w", err)
	}
	defer rows.Close()
	known := 0
	for rows.Next() {
		var enqueued, shipped *string
		var n int64
		if err := rows.Scan(&enqueued, &shipped, &n); err != nil {
			return sum, fmt.Errorf("compare: %w", err)
		}
		sum.effects += n
		if enqueued == nil {
			sum.invented++
			continue
		}
		sum.enqueued++
		published := w.published(*enqueued)
		if published {
			known++
		}
		if n == 0 || !published {
			sum.lost++
		}
		if n > 1 {
			sum.doubled++
		}
	}
	sum.invented += sum.published - known
	return sum, rows.Err()
}
