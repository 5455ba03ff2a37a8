package main

import (
	"context"
	"fmt"
	"strconv"

	"golang.org/x/sync/errgroup"
)

// bulkTransaction is how many events a transaction of a bulk backlog has.
const bulkTransaction = 500

// backlog commits events that nobody reads yet, from number st.written on, in transactions of
// some events each; 0: mixed. PostgreSQL makes them by itself: only the log counts.
func (st *stage) backlog(ctx context.Context, events, each int) error {
	end := st.written + events
	writers := 1
	if st.shape.Keys%2 == 0 && events > each { // one has the odd keys, one the even: those of a key stay in order
		writers = 2
	}
	group, within := errgroup.WithContext(ctx)
	for w := range writers {
		group.Go(func() error {
			return st.execute(within, "SET synchronous_commit = off", st.transactions(st.written+w, end, writers, each), "SET synchronous_commit = on")
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

// transactions writes every step-th number from one to before another, in transactions of so many events each;
// 0: of 1 to 50, whose events stand in a savepoint. A fifth of these is rolled back first, a seventh to
// its savepoint.
func (st *stage) transactions(from, end, step, each int) string {
	// The first 48 bits of an id are its time, which chooses the partition.
	write := fmt.Sprintf(`INSERT INTO onceward.outbox (id, namespace, aggregate_type, aggregate_id, event_type, payload)
		SELECT (stamp || '7' || lpad(to_hex(n / 65536 %% 4096), 3, '0') || '8' || lpad(to_hex(n), 15, '0'))::uuid,
			'bench', %s, %s, 'OrderChanged', %s
		FROM generate_series(i, least(till, %d) - 1, %d) n;`, st.shape.TypeSQL("n"), st.shape.KeySQL("n"), st.shape.PayloadSQL("n"), end, step)
	size, transaction := strconv.Itoa(each), write
	if each == 0 {
		size = "(1 + i * 7919 % 50)"
		transaction = `
			IF i % 5 = 0 THEN ` + write + ` ROLLBACK; END IF;
			IF i % 7 = 0 THEN
				BEGIN ` + write + ` RAISE 'undone'; EXCEPTION WHEN raise_exception THEN NULL; END;
			END IF;
			BEGIN ` + write + ` EXCEPTION WHEN raise_exception THEN RAISE; END;`
	}
	return fmt.Sprintf(`DO $$ DECLARE
			stamp text := lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0');
			i     bigint := %d;
			till  bigint;
		BEGIN
			WHILE i < %d LOOP
				till := i + %d * %s;
				%s
				COMMIT;
				i := till;
			END LOOP;
		END $$`, from, end, step, size, transaction)
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
