package main

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/onceward/onceward/bench/internal/sink"
)

// bulkTransaction is how many events a transaction of a bulk backlog has.
const bulkTransaction = 500

// backlog commits events that nobody reads yet, from number st.written on, in transactions of
// some events each. PostgreSQL makes them by itself: only the log counts.
func (st *stage) backlog(ctx context.Context, events, each int) error {
	end := st.written + events
	writers := 1
	if st.shape.Keys%2 == 0 && events > each { // one has the odd keys, one the even: those of a key stay in order
		writers = 2
	}
	group, within := errgroup.WithContext(ctx)
	for w := range writers {
		group.Go(func() error {
			return st.execute(within,
				"SET synchronous_commit = off",
				// The first 48 bits of an id are its time, which chooses the partition.
				fmt.Sprintf(`DO $$ DECLARE
					stamp text := lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0');
					BEGIN
						FOR i IN %[1]d .. %[2]d - 1 BY %[3]d * %[4]d LOOP
							INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload)
							SELECT (stamp || '7' || lpad(to_hex(n / 65536 %% 4096), 3, '0') || '8' || lpad(to_hex(n), 15, '0'))::uuid,
								'bench', %[7]s, %[5]s, 'OrderChanged', %[6]s
							FROM generate_series(i, least(i + %[3]d * %[4]d, %[2]d) - 1, %[4]d) n;
							COMMIT;
						END LOOP;
					END $$`, st.written+w, end, each, writers, st.shape.KeySQL("n"), sink.PayloadSQL("n"), st.shape.TypeSQL("n")),
				"SET synchronous_commit = on")
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	st.written = end
	return st.execute(ctx,
		"CREATE TEMP TABLE flushed ()", // a commit that waits for the disk: the log before it is there, too
		"DROP TABLE flushed",
		"VACUUM (ANALYZE) onceward.outbox", // neither this, which autovacuum would do,
		"CHECKPOINT")                       // nor this while something is measured
}

// execute runs statements on one connection.
func (st *stage) execute(ctx context.Context, statements ...string) error {
	conn, err := st.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("make a backlog: %w", err)
	}
	defer conn.Release()
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("make a backlog: %w", err)
		}
	}
	return nil
}
